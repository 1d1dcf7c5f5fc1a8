"""What a step computes: which matrix products, how large, and no tensor above the chunk bound."""

import pytest
import torch
from entmax import entmax15
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.arithmetic import CANDIDATES, WITH_BASELINE, needed
from benchmarks.shapes import STOCK, TRAINED, Shape
from onmt_varattn.latent.likelihood import CHUNK_LOGITS
from tests import models
from tests.unit.test_likelihood import Largest

SYSTEMS = [name for name in TRAINED if name not in STOCK and "sparse" not in name]
aten = torch.ops.aten


def build(system, words, monkeypatch):
    """A model of the sizes of `models.SMALL`, in float64: torch's LSTM is then made of plain products."""
    monkeypatch.setattr(models, "VOCABULARY", words)
    return models.model(TRAINED[system])


class Products(TorchDispatchMode):
    """The sizes of all matrix products: rows, inner size, columns."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (aten.mm, aten.addmm, aten.addmm_):
            a, b = args[-2:]
            self.sizes.append((*a.shape, b.size(1)))
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Floating-point operations by torch's own formulas.

    torch's FlopCounterMode also follows modules, and stumbles over those called without gradients.
    """

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        packet = aten.addmm if func.overloadpacket is aten.addmm_ else func.overloadpacket
        if packet in flop_registry:
            self.total += flop_registry[packet](*args, out_val=out)
        return out


LENGTHS = ((9, 4), (6, 7), (6, 1), (3, 5))  # source, target; with </s> a target has one more


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_vocabulary_is_multiplied_thrice_a_real_candidate_and_once_a_baseline(system, monkeypatch):
    words = 101
    model, opt = build(system, words, monkeypatch)
    with Products() as products:
        models.loss_of(model, opt, models.batch(LENGTHS))[0].backward()
    positions = sum(t + 1 for _, t in LENGTHS)
    candidates = round(CANDIDATES.get(system, 0) * positions) or sum(s * (t + 1) for s, t in LENGTHS)
    if "sum_and_sample" in system:  # the shortest source has only three positions to sum and none to draw
        candidates -= sum(t + 1 for s, t in LENGTHS if s <= 3)
    size = opt.dec_rnn_size
    expected = [(candidates, size, words), (words, candidates, size), (candidates, words, size)]
    if system in WITH_BASELINE:
        expected = [(positions, size, words), *expected]
    assert [product for product in products.sizes if words in product] == expected


def test_enumeration_takes_what_a_sparse_posterior_leaves(monkeypatch):
    words = 101
    model, opt = build("variational sparse", words, monkeypatch)
    seen = []
    plain = model.posterior.forward
    monkeypatch.setattr(model.posterior, "forward", lambda *args: seen.append(5 * plain(*args)) or seen[0])
    batch = models.batch(LENGTHS)
    with Products() as products:
        models.loss_of(model, opt, batch)[0].backward()
    real = batch.tgt[1:, :, 0].t() != models.PAD
    left = int((entmax15(seen[0], dim=-1) > 0)[real].sum())
    assert left < sum(s * (t + 1) for s, t in LENGTHS)
    assert {product[0] for product in products.sizes if product[2] == words} == {left}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_step_has_no_products_but_those_needed(system, monkeypatch):
    """All lengths equal. Slightly fewer than counted: the first step has no gradient to pass back."""
    sentences, source, target, words = 3, 8, 12, 60
    model, opt = build(system, words, monkeypatch)
    batch = models.batch(((source, target - 1),) * sentences)
    with Operations() as operations:
        models.loss_of(model, opt, batch)[0].backward()
    shape = Shape(words, sentences, source, target, 1, 5, opt.enc_rnn_size, opt.dec_rnn_size, 4)
    least = needed(system, shape)
    assert 0.9 * least < operations.total <= least


@pytest.mark.parametrize("system", ["marginal", "variational enum", "variational rws, 5 samples"])
def test_no_tensor_of_a_step_is_larger_than_a_chunk(system, monkeypatch):
    words, lengths = 3000, ((40, 24),) * 3
    model, opt = build(system, words, monkeypatch)
    assert 3 * 25 * 40 * words > 2 * CHUNK_LOGITS  # what all logits at once would be
    with Largest(but=()) as largest:
        models.loss_of(model, opt, models.batch(lengths))[0].backward()
    assert largest.size <= CHUNK_LOGITS
