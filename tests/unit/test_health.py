"""What a run's own numbers say of it, and what they do not say."""

import pytest

from onmt_varattn.training import health
from onmt_varattn.training.health import Health

WELL = {
    "ppl": 8.0,
    "soft_ppl": 9.0,
    "prior_entropy": 1.2,
    "relative_entropy": 0.45,
    "posterior_entropy": 0.8,
    "prior_information": 0.5,
    "posterior_information": 0.6,
    "kl": 0.3,
    "reward_variance": 2.0,
    "at_bounds": 0.0,
}


def judge(changes, step=2000, warming_up=False, validation=True, attention="variational"):
    some = Health(attention, "soft", automatic=True)
    return some.judge(step, {**WELL, **changes}, warming_up, validation)


def test_a_healthy_run_is_left_in_peace():
    assert judge({}) == []
    assert judge({}, validation=False) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"relative_entropy": 0.97, "prior_entropy": 2.6}, "alignments are uniform after 2,000 steps"),
        ({"prior_information": 0.02}, "attend to the same source positions after 2,000 steps"),
        ({"relative_entropy": 0.85, "kl": 0.002}, "posterior and prior are equal"),
        ({"posterior_entropy": 0.05, "posterior_information": 0.01}, "collapsed to one source position"),
        ({"at_bounds": 0.4}, "40% of the concentrations are at their bounds"),
        ({"ppl": 9.5}, "that of soft attention with the same parameters"),
    ],
)
def test_a_sick_run_is_told_what_is_wrong(changes, words):
    (finding,) = judge(changes)
    assert words in finding
    assert "\n" not in finding


@pytest.mark.parametrize(
    "changes",
    [
        {"kl": 0.002},  # the posterior adds nothing, but the prior has decided
        {"posterior_entropy": 0.05},  # sharp, and each word has its own position
        {"posterior_information": 0.01},  # undecided: that is no collapse
        {"ppl": 9.1},
        {"prior_information": 0.15, "relative_entropy": 0.85},  # forming
    ],
)
def test_what_looks_like_it_but_is_not(changes):
    assert judge(changes) == []


def test_rewards_explode_relative_to_the_run_itself():
    some = Health("variational", "soft", automatic=True)
    told = [
        some.judge(100 * i, {**WELL, "reward_variance": variance}, warming_up=False)
        for i, variance in enumerate((30.0, 3.0, 20.0, 40.0, 50.0, 4.0, 60.0))
    ]
    assert [bool(findings) for findings in told] == [False, False, False, True, False, False, True]
    assert "from 3.0 to 40.0" in told[3][0]


def test_uniform_alignments_are_no_news_in_the_first_steps():
    assert judge({"relative_entropy": 0.99}, step=health.AFTER - 1, warming_up=True) == []


def test_the_warm_up_is_judged_by_its_alignments_alone():
    assert judge({"kl": 0.0, "relative_entropy": 0.88, "ppl": 99.0}, warming_up=True) == []
    (finding,) = judge({"relative_entropy": 0.99}, warming_up=True)
    assert "soft attention continues until they form" in finding


def test_a_finding_is_repeated_with_validations_only():
    some = Health("variational", "soft", automatic=True)
    sick = {**WELL, "kl": 0.001, "relative_entropy": 0.89}
    told = [len(some.judge(2000, sick, warming_up=False, validation=v)) for v in (False, False, True, False)]
    assert told == [1, 0, 1, 0]
    assert some.judge(2000, WELL, warming_up=False) == []
    assert len(some.judge(2000, sick, warming_up=False)) == 1, "it is back"


def test_numbers_that_are_not_reported_are_not_judged():
    assert Health("soft", "soft", False).judge(5000, {"ppl": 7.0}, False, True) == []
