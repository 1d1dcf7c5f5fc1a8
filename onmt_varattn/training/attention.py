"""Latent attention, its schedule, and the mixture at test time, made from settings."""

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
from onmt_varattn.training.settings import AttentionSettings, MixtureSettings, check_mixture


def schedule_of(it: AttentionSettings) -> Schedule:
    """The schedule of warm-up, KL weight and temperature."""
    return Schedule(
        None if it.attention_warmup_steps == "auto" else it.attention_warmup_steps or 0,
        1.0 if it.kl_weight is None else it.kl_weight,
        it.kl_warmup_steps or 0,
        it.gumbel_temperature or 1.0,
        it.gumbel_min_temperature or it.gumbel_temperature or 1.0,
        it.gumbel_anneal_steps or 1,
        it.attention_warmup or "soft",
    )


def describe_attention(it: AttentionSettings, network: str | None = None) -> str:
    """Objective, estimator, posterior and warm-up in words, for the log.

    Args:
        it: settings.
        network: kind of the inference network.
    """
    parts = [str(it.attention)]
    if it.attention_estimator != "none":
        parts.append(f"estimator {it.attention_estimator}")
    if it.posterior:
        parts.append(f"posterior {it.posterior}" + (f" ({network})" if network else ""))
    if it.attention_warmup_steps:
        automatic = it.attention_warmup_steps == "auto"
        length = "until alignments have formed" if automatic else f"for {it.attention_warmup_steps} steps"
        parts.append(f"warm-up with {it.attention_warmup} attention {length}")
    return ", ".join(parts)


def mixture_of(it: MixtureSettings, objective: Objective, samples: int | None = None) -> Mixture:
    """The mixture at test time: that of the settings, or the objective's default.

    Args:
        it: settings of translation, or of training for its validation.
        objective: training objective of the model.
        samples: number of draws of relaxed attention, default: 10.

    Raises:
        UserError: the settings do not go with the objective.
    """
    check_mixture(it, name_of(objective))
    if samples is not None and samples < 1:
        raise UserError(f"-attention_samples {samples} must be at least 1")
    if it.kmax:
        return KMax(it.kmax)
    chosen: dict[str | None, Mixture] = {"soft": SoftContext(), "exact": Exact()}
    return chosen.get(it.test_attention) or objective.mixture(samples or SAMPLES)


def name_of(objective: Objective) -> str:
    """The name of an objective on the command line."""
    return next(name for name, kind in OBJECTIVES.items() if type(objective) is kind)


def build_attention(it: AttentionSettings, query_size: int, memory_size: int, **rest: Any) -> LatentAttention:
    """The attention of the settings.

    Args:
        it: settings of a model and of its training.
        query_size: D.
        memory_size: M.
        rest: further arguments of `LatentAttention`.
    """
    refine = None
    if it.posterior in ("svi", "savi"):
        refine = Refinement(it.svi_steps or 10, it.svi_lr or 1.0, flat=it.posterior == "svi")
    attention = LatentAttention(
        query_size,
        memory_size,
        objective=str(it.attention),
        estimator=it.attention_estimator,
        baseline=it.baseline if it.estimator.needs_baseline else None,
        score=str(it.global_attention),
        entropy_weight=it.entropy_weight or 0.0,
        refine=refine,
        samples=it.attention_samples or it.estimator.usual_samples,
        top=it.attention_top or 3,
        temperature=it.gumbel_temperature or 1.0,
        hard_gumbel=it.gumbel_hard,
        reward_weight=1.0 if it.reward_weight is None else it.reward_weight,
        sparse=it.sparse_function or "entmax15",
        **rest,
    )
    attention.schedule(schedule_of(it))
    return attention
