"""The loss computer: right, and blind to padding, batch composition and order."""

import pytest
import torch
from onmt.utils.loss import LabelSmoothingLoss

from onmt_varattn.errors import UserError
from onmt_varattn.latent import OBJECTIVES, Exact, KMax, Schedule, SoftContext
from onmt_varattn.nmt.training.statistics import AlignmentStatistics
from tests import models
from tests.unit.test_decoder import logits, plain_decode, run
from tests.unit.test_likelihood import PAD, Largest, V, gold_words, inputs
from tests.worlds import new_estimator

LENGTHS = ((5, 4), (3, 6), (2, 2))


def gradients(model, loss):
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


def assert_same_gradients(found, right, atol=1e-11):
    assert found.keys() == right.keys()
    for name in right:
        assert right[name] is not None, f"{name} has no gradient"
        torch.testing.assert_close(found[name], right[name], rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_the_generators_negative_log_likelihood(smoothing):
    model, opt = models.model(f"-label_smoothing {smoothing}")
    batch = models.batch()
    loss, stats = models.loss_of(model, opt, batch)
    log_probs, _ = run(model, batch)
    gold = batch.tgt[1:, :, 0]
    real = gold != models.PAD
    picked = log_probs.gather(2, gold.unsqueeze(2)).squeeze(2)[real]
    words = models.VOCABULARY
    others = log_probs[real].sum(1) - log_probs[real][:, models.PAD] - picked
    right = -((1 - smoothing) * picked + smoothing / (words - 2) * others).sum()
    torch.testing.assert_close(loss, right, rtol=0, atol=1e-11)
    assert_same_gradients(gradients(model, loss), gradients(model, right))
    assert stats.n_words == int(real.sum()) == sum(t + 1 for _, t in LENGTHS)
    assert stats.loss == pytest.approx(right.item(), abs=1e-10)
    assert stats.n_correct == int((log_probs.argmax(2) == gold)[real].sum())


def test_validation_has_no_smoothing():
    model, opt = models.model("-label_smoothing 0.1")
    batch = models.batch()
    loss, stats = models.loss_of(model, opt, batch, train=False)
    assert loss.item() == pytest.approx(stats.loss, abs=1e-10)
    assert models.loss_of(model, opt, batch)[0].item() != pytest.approx(stats.loss, abs=1e-3)


DETERMINISTIC = [
    "",
    "-rnn_type GRU -global_attention general",
    "-decoder_init encoder",
    "-attention marginal",
    "-attention hard -attention_estimator enum",
    "-attention variational -attention_estimator enum",
    "-attention variational -attention_estimator enum -posterior_rnn rnn -posterior_layers 2",
    "-attention variational -attention_estimator sparse -posterior_rnn mean",
    "-attention variational -posterior savi -svi_steps 3",
    "-null_alignment",
    "-attention marginal -null_alignment",
    "-attention variational -attention_estimator enum -null_alignment",
    "-attention variational -posterior svi -svi_steps 3 -null_alignment",
]
CELLS = [
    f"-attention {name}" + ("" if estimator == "none" else f" -attention_estimator {estimator}")
    for name, objective in OBJECTIVES.items()
    for estimator in objective.estimators
]


@pytest.mark.parametrize("flags", DETERMINISTIC)
def test_padding_does_not_matter(flags):
    model, opt = models.model(flags)
    loss, _ = models.loss_of(model, opt, models.batch())
    padded, _ = models.loss_of(model, opt, models.batch(pad_source=3, pad_target=4))
    torch.testing.assert_close(padded, loss, rtol=0, atol=1e-12)
    assert_same_gradients(gradients(model, padded), gradients(model, loss))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("flags", DETERMINISTIC)
def test_a_batch_is_the_sum_of_its_sentences_in_any_order(flags, train):
    model, opt = models.model(flags)
    batch = models.batch()
    loss, stats = models.loss_of(model, opt, batch, train)
    alone, sums = [], AlignmentStatistics()
    for n, (s, t) in reversed(list(enumerate(LENGTHS))):
        one = models.batch()
        one.src = (one.src[0][:s, n : n + 1], one.src[1][n : n + 1])
        one.tgt = one.tgt[: t + 2, n : n + 1]
        one_loss, one_stats = models.loss_of(model, opt, one, train)
        alone.append(one_loss)
        sums.update(one_stats)
    torch.testing.assert_close(sum(alone), loss, rtol=0, atol=1e-11)
    assert sums.metrics() == pytest.approx(stats.metrics(), abs=1e-10)
    assert (sums.n_words, sums.n_correct) == (stats.n_words, stats.n_correct)
    if train:
        assert_same_gradients(gradients(model, sum(alone)), gradients(model, loss))


def test_normalisation_and_shard_size():
    model, opt = models.model()
    batch = models.batch()
    source, lengths = batch.src
    compute = models.loss_compute(model, opt)
    whole, _ = compute(batch, *model(source, batch.tgt, lengths))
    shard, _ = compute(batch, *model(source, batch.tgt, lengths), normalization=4, shard_size=2)
    assert shard.item() == pytest.approx(whole.item() / 4, abs=1e-12)
    assert compute.padding_idx == models.PAD


def test_padded_positions_reach_neither_emission_nor_vocabulary():
    model, opt = models.model()
    batch = models.batch(pad_target=4)
    rows = []
    model.decoder.attention.readout.query.register_forward_hook(lambda _, args, __: rows.append(len(args[0])))
    models.loss_of(model, opt, batch)
    assert rows == [sum(t + 1 for _, t in LENGTHS)]


@pytest.mark.parametrize("flags", DETERMINISTIC)
def test_autocast_stays_close(flags):
    model, opt = models.model(flags, dtype=torch.float32)
    batch = models.batch()
    whole, _ = models.loss_of(model, opt, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow, _ = models.loss_of(model, opt, batch)
    narrow.backward()
    assert narrow.dtype == torch.float32
    assert narrow.item() != whole.item()
    assert narrow.item() == pytest.approx(whole.item(), rel=2e-2)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("flags", ["-attention marginal", "-attention variational -attention_estimator enum"])
def test_enumeration_holds_no_tensor_larger_than_a_chunk(flags, monkeypatch):
    """Every position has five alignments: a chunk of two positions, and nothing above it."""
    words = 400  # more than any other size here, so that logits stand out
    monkeypatch.setattr(models, "VOCABULARY", words)
    model, opt = models.model(flags)
    chunk = 2 * 5 * words
    model.decoder.attention.chunk_logits = chunk
    lengths = ((5, 6), (5, 6), (5, 6))
    parameters = {p.shape for p in model.parameters()} | {
        p.t().shape for p in model.parameters() if p.dim() == 2
    }
    with Largest(but=parameters) as largest:
        loss, _ = models.loss_of(model, opt, models.batch(lengths))
        loss.backward()
    assert largest.size == chunk


def test_validation_reports_the_exact_perplexity_below_its_bound():
    model, opt = models.model("-attention variational")
    _, stats = models.loss_of(model, opt, models.batch(), train=False)
    log_probs, _ = mixed(model, models.batch())
    gold = models.batch().tgt[1:, :, 0]
    real = gold != models.PAD
    right = -log_probs.gather(2, gold.unsqueeze(2)).squeeze(2)[real].sum().item()
    assert stats.loss == pytest.approx(right, abs=1e-10)
    metrics = stats.metrics()
    assert stats.ppl() < metrics["exp_elbo"]
    assert metrics["elbo"] == pytest.approx(-metrics["xent"] - metrics["kl"], abs=1e-12)
    assert stats.n_correct == int((log_probs.argmax(2) == gold)[real].sum())


def mixed(model, batch):
    model.decoder.mixture = Exact()
    return run(model, batch)


@pytest.mark.parametrize(
    ("flags", "mixture"),
    [
        ("-attention soft", SoftContext()),
        ("-attention soft -kmax 2", KMax(2)),
        ("-attention soft -test_attention exact", Exact()),
        ("-attention marginal -kmax 2", KMax(2)),
        ("-attention variational -test_attention soft", SoftContext()),
    ],
)
def test_validation_looks_at_the_alignments_it_is_told_to(flags, mixture):
    model, opt = models.model(flags)
    batch = models.batch()
    _, stats = models.loss_of(model, opt, batch, train=False)
    model.decoder.mixture = mixture
    log_probs, _ = run(model, batch)
    gold = batch.tgt[1:, :, 0]
    right = -log_probs.gather(2, gold.unsqueeze(2)).squeeze(2)[gold != models.PAD].sum().item()
    assert stats.loss == pytest.approx(right, abs=1e-10)


def test_the_posterior_sees_the_whole_target_and_the_prior_does_not():
    model, _ = models.model("-attention variational")
    batch = models.batch(lengths=((5, 4),))
    changed = models.batch(lengths=((5, 4),))
    changed.tgt[4, 0, 0] = 4 + (changed.tgt[4, 0, 0] - 3) % 8  # the last word before the end
    source, lengths = batch.src
    a, b = (model(source, each.tgt, lengths)[0] for each in (batch, changed))
    assert torch.equal(a.prior[0, :4], b.prior[0, :4])
    assert not torch.allclose(a.posterior[0, 0], b.posterior[0, 0], atol=1e-9)


def test_the_posterior_uses_the_models_own_embeddings():
    model, opt = models.model("-attention variational -attention_estimator enum")
    posterior = dict(model.posterior.named_parameters())
    assert not any("embedding" in name for name in posterior)
    loss, _ = models.loss_of(model, opt, models.batch())
    assert all(grad is not None and grad.abs().sum() > 0 for grad in gradients(model, loss).values())


def test_schedules():
    schedule = Schedule(10, 0.5, 20, 2.0, 1.0, 100)
    after_warm_up = (-9, 0, 10, 20, 89)
    assert [schedule.kl_weight_at(steps) for steps in after_warm_up] == [0, 0, 0.25, 0.5, 0.5]
    assert [schedule.temperature_at(step) for step in (0, 50, 100, 500)] == [2.0, 1.5, 1.0, 1.0]
    assert Schedule().kl_weight_at(1) == 1.0


def test_warm_up_ends_at_its_step():
    model, opt = models.model("-attention variational -attention_estimator enum -attention_warmup_steps 5")
    batch = models.batch()
    source, lengths = batch.src
    compute = models.loss_compute(model, opt)
    values = {}
    for step in (1, 5, 6):
        compute.step = step
        values[step] = compute(batch, *model(source, batch.tgt, lengths))[0].item()
    assert values[1] == values[5] != values[6]


def test_an_external_posterior_spreads_its_mass_over_the_links():
    from onmt_varattn.nmt.training.loss import external_posterior

    prior = torch.zeros(2, 3, 4, dtype=torch.float64)
    prior[1, :, 2:] = float("-inf")  # the second sentence has two words
    links = torch.tensor([[0, 1, 0], [0, 1, 3], [1, 2, 1]])
    found = external_posterior(links, prior, 0.2).exp()
    assert found[0, 0].tolist() == pytest.approx([0.45, 0.05, 0.05, 0.45])
    assert found[1, 1].tolist() == pytest.approx([0.1, 0.9, 0, 0])
    assert found[0, 2].tolist() == pytest.approx([0.25] * 4), "no link: uniform"
    assert found[1, 2].tolist() == pytest.approx([0.5, 0.5, 0, 0])


@pytest.mark.parametrize("flags", CELLS)
def test_null_is_trained_with_every_objective(flags):
    model, opt = models.model(f"{flags} -null_alignment")
    found = gradients(model, models.loss_of(model, opt, models.batch())[0])
    nulls = [name for name in found if name.endswith(".null")]
    assert len(nulls) == 1 + OBJECTIVES[opt.attention].has_posterior
    for name in nulls:
        assert torch.isfinite(found[name]).all()
        assert found[name].abs().max() > 1e-9, name


def test_words_without_links_have_an_external_posterior_at_null():
    from onmt_varattn.nmt.training.loss import external_posterior

    prior = torch.zeros(2, 3, 4, dtype=torch.float64)
    prior[1, :, 1:3] = float("-inf")  # the second sentence has one word, and NULL
    links = torch.tensor([[0, 1, 0], [0, 1, 2], [1, 2, 0]])
    found = external_posterior(links, prior, 0.2, null=True).exp()
    assert found[0, 0].tolist() == pytest.approx([0.45, 0.05, 0.45, 0.05])
    assert found[0, 2].tolist() == pytest.approx([0.05, 0.05, 0.05, 0.85])
    assert found[1, 0].tolist() == pytest.approx([0.1, 0, 0, 0.9])
    assert found[1, 1].tolist() == pytest.approx([0.9, 0, 0, 0.1])


def test_the_bound_of_an_external_posterior_with_null_is_that_of_a_plain_loop():
    flags = "-attention variational -posterior external -attention_estimator enum -posterior_smoothing 0.2"
    model, opt = models.model(f"{flags} -null_alignment")
    batch = models.batch()
    batch.align = torch.tensor([[0, 1, 0], [0, 1, 3], [1, 2, 1], [2, 3, 1]])  # target words from 1
    found, _ = models.loss_of(model, opt, batch)
    linked = {(0, 0): [0, 3], (1, 1): [1], (2, 2): [1]}  # sentence and target position, from 0
    right = 0.0
    for n, (s, t) in enumerate(LENGTHS):
        words = batch.tgt[:, n, 0]
        each = [plain_decode(model, opt, batch.src[0][:s, n, 0], words[: t + 1], at(i)) for i in range(s + 1)]
        l = torch.stack([log_probs.gather(1, words[1 : t + 2, None])[:, 0] for log_probs, _ in each], 1)
        p = each[0][1]
        for j in range(t + 1):
            targets = linked.get((n, j), [s])
            q = torch.full((s + 1,), 0.2 / (s + 1), dtype=torch.float64)
            q[targets] += 0.8 / len(targets)
            right -= (q * (l[j] + p[j].log() - q.log())).sum()
    torch.testing.assert_close(found, right, rtol=0, atol=1e-11)
    assert_same_gradients(gradients(model, found), gradients(model, right))


def at(position):
    """Words as if they came from one source position."""
    return lambda model, query, _, memory: torch.log_softmax(logits(model, query, memory[position]), 0)


@pytest.mark.parametrize(
    ("flags", "first"),
    [
        ("-attention variational", "soft"),
        ("-attention variational -attention_warmup hard", "hard -attention_estimator enum"),
        ("-attention variational -attention_warmup marginal", "marginal"),
        ("-attention relaxed", "soft"),
        ("-attention relaxed -attention_warmup hard", "hard -attention_estimator enum"),
    ],
)
def test_the_warm_up_trains_the_objective_it_is_told_to(flags, first):
    """Up to the divergence of the posterior, which is reported."""
    model, opt = models.model(f"{flags} -attention_warmup_steps 5")
    _, found = models.loss_of(model, opt, models.batch())
    simple, simple_opt = models.model(f"-attention {first}")
    simple.load_state_dict(model.state_dict(), strict=False)
    _, right = models.loss_of(simple, simple_opt, models.batch())
    assert found.loss == pytest.approx(right.loss, rel=1e-12)


def test_a_new_estimator_is_an_option_with_the_settings_its_class_declares(capsys):
    trained = {}
    with new_estimator() as name:
        for estimator in ("enum", name):
            model, opt = models.model(f"-attention variational -attention_estimator {estimator}")
            assert opt.attention_top == (3 if estimator == name else None)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                models.loss_of(model, opt, models.batch())[0].backward()
                optimizer.step()
            trained[estimator] = model.state_dict()
        for refused in ("variational -attention_samples 3", "variational -baseline soft", "hard"):
            with pytest.raises(UserError, match="does not go with"):
                models.options(f"{models.SMALL} -attention_estimator {name} -attention {refused}")
    for key, value in trained["enum"].items():
        torch.testing.assert_close(trained[name][key], value, rtol=0, atol=1e-11)
    with pytest.raises(SystemExit):
        models.options(f"-attention variational -attention_estimator {name}")
    assert f"invalid choice: '{name}'" in capsys.readouterr().err


def test_smoothing_has_the_gradient_of_opennmts():
    states, weight, bias, gold = inputs(torch.float32)
    loss = gold_words(states, weight, bias, gold, 0.1, PAD).loss
    stock = LabelSmoothingLoss(0.1, V, ignore_index=PAD)(
        torch.log_softmax(states @ weight.t() + bias, dim=1), gold
    )
    for grad, right in zip(
        torch.autograd.grad(loss, (states, weight, bias)),
        torch.autograd.grad(stock, (states, weight, bias)),
        strict=True,
    ):
        torch.testing.assert_close(grad, right, rtol=1e-4, atol=1e-5)


def test_weights_grow_from_the_end_of_an_automatic_warm_up():
    """The KL's weight is counted from the switch: at step 60, 10 steps after it, half of 20."""
    flags = (
        "-attention variational -attention_estimator enum -attention_warmup_steps auto -kl_warmup_steps 20"
    )
    model, opt = models.model(flags)
    batch = models.batch()
    source, lengths = batch.src

    def loss(end, step, weight=None):
        compute = models.loss_compute(model, opt)
        compute.scheduled.warm_up_end, compute.step = end, step
        if weight is not None:
            compute.scheduled.schedule = Schedule(0, weight)
        return compute(batch, *model(source, batch.tgt, lengths))[0].item()

    assert loss(50, 60) == pytest.approx(loss(0, 60, weight=0.5), rel=1e-12)
    assert loss(50, 60) != pytest.approx(loss(0, 60, weight=1.0), rel=1e-6)
