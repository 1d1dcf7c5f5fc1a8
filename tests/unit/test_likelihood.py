"""The gold word's log-likelihood, against the plain way with all logits at once."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onmt_varattn.latent.likelihood import Candidates, Cells, OutputLayer, Pairs, marginalise, maximise
from onmt_varattn.latent.readout import Readout

R, D, V, PAD = 23, 6, 17, 1

pytestmark = pytest.mark.torch_only


class Sum(Readout):
    """The readout is taken out of the way."""

    def forward(self, query_parts, context_parts):
        return query_parts + context_parts


def cells(states, gold):
    """One candidate a position, whose state is given: the emission is taken out of the way."""
    candidates = Candidates(contexts=torch.zeros(R, 1, 1))
    pairs = Pairs.of(candidates, R, states.device)
    return Cells(
        states,
        torch.zeros(1, D, dtype=states.dtype),
        torch.zeros(R, dtype=torch.long),
        pairs,
        1,
        gold,
        Sum(D, D),
    )


class Found:
    def __init__(self, loss, log_likelihood, correct):
        self.loss, self.log_likelihood, self.correct = loss, log_likelihood, correct


def gold_words(states, weight, bias, gold, smoothing=0.0, unpredicted=None, chunk_logits=2**22):
    """-sum l by way of `maximise`, and what the bound saw."""
    seen = []

    def bound(l, correct, chunk, rows):
        seen.append((l.detach(), correct))
        return l.sum()

    output = OutputLayer(weight, bias, smoothing, unpredicted)
    loss = maximise(bound, output, cells(states, gold), (), chunk_logits)
    l, correct = (torch.cat(parts).squeeze(1) for parts in zip(*seen, strict=True))
    return Found(loss, l, correct)


def inputs(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((R, D), (V, D), (V,))
    ]
    return *tensors, torch.randint(2, V, (R,), generator=generator)


def plain(states, weight, bias, gold, smoothing):
    """Cross-entropy to the smoothed targets, written out."""
    log_probs = torch.log_softmax(states @ weight.t() + bias, dim=1)
    target = torch.full_like(log_probs, smoothing / (V - 2))
    target[:, PAD] = 0
    target.scatter_(1, gold.unsqueeze(1), 1 - smoothing)
    return -(target * log_probs).sum(), log_probs


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 3 * V, 1000 * V])
def test_value_and_gradient_equal_the_plain_way(smoothing, chunk):
    states, weight, bias, gold = inputs()
    found = gold_words(states, weight, bias, gold, smoothing, PAD, chunk)
    loss, log_probs = plain(states, weight, bias, gold, smoothing)
    torch.testing.assert_close(found.loss, loss, rtol=0, atol=1e-11)
    if not smoothing:
        right = log_probs[torch.arange(R), gold].detach()
        torch.testing.assert_close(found.log_likelihood, right, rtol=0, atol=1e-12)
    assert torch.equal(found.correct, log_probs.argmax(1) == gold)
    grads = torch.autograd.grad(2.5 * found.loss, (states, weight, bias))
    expected = torch.autograd.grad(2.5 * loss, (states, weight, bias))
    for grad, right in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, right, rtol=0, atol=1e-12)


def test_gradient_by_finite_differences():
    states, weight, bias, gold = inputs()
    assert torch.autograd.gradcheck(
        lambda *x: gold_words(*x, gold, 0.1, PAD, 5 * V).loss, (states, weight, bias)
    )


def test_smoothing_without_an_unpredicted_word_sums_to_one():
    states, weight, bias, gold = inputs()
    found = gold_words(states, weight, bias, gold, 0.1, None)
    log_probs = torch.log_softmax(states @ weight.t() + bias, dim=1)
    target = torch.full_like(log_probs, 0.1 / (V - 1)).scatter_(1, gold.unsqueeze(1), 0.9)
    torch.testing.assert_close(found.loss, -(target * log_probs).sum(), rtol=0, atol=1e-11)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation made."""

    def __init__(self, but):
        super().__init__()
        self.but, self.size = but, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.shape not in self.but:
                self.size = max(self.size, tensor.numel())
        return out


