"""Settings that all tasks share: latent attention, its training, its use at test time, and a training run.

Which setting goes with which objective or estimator is in its `applies`, and its default there in `usual`;
see `onmt_varattn.utils.settings`. Importing this module does not import torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from onmt_varattn.errors import UserError
from onmt_varattn.utils.settings import Names, Settings, check, fill, options, setting

if TYPE_CHECKING:
    from onmt_varattn.latent import Estimator, Objective


def registered(module: str, name: str) -> Names:
    """The names in a registry of `onmt_varattn.latent`, which is imported when they are needed."""
    return Names(lambda: getattr(import_module(f"onmt_varattn.latent.{module}"), name))


def _estimators() -> set[str]:
    from onmt_varattn.latent import OBJECTIVES

    return {name for one in OBJECTIVES.values() for name in one.estimators} - {"none"}


def _uses(name: str) -> Callable[["ModelAttention"], bool]:
    """Whether the estimator declares that it uses a setting."""
    return lambda it: name in it.estimator.uses


@dataclass(kw_only=True)
class ModelAttention(Settings):
    """Latent attention of a model: kept in its checkpoint."""

    title = "Latent attention"

    attention: str | None = setting(
        None,
        choices=registered("objectives", "OBJECTIVES"),
        help="Use the attention decoder of onmt_varattn, trained with this objective. Without it, "
        "OpenNMT-py builds the decoder that its own options ask for.",
    )
    attention_estimator: str | None = setting(
        None,
        choices=Names(lambda: sorted(_estimators())),
        help="Estimator of the objective's expectation. Default: sample for hard, variational and relaxed, "
        "enum for marginal. hard: sample, enum, rloo or rebar; variational: any.",
    )
    posterior: str | None = setting(
        None,
        choices=["amortized", "svi", "savi", "external"],
        help="Posterior of variational and relaxed attention: an inference network (amortized, the default), "
        "gradient steps for each sentence from a flat start (svi) or from the inference network's output "
        "(savi), both with -attention_estimator enum, or alignments from a file (external, not for relaxed): "
        "path_align of each corpus, which onmt_preprocess -train_align writes.",
        applies=lambda it: it.has_posterior,
        usual="amortized",
    )
    global_attention: str | None = setting(
        None,
        choices=registered("scores", "SCORES"),
        help="Attention score: dot or general (Luong), mlp (Bahdanau), with -attention also scaled_dot. "
        "Default: mlp with -attention, general without.",
        replaces=True,
    )
    attention_size: int = setting(
        0,
        help="Size in which queries and source states are compared (mlp and scaled_dot). 0: that of the "
        "decoder.",
        at_least=0,
    )

    @property
    def objective(self) -> "type[Objective]":
        """The class behind -attention.

        Raises:
            UserError: there is none.
        """
        from onmt_varattn.latent import OBJECTIVES

        if (name := str(self.attention)) not in OBJECTIVES:
            raise UserError(f"-attention {name} is not known here; there are: {', '.join(OBJECTIVES)}")
        return OBJECTIVES[name]

    @property
    def estimator(self) -> "type[Estimator]":
        """The class behind -attention_estimator."""
        from onmt_varattn.latent import ESTIMATORS

        return ESTIMATORS[self.objective.estimators[self.attention_estimator or ""]]

    @property
    def has_posterior(self) -> bool:
        """Whether the objective has a posterior besides the prior."""
        return self.objective.has_posterior

    @property
    def has_network(self) -> bool:
        """Whether an inference network computes the posterior."""
        return self.has_posterior and self.posterior in ("amortized", "savi")

    @property
    def iterates(self) -> bool:
        """Whether gradient steps compute the posterior."""
        return self.has_posterior and self.posterior in ("svi", "savi")

    @property
    def has_temperature(self) -> bool:
        """Whether draws have a temperature."""
        return "temperature" in self.estimator.uses

    def combination(self) -> str:
        """Objective, estimator and posterior, as typed on the command line."""
        words = [f"-attention {self.attention}"]
        if self.attention_estimator not in (None, "none"):
            words.append(f"-attention_estimator {self.attention_estimator}")
        if self.posterior:
            words.append(f"-posterior {self.posterior}")
        return " ".join(words)


@dataclass(kw_only=True)
class AttentionSettings(ModelAttention):
    """Latent attention and its training."""

    title = "Training latent attention"

    attention_samples: int | None = setting(
        None,
        help="Samples per word, or per question. Default: 5 for rws, iwae, vimco and rloo, else 1.",
        applies=_uses("samples"),
        usual=lambda it: it.estimator.usual_samples,
    )
    attention_top: int | None = setting(
        None,
        help="Alignments that sum_and_sample sums exactly. Default: 3.",
        at_least=1,
        applies=_uses("top"),
        usual=3,
    )
    attention_warmup_steps: int | Literal["auto"] | None = setting(
        None,
        help="First train a simpler objective while the posterior is fitted to the prior: for this many "
        "steps, or with auto until the alignments of the run have formed. Default: auto; 0 with "
        "-posterior external and for questions about images, which have no auto.",
        at_least=0,
        applies=lambda it: it.attention != "soft",
        usual=lambda it: 0 if it.posterior == "external" else "auto",  # given alignments need not form
    )
    attention_warmup: str | None = setting(
        None,
        choices=registered("objectives", "WARM_UPS"),
        help="Objective of the warm-up: soft attention, or by enumeration the bound of hard attention or the "
        "exact marginal likelihood. Default: soft.",
        applies=lambda it: it.attention != "soft",
        usual="soft",
    )
    baseline: str | None = setting(
        None,
        choices=registered("baselines", "BASELINES"),
        help="Baseline of sampled rewards: the log-likelihood of soft attention, a running average, the same "
        "plus a small network on the query (learned), or none. Default: soft.",
        applies=lambda it: it.estimator.needs_baseline,
        usual="soft",
    )
    kl_weight: float | None = setting(
        None,
        help="Weight of KL(posterior, prior). Default: 1.",
        at_least=0,
        applies=lambda it: it.has_posterior and it.estimator.linear,
        usual=1.0,
    )
    kl_warmup_steps: int | None = setting(
        None,
        help="Steps over which the weight of the KL term grows linearly from 0. Default: 0.",
        at_least=0,
        applies=lambda it: it.has_posterior and it.estimator.linear,
        usual=0,
    )
    gumbel_temperature: float | None = setting(
        None,
        help="Temperature of relaxed draws (gumbel, rebar, -relaxed_distribution concrete). Default: 0.5.",
        above=0,
        applies=lambda it: it.has_temperature,
        usual=0.5,
    )
    gumbel_min_temperature: float | None = setting(
        None,
        help="Temperature at the end of annealing. Default: do not anneal.",
        above=0,
        applies=_uses("least_temperature"),
        usual=lambda it: it.gumbel_temperature,
    )
    gumbel_anneal_steps: int | None = setting(
        None,
        help="Steps over which the temperature falls linearly. Default: 10000.",
        at_least=1,
        applies=_uses("anneal_steps"),
        usual=10_000,
    )
    gumbel_hard: bool = setting(
        False, help="Straight-through draws (-attention_estimator gumbel).", applies=_uses("hard_gumbel")
    )
    sparse_function: str | None = setting(
        None,
        choices=registered("estimators", "SPARSE"),
        help="Function that makes the posterior sparse (-attention_estimator sparse). Default: entmax15.",
        applies=_uses("sparse"),
        usual="entmax15",
    )
    svi_steps: int | None = setting(
        None,
        help="Gradient steps of svi and savi. Default: 10.",
        at_least=1,
        applies=lambda it: it.iterates,
        usual=10,
    )
    svi_lr: float | None = setting(
        None,
        help="Step size of svi and savi. Default: 1.",
        above=0,
        applies=lambda it: it.iterates,
        usual=1.0,
    )
    reward_weight: float | None = setting(
        None,
        help="Weight of the sampled gradient of hard attention. Default: 1.",
        applies=lambda it: it.attention == "hard" and "reward_weight" in it.estimator.uses,
        usual=1.0,
    )
    entropy_weight: float | None = setting(
        None,
        help="Weight of the prior's entropy in hard attention. Default: 0.",
        applies=lambda it: it.attention == "hard",
        usual=0.0,
    )


def fill_attention(it: AttentionSettings) -> None:
    """Fill in the score, the estimator and all settings whose default depends on them."""
    if it.global_attention is None:
        it.global_attention = "mlp" if it.attention else "general"
    if not it.attention:
        return
    known = it.objective.estimators
    if it.attention_estimator is None:
        iterates = it.posterior in ("svi", "savi")
        it.attention_estimator = "enum" if iterates and "enum" in known else next(iter(known))
    if it.attention_estimator in known:
        fill(it)


def check_attention(it: AttentionSettings, label_smoothing: float = 0.0) -> None:
    """Check that objective, estimator and their settings go together.

    Args:
        it: settings that `fill_attention` has completed.
        label_smoothing: share of the label that is spread over all words.

    Raises:
        UserError: names the option and the remedy.
    """
    known = it.objective.estimators
    if it.attention_estimator not in known:
        remedy = "leave it out" if list(known) == ["none"] else f"use {' or '.join(known)}"
        raise UserError(
            f"-attention_estimator {it.attention_estimator} does not go with -attention {it.attention}; "
            + remedy
        )
    check(it)
    if it.iterates and it.attention_estimator != "enum":
        raise UserError(
            f"-posterior {it.posterior} does not go with -attention_estimator {it.attention_estimator}; "
            "use enum"
        )
    fewest = it.estimator.fewest_samples
    if it.attention_samples is not None and it.attention_samples < fewest:
        raise UserError(
            f"-attention_samples {it.attention_samples}: {it.attention_estimator} needs at least {fewest}"
        )
    least, first = it.gumbel_min_temperature, it.gumbel_temperature
    if least is not None and first is not None and least > first:
        raise UserError(f"-gumbel_min_temperature {least} is above -gumbel_temperature {first}")
    if label_smoothing and not _is_linear(it):
        raise UserError(
            f"-label_smoothing {label_smoothing} does not go with this objective, which takes logarithms of "
            "sums of likelihoods; leave it out"
        )


def _is_linear(it: AttentionSettings) -> bool:
    """Whether objective, estimator and warm-up are linear in the log-likelihood."""
    from onmt_varattn.latent.objectives import WARM_UPS

    first = WARM_UPS[it.attention_warmup] if it.attention_warmup else it.objective
    return it.objective.linear and it.estimator.linear and first.linear


def conditional(kind: type[Settings]) -> list[str]:
    """The names of settings that only some objectives or estimators have, and that are None by default."""
    return [one.field for one in options(kind) if one.meta.help and one.meta.applies and one.default is None]


def saved_choices() -> dict[str, list[str]]:
    """Words that a checkpoint may contain where the command line takes fewer."""
    return {"attention_estimator": sorted(_estimators() | {"none"})}


@dataclass(kw_only=True)
class MixtureSettings(Settings):
    """Alignments that validation and decoding mix."""

    title = "Attention at test time"

    test_attention: str | None = setting(
        None,
        choices=["exact", "soft"],
        help="exact: the mixture over all alignments, for any training objective; soft: their mean. "
        "Default: as trained (soft for soft, samples for relaxed, else exact).",
    )
    kmax: int = setting(
        0,
        help="Mix only the K most probable alignments, renormalised. 0: all. Also for soft models.",
        at_least=0,
    )


def check_mixture(it: MixtureSettings, attention: str | None) -> None:
    """Check the alignments at test time for a model with this attention; None: without -attention.

    Raises:
        UserError: names the option and the remedy.
    """
    check(it)
    if it.kmax and it.test_attention == "soft":
        raise UserError("-kmax does not go with -test_attention soft; leave one of them out")
    if attention == "relaxed" and (it.kmax or it.test_attention == "exact"):
        raise UserError(
            "-kmax and -test_attention exact do not go with -attention relaxed, which has no single "
            "alignments; use -attention_samples, or -test_attention soft"
        )
    if attention is None and (it.kmax or it.test_attention):
        raise UserError("-kmax and -test_attention are for models trained with -attention")


@dataclass(kw_only=True)
class RunSettings(Settings):
    """A training run: length, optimiser, checkpoints and reports.

    Translation has most of them from OpenNMT-py, under the same names.
    """

    title = "Training"

    save_model: str = setting(
        help="Prefix of checkpoints: SAVE_MODEL_step_N.pt, and SAVE_MODEL_best.pt for the best."
    )
    train_steps: int = setting(20000, help="Number of training steps.", at_least=1)
    batch_size: int = setting(128, help="Examples per step.", at_least=1)
    valid_batch_size: int = setting(128, help="Examples per batch in validation.", at_least=1)
    valid_steps: int = setting(1000, help="Validation interval in steps.", at_least=1)
    save_checkpoint_steps: int = setting(
        1000, help="Checkpoint interval in steps. 0: only at the end.", at_least=0
    )
    keep_checkpoint: int = setting(
        -1, help="Number of checkpoints to keep besides the best. -1: all.", at_least=-1
    )
    early_stopping: int = setting(
        0, help="Stop after this many validations without improvement. 0: never.", at_least=0
    )
    learning_rate: float = setting(0.0003, help="Learning rate.", at_least=0)
    learning_rate_decay: float = setting(
        0.5, help="Factor by which the learning rate is multiplied when it falls.", at_least=0
    )
    start_decay_steps: int = setting(
        50000, help="Step after which the learning rate falls for the first time.", at_least=0
    )
    decay_steps: int = setting(10000, help="Decay interval in steps after that.", at_least=1)
    max_grad_norm: float = setting(
        5.0, help="Norm to which larger gradients are scaled down. 0: never.", at_least=0
    )
    gpu_ranks: list[int] = setting([], nargs="*", help="CUDA device to train on. Default: the CPU.")
    report_every: int = setting(50, help="Report interval in steps.", at_least=1)
    log_file: str = setting("", help="File to which the log is written as well.")
    tensorboard: bool = setting(False, help="Write curves for TensorBoard.")
    tensorboard_log_dir: str = setting("runs/onmt", help="TensorBoard log directory.")
    decay_on_plateau: int = setting(
        0,
        help="Multiply the learning rate by -learning_rate_decay each time this many validations "
        "in a row bring no lower perplexity; replaces the decay by steps. 0: off.",
        at_least=0,
    )
    resume: bool = setting(
        False,
        help="Continue from the newest complete checkpoint of this -save_model as if the run had never "
        "stopped; start anew if there is none. Give the options of the run again.",
    )
    bad_steps_limit: int = setting(
        10,
        help="Stop after this many consecutive steps whose loss or gradient is not finite. Such steps are "
        "skipped, and reported with their batch.",
        at_least=1,
    )
    metrics_file: str | None = setting(
        None,
        help="With -attention: file to which each report is appended as a line of JSON. Default: -save_model "
        "with .metrics.jsonl; 'none' for no file.",
    )
    overwrite: bool = setting(
        False,
        help="Replace an earlier run with this -save_model: its checkpoints are removed once the new run has "
        "saved one of its own.",
        replaces=True,
    )


@dataclass(kw_only=True)
class CheckpointSettings(Settings):
    """How commands load a trained model."""

    title = "Model"

    gpu: int = setting(-1, help="CUDA device. -1: the CPU.", at_least=-1)
    allow_nonfinite: bool = setting(
        False, help="Load a model even if some of its parameters are infinite or not numbers."
    )


def refuse_changes(now: dict[str, Any], before: dict[str, Any], path: str, other: str) -> None:
    """Check that a resumed run has the settings of its checkpoint.

    Args:
        now: settings that differ, with the values of this run.
        before: the same with those of the checkpoint.
        path: path of the checkpoint.
        other: options that begin another run, for the message.

    Raises:
        UserError: names all settings that differ.
    """
    if now:
        raise UserError(
            f"{as_typed(now)}: {path} has {as_typed(before)}, and -resume changes nothing of the kind; give "
            f"that, or another {other}"
        )


def as_typed(values: dict[str, Any]) -> str:
    """Settings as one types them on the command line."""
    return " ".join(f"-{name} {_typed(value)}".rstrip() for name, value in values.items())


def _typed(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
