"""The learning rate follows validation; a resumed run goes on where it stood."""

import pytest
import torch

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.settings import check_ranges
from onmt_varattn.nmt.training.optimizer import PlateauOptimizer
from onmt_varattn.training.metrics import Statistics
from tests import models


def optimizer(flags="-decay_on_plateau 2 -learning_rate 1 -learning_rate_decay 0.5", checkpoint=None):
    opt = models.options(flags)
    opt.train_from = "somewhere" if checkpoint else ""
    return PlateauOptimizer.from_opt(torch.nn.Linear(2, 2), opt, checkpoint), opt


def test_rate_halves_after_the_given_number_of_validations_without_progress():
    optim, _ = optimizer()
    rates = []
    for perplexity in [9, 8, 8.5, 8, 7.9, 8, 8, 8, 8]:
        optim.plateau.report(perplexity)
        rates.append(optim.learning_rate())
    assert rates == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_the_rate_reaches_the_torch_optimiser():
    optim, _ = optimizer()
    for perplexity in [5, 6, 6]:
        optim.plateau.report(perplexity)
    optim.step()
    assert [group["lr"] for group in optim._optimizer.param_groups] == [0.5]


def test_the_schedule_by_steps_is_off_with_it_and_on_without():
    optim, _ = optimizer("-decay_on_plateau 2 -learning_rate 1 -start_decay_steps 1 -decay_steps 1")
    stock, _ = optimizer("-learning_rate 1 -start_decay_steps 1 -decay_steps 1")
    for o in (optim, stock):
        for _ in range(5):
            o.step()
    assert optim.learning_rate() == 1
    assert stock.learning_rate() < 1


def test_it_does_nothing_unless_asked():
    optim, _ = optimizer("-learning_rate 1")
    for perplexity in [5, 6, 6, 6, 6, 6]:
        optim.plateau.report(perplexity)
    assert optim.learning_rate() == 1
    assert "plateau" not in optim.state_dict()


@pytest.mark.parametrize("before", [[5, 6], [5, 6, 6, 7]])
def test_a_resumed_run_stands_where_it_stood(before):
    optim, opt = optimizer()
    for perplexity in before:
        optim.plateau.report(perplexity)
    resumed, _ = optimizer(checkpoint={"optim": optim.state_dict(), "opt": opt})
    assert resumed.learning_rate() == optim.learning_rate()
    for o in (optim, resumed):
        o.plateau.report(6)
    assert resumed.learning_rate() == optim.learning_rate() < 1


def trained(flags, checkpoint=None, steps=3):
    """A model after a few updates along known gradients, and its optimiser."""
    opt = models.options(f"-optim adam -learning_rate 0.1 -max_grad_norm 1 {flags}")
    opt.train_from = "somewhere" if checkpoint else ""
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    optim = PlateauOptimizer.from_opt(model, opt, checkpoint)
    for i in range(steps):
        optim.zero_grad()
        optim.backward(model(torch.linspace(-1, 1, 10).view(2, 5) + i).square().sum())
        optim.step()
    return model, optim, opt


def test_the_fused_update_is_adams():
    fused, optim, _ = trained("-attention soft")
    plain, stock, _ = trained("")
    assert [group["fused"] for group in optim._optimizer.param_groups] == [True]
    assert [group["fused"] for group in stock._optimizer.param_groups] == [None]
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_a_fused_optimiser_goes_on_from_a_saved_one_and_leaves_no_mark_in_it():
    whole, _, _ = trained("-attention soft", steps=5)
    first, optim, opt = trained("-attention soft", steps=3)
    saved = optim.state_dict()
    assert [group["fused"] for group in saved["optimizer"]["param_groups"]] == [None]
    assert [group["fused"] for group in optim._optimizer.param_groups] == [True]
    _, resumed, _ = trained("-attention soft", {"optim": saved, "opt": opt}, steps=0)
    assert [group["fused"] for group in resumed._optimizer.param_groups] == [True]
    steps = [state["step"].item() for state in resumed._optimizer.state.values()]
    assert steps == [3, 3]
    assert not torch.equal(first.weight, whole.weight)


@pytest.mark.parametrize("name", ["max_grad_norm", "early_stopping", "keep_checkpoint"])
def test_negative_values_that_opennmt_takes_are_accepted(name):
    opt = models.options("-train_steps 1")
    setattr(opt, name, -2)
    check_ranges(opt)
    assert getattr(opt, name) == -2
    opt.report_every = 0
    with pytest.raises(UserError, match="-report_every 0 must be at least 1"):
        check_ranges(opt)


@pytest.mark.parametrize("broken", ["log_likelihood", "kl"])
def test_a_sum_that_is_not_finite_is_seen(broken):
    sums = {"log_likelihood": -1.0, "correct": 1, "kl": 0.5}
    assert Statistics(sums, 2).is_finite
    assert not Statistics({**sums, broken: float("nan")}, 2).is_finite
