"""The automatic start: what it measures, when it takes alignments for formed, and what it saves."""

import math
import random

import pytest
import torch

from onmt_varattn.latent import objectives
from onmt_varattn.latent.estimators import Enum
from onmt_varattn.latent.objectives import STALLED, Formation, Schedule, ScheduledObjective, Variational
from onmt_varattn.latent.positions import Positions, mutual_information, uniform_entropy
from tests.worlds import memory_of

pytestmark = pytest.mark.torch_only


def positions(lengths, width, seed=0):
    """Positions of sentences with (source, target) lengths, time first, with random prior scores."""
    steps = max(target for _, target in lengths)
    place = [
        t * len(lengths) + n for t in range(steps) for n, (_, target) in enumerate(lengths) if t < target
    ]
    generator = torch.Generator().manual_seed(seed)
    prior = 3 * torch.randn(len(place), width, generator=generator, dtype=torch.float64)
    for row, where in enumerate(place):
        prior[row, lengths[where % len(lengths)][0] :] = -math.inf
    rows = torch.zeros(len(place), 2, dtype=torch.float64)
    memory = torch.zeros(len(lengths), width, 2, dtype=torch.float64)
    gold = torch.zeros(len(place), dtype=torch.long)
    sentence, step = (
        torch.tensor(x) for x in zip(*((p % len(lengths), p // len(lengths)) for p in place), strict=True)
    )
    return Positions(rows, rows, prior, None, memory_of(memory), sentence, step, steps, gold)


def by_hand(batch):
    """The information of each row's sentence, from the joint distribution of target and source position."""
    found = torch.zeros(len(batch.prior), dtype=torch.float64)
    for n in range(batch.memory.sentences):
        rows = [i for i, sentence in enumerate(batch.sentence.tolist()) if sentence == n]
        joint = torch.stack([batch.prior[i].softmax(-1) for i in rows]) / len(rows)  # T x S, sums to 1
        p_target, p_source = joint.sum(1), joint.sum(0)
        total = sum(
            float(joint[t, s] * (joint[t, s] / (p_target[t] * p_source[s])).log())
            for t in range(len(rows))
            for s in range(joint.size(1))
            if joint[t, s] > 0
        )
        found[rows] = total
    return found


LENGTHS = [(5, 4), (3, 6), (2, 2), (1, 3)]


def test_information_is_that_of_the_joint_distribution():
    batch = positions(LENGTHS, 5)
    found = mutual_information(batch, batch.prior.softmax(-1))
    right = by_hand(batch)
    for n in range(len(LENGTHS)):
        rows = batch.sentence == n
        assert float(found[rows].sum()) == pytest.approx(float(right[rows].sum()), abs=1e-12)


def test_information_does_not_depend_on_padding_or_on_other_sentences():
    narrow, wide = positions([(5, 4), (3, 6)], 5), positions([(5, 4), (3, 6)], 9)
    wide.prior[:, :5] = narrow.prior
    one, other = (mutual_information(b, b.prior.softmax(-1)) for b in (narrow, wide))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert torch.equal(uniform_entropy(narrow.prior), uniform_entropy(wide.prior))


@pytest.mark.parametrize(
    ("scores", "right"),
    [
        (torch.zeros(4, 4), 0.0),  # uniform
        (torch.tensor([[50.0, 0, 0, 0]]).expand(4, 4), 0.0),  # one position for all words
        (50 * torch.eye(4), math.log(4)),  # one each
        (50 * torch.eye(4)[[0, 0, 1, 1]], math.log(2)),  # two of them share
    ],
)
def test_information_of_known_alignments(scores, right):
    batch = positions([(4, 4)], 4)
    batch.prior = scores.double()
    found = mutual_information(batch, batch.prior.softmax(-1))
    assert float(found.mean()) == pytest.approx(right, abs=1e-9)


def test_a_single_position_tells_how_far_it_is_from_uniform():
    batch = positions([(4, 1)], 4)
    batch.prior = torch.tensor([[50.0, 50, 0, 0]], dtype=torch.float64)
    assert float(mutual_information(batch, batch.prior.softmax(-1))) == pytest.approx(math.log(2), abs=1e-9)


def formed_at(curve, steps):
    """The step at which a curve of relative information counts as formed; None if it never does."""
    formation = Formation()
    for step in range(1, steps + 1):
        formation.add(50 * curve(step), 50.0)
        if formation.has_formed:
            return step
    return None


def rising(middle, width, top=0.6):
    return lambda step: top / (1 + math.exp((middle - step) / width))


@pytest.mark.parametrize("scale", [1, 7, 40])
def test_alignments_have_formed_when_their_curve_has_levelled_off(scale):
    """Whatever the number of steps that takes: twice as slow a run switches twice as late."""
    found = formed_at(rising(200 * scale, 30 * scale), 2000 * scale)
    assert 250 * scale < found < 600 * scale


def test_noise_of_batches_changes_little():
    clear = formed_at(rising(1000, 150), 10_000)
    for seed in range(20):
        noise = random.Random(seed)
        noisy = formed_at(lambda step, n=noise: rising(1000, 150)(step) * n.uniform(0.7, 1.3), 10_000)
        assert abs(noisy - clear) < 0.35 * clear


@pytest.mark.parametrize(
    "curve",
    [
        lambda step: 0.0,  # uniform, or all words alike
        lambda step: 0.3 * math.exp(-step / 15),  # a transient of the first steps
        lambda step: 0.8 / (1 + step / 20) ** 2,  # falling
        lambda step: 0.1,
        lambda step: 0.6 * step / 3000,  # still rising
    ],
)
def test_alignments_that_have_not_formed_are_waited_for(curve):
    assert formed_at(curve, 2900) is None


def test_sentences_of_one_source_word_say_nothing():
    formation = Formation()
    for _ in range(100):
        formation.add(0.0, 0.0)
    assert formation.level is None


@pytest.mark.parametrize("steps", [1, 63, 64, 100, 517])
def test_the_curve_goes_on_from_its_saved_state(steps):
    whole, resumed = Formation(), Formation()
    curve = [(random.Random(i).uniform(0, 1), 2.0) for i in range(steps + 300)]
    for point in curve[:steps]:
        whole.add(*point)
    resumed.load_state_dict(whole.state_dict())
    for point in curve[steps:]:
        whole.add(*point)
        resumed.add(*point)
        assert whole.has_formed == resumed.has_formed
    assert resumed.state_dict() == whole.state_dict()
    assert len(whole.blocks) < objectives.BLOCKS


def scheduled(**settings):
    return ScheduledObjective(Variational(Enum()), Schedule(**settings))


@pytest.mark.parametrize(
    "damage",
    [
        {"blocks": "x"},
        {"blocks": [0.1] * 64},
        {"blocks": [None]},
        {"steps": 0},
        {"steps": 1.5},
        {"count": -1},
        {"count": 9},
        {"sums": [1.0]},
    ],
)
def test_a_damaged_curve_is_refused(damage):
    with pytest.raises(ValueError, match="damaged"):
        Formation().load_state_dict({**Formation().state_dict(), **damage})


@pytest.mark.parametrize("end", [-1, "x", 2.5, True])
def test_a_damaged_end_is_refused(end):
    some = scheduled(warm_up_steps=None)
    with pytest.raises(ValueError, match="damaged"):
        some.load_start_state({**some.start_state(), "end": end})


def test_the_posterior_must_follow_the_prior():
    """The prior has formed from the beginning; the posterior knows nothing until step 300."""
    some = scheduled(warm_up_steps=None)
    assert some.watched == ("uniform_entropy", "prior_information", "posterior_information")
    ends = []
    for step in range(1, 1001):
        some.step = step
        if some.watch(1.0, 0.6, 0.5 if step > 300 else 0.01):
            ends.append(step)
    assert len(ends) == 1
    assert ends[0] > 300
    assert some.warm_up_end == ends[0]
    assert not some.warming_up


def test_a_warm_up_that_brings_nothing_ends():
    some = scheduled(warm_up_steps=None)
    some.step = 50
    falling = [some.validated(perplexity) for perplexity in (9.0, 8.0, 8.5, 7.0)]
    assert not any(falling), "it still gets better"
    stalled = [some.validated(7.5) for _ in range(STALLED)]
    assert stalled == [False] * (STALLED - 1) + [True]
    assert some.warm_up_end == 50
    assert "have not formed" in some.why_it_ended
    assert not some.validated(9.0), "there is nothing left to end"


def test_a_given_number_of_steps_is_kept_whatever_the_alignments():
    some = scheduled(warm_up_steps=5)
    ends = []
    for step in range(1, 200):
        some.step = step
        ends.append(some.watch(1.0, 0.6, 0.6))
    assert ends.index(True) == 4
    assert sum(ends) == 1
    assert some.start_state() is None
