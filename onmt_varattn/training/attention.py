"""From options to latent attention, its schedule, and the way to test; the same for every kind of model."""

from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.latent import (
    OBJECTIVES,
    Exact,
    KMax,
    LatentAttention,
    Mixture,
    Objective,
    Refinement,
    Schedule,
    SoftContext,
)
from onmt_varattn.latent.mixtures import SAMPLES
from onmt_varattn.training.opts import check_test, estimator_of


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


def mixture_of(opt: Any, objective: Objective, samples: int | None = None) -> Mixture:
    """What is mixed at test time: what the options say, or what suits the training.

    Args:
        opt: options of translation, or of training for its validation.
        objective: that the model was trained with.
        samples: draws of relaxed attention; default: 10.

    Raises:
        UserError: the options do not go with the objective.
    """
    check_test(opt, name_of(objective))
    if samples is not None and samples < 1:
        raise UserError(f"-attention_samples {samples} must be at least 1")
    if opt.kmax:
        return KMax(opt.kmax)
    chosen: dict[str, Mixture] = {"soft": SoftContext(), "exact": Exact()}
    return chosen.get(opt.test_attention) or objective.mixture(samples or SAMPLES)


def name_of(objective: Objective) -> str:
    """What users call an objective."""
    return next(name for name, kind in OBJECTIVES.items() if type(objective) is kind)


def build_attention(opt: Any, query_size: int, memory_size: int, **rest: Any) -> LatentAttention:
    """The attention that the options ask for.

    Args:
        opt: options of a model and of its training.
        query_size: D.
        memory_size: M.
        rest: arguments of `LatentAttention` that are no options.
    """
    estimator = estimator_of(opt)
    refine = None
    if opt.posterior in ("svi", "savi"):
        refine = Refinement(opt.svi_steps, opt.svi_lr, flat=opt.posterior == "svi")
    attention = LatentAttention(
        query_size,
        memory_size,
        objective=opt.attention,
        estimator=opt.attention_estimator,
        baseline=opt.baseline if estimator.needs_baseline else None,
        score=opt.global_attention,
        null=getattr(opt, "null_alignment", False),
        label_smoothing=getattr(opt, "label_smoothing", 0.0),
        entropy_weight=opt.entropy_weight or 0.0,
        refine=refine,
        samples=opt.attention_samples or estimator.usual_samples,
        top=opt.attention_top or 3,
        temperature=opt.gumbel_temperature or 1.0,
        hard_gumbel=opt.gumbel_hard,
        reward_weight=1.0 if opt.reward_weight is None else opt.reward_weight,
        sparse=opt.sparse_function or "entmax15",
        relaxed=getattr(opt, "relaxed_distribution", None) or "dirichlet",
        **rest,
    )
    attention.schedule(schedule_of(opt))
    return attention
