"""A reading holds what enumeration by hand gives, whatever the other pairs of its batch."""

import pytest
import torch

from onmt_varattn.latent import KMax, SoftContext
from onmt_varattn.nmt.model.reading import Reader
from tests import models
from tests.unit.test_decoder import mixture_exact, plain_decode

PAIRS = [
    (["w000", "w001", "w002"], ["w003", "w001"]),
    (["w004", "w001", "w005", "w006", "w002"], ["w002", "w000", "w001", "w005"]),
    (["w003"], ["nowhere"]),
    (["w000", "w003"], ["w004", "w004", "w002", "w001", "w006"]),
]
TIGHT = {"rtol": 0, "atol": 1e-12}


def readers(flags, batch_size=3):
    model, _ = models.model(flags)
    return model, Reader(model, models.fields(), batch_size)


def by_pair(reader, values):
    """The values of every pair, in the order of PAIRS."""
    found = {}
    for reading in reader.read(PAIRS):
        found |= dict(zip(reading.lines, reading.by_sentence(values(reading)), strict=True))
    return [found[i] for i in range(len(PAIRS))]


@torch.no_grad()
def brute_force(model, source, target):
    """p, q and l of one pair alone, with each alignment's emission computed by itself."""
    fields = models.fields()
    stoi = [fields[side].base_field.vocab.stoi for side in ("src", "tgt")]
    src = torch.tensor([stoi[0][word] for word in source]).view(-1, 1, 1)
    tgt = torch.tensor([stoi[1][word] for word in ["<s>", *target, "</s>"]]).view(-1, 1, 1)
    trace, _ = model(src, tgt, torch.tensor([len(source)]))
    l = torch.stack(
        [
            torch.log_softmax(
                model.generator.output_layer(
                    models.emit(model, trace.queries[0], x.expand(len(tgt) - 1, -1))
                ),
                -1,
            ).gather(1, tgt[1:, :, 0])[:, 0]
            for x in trace.memory.vectors[0]
        ],
        1,
    )
    p = torch.softmax(trace.prior[0], -1)
    q = None if trace.posterior is None else torch.softmax(trace.posterior[0], -1)
    return p, q, l


@pytest.mark.parametrize("null", [False, True])
def test_prior_posterior_and_exact_posterior_are_those_of_brute_force(null):
    model, reader = readers("-attention variational" + " -null_alignment" * null)
    assert len(list(reader.read(PAIRS))) == 2
    p, q, l, exact, marginal = (
        by_pair(reader, values)
        for values in (
            lambda r: r.prior.probs,
            lambda r: r.posterior.probs,
            lambda r: r.enumerated.log_likelihood,
            lambda r: r.exact_posterior.probs,
            lambda r: r.enumerated.log_marginal,
        )
    )
    for i, pair in enumerate(PAIRS):
        right_p, right_q, right_l = brute_force(model, *pair)
        joint = right_p * right_l.exp()
        assert p[i].shape == (len(pair[1]) + 1, len(pair[0]) + null)
        torch.testing.assert_close(p[i], right_p, **TIGHT)
        torch.testing.assert_close(q[i], right_q, **TIGHT)
        torch.testing.assert_close(l[i], right_l, **TIGHT)
        torch.testing.assert_close(exact[i], joint / joint.sum(1, keepdim=True), **TIGHT)
        torch.testing.assert_close(marginal[i], joint.sum(1).log(), **TIGHT)


@torch.no_grad()
def test_null_is_one_more_vector_of_the_memory_of_each_sentence():
    """Prior, marginal likelihood and posterior against plain loops over one sentence at a time."""
    model, opt = models.model("-attention variational -null_alignment")
    reader = Reader(model, models.fields(), 3)
    p, q, marginal = (
        by_pair(reader, values)
        for values in (
            lambda r: r.prior.probs,
            lambda r: r.posterior.probs,
            lambda r: r.enumerated.log_marginal,
        )
    )
    stoi = [models.fields()[side].base_field.vocab.stoi for side in ("src", "tgt")]
    for i, (source, target) in enumerate(PAIRS):
        src = torch.tensor([stoi[0][word] for word in source])
        tgt = torch.tensor([stoi[1][word] for word in ["<s>", *target, "</s>"]])
        log_probs, right = plain_decode(model, opt, src, tgt[:-1], mixture_exact)
        torch.testing.assert_close(p[i], right, **TIGHT)
        torch.testing.assert_close(marginal[i], log_probs.gather(1, tgt[1:, None])[:, 0], **TIGHT)
        x, h = (
            read(lut.weight[words].unsqueeze(0), torch.tensor([len(words)]))[0]
            for read, lut, words in (
                (model.posterior.source, model.encoder.embeddings.word_lut, src),
                (model.posterior.target, model.decoder.embeddings.word_lut, tgt[1:]),
            )
        )
        u = model.posterior.bilinear.weight
        scores = torch.tensor([[h_j @ u @ x_i for x_i in [*x, model.posterior.null]] for h_j in h])
        torch.testing.assert_close(q[i], torch.softmax(scores, 1), **TIGHT)


@pytest.mark.parametrize("attention", [SoftContext(), KMax(2)])
def test_other_mixtures_do_not_depend_on_the_batch(attention):
    _, alone = readers("-attention marginal", batch_size=1)
    _, together = readers("-attention marginal", batch_size=4)
    one, other = (
        by_pair(reader, lambda r: r.mixture(attention).log_marginal) for reader in (alone, together)
    )
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, **TIGHT)


def test_an_iterated_posterior_is_refined_towards_the_exact_one():
    _, reader = readers("-attention variational -posterior svi -svi_steps 200 -svi_lr 1")
    for reading in reader.read(PAIRS):
        torch.testing.assert_close(reading.posterior.probs, reading.exact_posterior.probs, rtol=0, atol=1e-4)


def test_a_model_without_posterior_has_none():
    _, reader = readers("-attention marginal")
    assert all(reading.posterior is None for reading in reader.read(PAIRS))
