"""The loss computer: right, and blind to padding, batch composition and order."""

import pytest
import torch

from tests import models
from tests.unit.test_decoder import run

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


@pytest.mark.parametrize("flags", ["", "-rnn_type GRU -global_attention general", "-decoder_init encoder"])
def test_padding_does_not_matter(flags):
    model, opt = models.model(flags)
    loss, _ = models.loss_of(model, opt, models.batch())
    padded, _ = models.loss_of(model, opt, models.batch(pad_source=3, pad_target=4))
    torch.testing.assert_close(padded, loss, rtol=0, atol=1e-12)
    assert_same_gradients(gradients(model, padded), gradients(model, loss))


def test_a_batch_is_the_sum_of_its_sentences_in_any_order():
    model, opt = models.model()
    batch = models.batch()
    loss, _ = models.loss_of(model, opt, batch)
    alone = []
    for n, (s, t) in reversed(list(enumerate(LENGTHS))):
        one = models.batch()
        one.src = (one.src[0][:s, n : n + 1], one.src[1][n : n + 1])
        one.tgt = one.tgt[: t + 2, n : n + 1]
        alone.append(models.loss_of(model, opt, one)[0])
    torch.testing.assert_close(sum(alone), loss, rtol=0, atol=1e-11)
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
    model.decoder.emission.query.register_forward_hook(lambda _, args, __: rows.append(len(args[0])))
    models.loss_of(model, opt, batch)
    assert rows == [sum(t + 1 for _, t in LENGTHS)]


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_autocast_stays_close(dtype):
    model, opt = models.model(dtype=torch.float32)
    batch = models.batch()
    exact, _ = models.loss_of(model, opt, batch)
    with torch.autocast("cpu", dtype=dtype):
        narrow, _ = models.loss_of(model, opt, batch)
    narrow.backward()
    assert narrow.item() != exact.item()
    assert narrow.item() == pytest.approx(exact.item(), rel=1e-2)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