def test_no_tensor_is_larger_than_a_chunk():
    states, weight, bias, gold = inputs()
    parameters = {weight.shape, weight.t().shape, states.shape}
    with Largest(but=parameters) as largest:
        gold_words(states, weight, bias, gold, 0.1, PAD, 4 * V).loss.backward()
    assert largest.size == 4 * V
    with Largest(but=parameters) as largest:
        plain(states, weight, bias, gold, 0.1)
    assert largest.size == R * V


def test_nothing_is_kept_without_gradients():
    states, weight, bias, gold = inputs()
    with torch.no_grad():
        found = gold_words(states, weight, bias, gold)
    assert not found.loss.requires_grad
    assert found.loss.item() == pytest.approx(gold_words(states, weight, bias, gold).loss.item(), abs=1e-12)


def test_autocast_computes_products_in_bfloat16_and_sums_in_float32():
    states, weight, bias, gold = inputs(torch.float32)
    exact = gold_words(states, weight, bias, gold)
    expected = torch.autograd.grad(exact.loss, (states, weight, bias))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = gold_words(states, weight, bias, gold, chunk_logits=4 * V)
    grads = torch.autograd.grad(narrow.loss, (states, weight, bias))
    assert narrow.loss.dtype == torch.float32
    assert narrow.loss.item() != exact.loss.item()
    torch.testing.assert_close(narrow.loss, exact.loss, rtol=2e-2, atol=0)
    for grad, right in zip(grads, expected, strict=True):
        assert grad.dtype == torch.float32
        assert (grad - right).norm() < 2e-2 * right.norm()


def test_a_chunk_holds_whole_positions_and_no_more_than_it_may():
    real = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 0]]).bool()
    pairs = Pairs.of(Candidates(index=torch.arange(3).expand(5, 3), real=real), 5, real.device)
    assert pairs.position.tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 3, 4]
    assert pairs.candidate.tolist() == [0, 1, 2, 0, 0, 1, 0, 1, 2, 1]
    assert [(c.start, c.stop) for c in pairs.chunks(4)] == [(0, 2), (2, 3), (3, 5)]
    assert [(c.start, c.stop) for c in pairs.chunks(1)] == [(i, i + 1) for i in range(5)]
    assert [(c.start, c.stop) for c in pairs.chunks(100)] == [(0, 5)]


@pytest.mark.parametrize("chunk", [1, 3 * V, 1000 * V])
def test_the_mixtures_most_probable_word_is_found(chunk):
    """Two candidates a position, weighted; the mixture written out."""
    generator = torch.Generator().manual_seed(5)
    states = torch.randn(R, 2, D, generator=generator, dtype=torch.float64)
    _, weight, bias, gold = inputs()
    log_weights = torch.log_softmax(torch.randn(R, 2, generator=generator, dtype=torch.float64), 1)
    candidates = Candidates(index=torch.zeros(R, 2, dtype=torch.long))
    pairs = Pairs.of(candidates, R, states.device)
    mixed = Cells(
        torch.zeros(R, D, dtype=torch.float64),
        states.flatten(0, 1),
        torch.arange(2 * R),
        pairs,
        2,
        gold,
        Sum(D, D),
    )
    found = marginalise(OutputLayer(weight, bias), mixed, log_weights, chunk)
    probs = (log_weights.exp().unsqueeze(2) * torch.softmax(states @ weight.t() + bias, 2)).sum(1)
    right = probs[torch.arange(R), gold].log()
    torch.testing.assert_close(found.log_marginal, right.detach(), rtol=0, atol=1e-12)
    assert torch.equal(found.correct, probs.argmax(1) == gold)
    assert 0 < found.correct.sum() < R


@pytest.mark.parametrize(("positions", "each", "most"), [(160, 14, 418), (480, 1, 418), (7, 3, 4), (5, 9, 4)])
def test_chunks_are_about_equally_long(positions, each, most):
    candidates = Candidates(index=torch.zeros(positions, each, dtype=torch.long))
    pairs = Pairs.of(candidates, positions, torch.device("cpu"))
    sizes = [(chunk.stop - chunk.start) * each for chunk in pairs.chunks(most)]
    assert sum(sizes) == positions * each
    assert max(sizes) <= max(most, each)
    assert len(sizes) == -(-positions // max(1, most // each))  # no more than it takes
    assert max(sizes) - min(sizes) <= each * len(sizes)
