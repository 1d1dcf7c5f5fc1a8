"""Whether alignments say anything: by plain loops, as training counts it, and on matrices made by hand."""

import math

import pytest
import torch

from onmt_varattn.analysis.informative import LEAST, Informative
from onmt_varattn.latent.positions import mutual_information, uniform_entropy
from onmt_varattn.nmt.model.reading import Reader
from onmt_varattn.training.health import SAME, UNIFORM
from tests import models
from tests.unit.test_reading import PAIRS


def summed(*matrices, times=10):
    """Sums over some sentence pairs, each many times."""
    informative = Informative()
    for probs in matrices * times:
        informative.add(probs)
    return informative


def diagonal(words, undecided=0.0):
    """Each target word has a source word of its own; the rest of its mass is anywhere."""
    return (1 - undecided) * torch.eye(words) + undecided / words


def one_for_all(target, source):
    return torch.eye(source)[:1].expand(target, -1)


def test_sums_are_those_of_plain_loops():
    probs = torch.rand(4, 6, generator=torch.manual_seed(2)).double()
    probs /= probs.sum(1, keepdim=True)

    def entropy(row):
        return -sum(p * math.log(p) for p in row)

    rows = probs.tolist()
    used = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    found, each = summed(probs, times=3), sum(map(entropy, rows))
    assert found.entropy == pytest.approx(3 * each, rel=1e-12)
    assert found.information == pytest.approx(3 * (len(rows) * entropy(used) - each), rel=1e-9)
    assert found.largest == pytest.approx(3 * len(rows) * math.log(6), rel=1e-12)


@pytest.mark.parametrize("flags", ["", "-null_alignment"])
@pytest.mark.parametrize("kind", ["prior", "posterior", "exact"])
def test_sums_are_those_of_training(kind, flags):
    model, _ = models.model(f"-attention variational {flags}")
    found, right = Informative(), torch.zeros(3).double()
    for reading in Reader(model, models.fields(), batch_size=3).read(PAIRS):
        probs = reading.distribution(kind).probs
        for matrix in reading.by_sentence(probs):
            found.add(matrix)
        right += torch.stack(
            [
                torch.special.entr(probs).sum(),
                mutual_information(reading.positions, probs).sum(),
                uniform_entropy(reading.positions.prior).sum(),
            ]
        )
    assert [found.entropy, found.information, found.largest] == pytest.approx(right.tolist(), rel=1e-9)


def test_uniform_alignments_are_found():
    found = summed(torch.full((7, 9), 1 / 9), torch.full((5, 4), 1 / 4)).finding("prior")
    assert found == (
        "the alignments of the prior are uniform (entropy 1.00 of the maximum): the model ignores the source, "
        'and its alignments carry no information; see the training page, "Failed runs"'
    )


@pytest.mark.parametrize("kind", ["prior", "posterior", "exact posterior"])
def test_one_position_for_all_words_is_found(kind):
    found = summed(one_for_all(7, 9), one_for_all(5, 4)).finding(kind.split()[0])
    assert found.startswith(
        f"the alignments of the {kind} are the same for all words of a sentence (mutual information 0.00 of the "
        "maximum): "
    )


def test_sharp_alignments_that_differ_are_no_finding():
    assert summed(diagonal(9), diagonal(5, undecided=0.3)).finding("prior") is None
    assert summed(diagonal(9)[:, torch.randperm(9)]).relative_information == pytest.approx(1)


@pytest.mark.parametrize("other", ["uniform", "same"])
def test_the_thresholds_are_those_of_training(other):
    """From a source word of its own for each word, step by step, to what is no alignment."""
    to = torch.full((9, 9), 1 / 9) if other == "uniform" else one_for_all(9, 9)
    found = [summed(torch.lerp(torch.eye(9), to, share / 50)) for share in range(51)]
    for one in found:
        finding = one.finding("prior") or ""
        assert ("uniform" in finding) == (one.relative_entropy > UNIFORM)
        assert bool(finding) == (one.relative_entropy > UNIFORM or one.relative_information < SAME)
    first, last = found[0].finding("prior"), found[-1].finding("prior")
    assert first is None
    assert other in last


def test_too_little_text_is_not_judged():
    uniform = torch.full((9, 9), 1 / 9)
    assert summed(uniform, times=1).finding("prior") is None
    enough = math.ceil(LEAST / (9 * math.log(9)))
    assert summed(uniform, times=enough - 1).finding("prior") is None
    assert summed(uniform, times=enough).finding("prior") is not None


def test_without_a_choice_there_is_nothing_to_judge():
    for nothing in (Informative(), summed(torch.ones(3, 1), times=1000)):
        assert nothing.finding("prior") is None
        assert nothing.relative_entropy == nothing.relative_information == 0


def test_single_target_words_are_judged_by_their_entropy_alone():
    assert summed(one_for_all(1, 9), times=100).finding("prior") is None
    assert "uniform" in summed(torch.full((1, 9), 1 / 9), times=100).finding("prior")
