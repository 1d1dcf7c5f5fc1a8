"""From options to an objective, its schedule, and the way to test; the same for every kind of model."""

from typing import Any

from onmt_varattn.latent.estimators import Estimator, Settings
from onmt_varattn.latent.objectives import OBJECTIVES, Objective
from onmt_varattn.latent.prediction import TestAttention
from onmt_varattn.latent.refinement import Refinement
from onmt_varattn.latent.schedule import Schedule
from onmt_varattn.opts import estimator_of


def schedule_of(opt: Any) -> Schedule:
    """What changes in the course of training, as the options say."""
    return Schedule(
        None if opt.attention_warmup_steps == "auto" else opt.attention_warmup_steps or 0,
        1.0 if opt.kl_weight is None else opt.kl_weight,
        opt.kl_warmup_steps or 0,
        opt.gumbel_temperature or 1.0,
        opt.gumbel_min_temperature or opt.gumbel_temperature or 1.0,
        opt.gumbel_anneal_steps or 1,
        opt.attention_warmup or "soft",
    )


def after_warm_up(opt: Any) -> str:
    """What comes before the objective, in words."""
    first = f"{opt.attention_warmup} attention" + ("" if opt.attention_warmup == "soft" else " by enum")
    if opt.attention_warmup_steps == "auto":
        return f"once {first} has formed alignments"
    return f"after {opt.attention_warmup_steps} steps of {first}"


def test_attention_of(opt: Any, attention: str) -> TestAttention:
    """How a model is to be used at test time: as the options say, or as it was trained."""
    natural = {"soft": "soft", "relaxed": "samples"}.get(attention, "exact")
    return TestAttention(opt.test_attention or natural, opt.kmax)


def build_objective(opt: Any) -> Objective:
    """The objective that the options ask for."""
    refine = None
    if opt.posterior in ("svi", "savi"):
        refine = Refinement(opt.svi_steps, opt.svi_lr, flat=opt.posterior == "svi")
    return OBJECTIVES[opt.attention](
        build_estimator(opt),
        baseline=opt.baseline or "none",
        entropy_weight=opt.entropy_weight or 0.0,
        refine=refine,
    )


def build_estimator(opt: Any) -> Estimator:
    """The estimator that the options ask for."""
    return estimator_of(opt)(
        Settings(
            samples=opt.attention_samples or 1,
            top=opt.attention_top or 3,
            temperature=opt.gumbel_temperature or 1.0,
            hard_gumbel=opt.gumbel_hard,
            reward_weight=1.0 if opt.reward_weight is None else opt.reward_weight,
            normalise=sparse_function(opt.sparse_function) if opt.sparse_function else None,
        )
    )


def sparse_function(name: str) -> Any:
    """entmax15 or sparsemax, of scores along their last axis."""
    import entmax

    function = getattr(entmax, name)
    return lambda scores: function(scores, dim=-1)
