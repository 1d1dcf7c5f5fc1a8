"""Health of a run: problems that its reports show, each with a remedy."""

from collections.abc import Iterator

UNIFORM = 0.9  # relative entropy of the prior above which alignments count as uniform
AFTER = 500  # steps after which that is reported
NO_DIVERGENCE = 0.01  # nats between posterior and prior
UNDECIDED = 0.8  # relative entropy of the prior above which such a divergence means that neither learns
SAME = 0.1  # relative information below which words do not differ in their alignments
SHARP = 0.3  # relative entropy of a posterior below which it counts as sharp
VARIANCE = 25.0  # variance of rewards, in nats squared, above which it counts as exploding,
GROWTH = 10.0  # if it is this many times the lowest one so far
AT_BOUNDS = 0.1  # share of concentrations at their bounds above which that is reported
WORSE = 1.02  # factor between the perplexity and that of soft attention above which that is reported

WAIT = "If this lasts, restart with -param_init 0, or a lower -learning_rate"
NOT_BEGUN = (
    "The run ended during the warm-up: the model was trained with %s attention only. Increase -train_steps, "
    "or decrease -attention_warmup_steps."
)

Metrics = dict[str, float]


class Health:
    """Finds problems in the reports of a run.

    A finding is returned when it appears, and again with every validation while it lasts.

    Args:
        attention: name of the objective.
        first: name of the objective of the warm-up.
        automatic: whether the warm-up ends automatically.
    """

    def __init__(self, attention: str, first: str, automatic: bool) -> None:
        self.attention, self.first, self.automatic = attention, first, automatic
        self._lowest_variance = float("inf")
        self._known: set[str] = set()

    def judge(self, step: int, metrics: Metrics, warming_up: bool, validation: bool = False) -> list[str]:
        """Findings of a report, one sentence each.

        Args:
            step: training step of the report.
            metrics: means per target word, as reported.
            warming_up: whether the report is of the warm-up.
            validation: whether the report is of a validation.
        """
        found = dict(self._findings(step, metrics, warming_up, validation))
        news = [text for name, text in found.items() if validation or name not in self._known]
        self._known = set(found) if not validation else self._known | set(found)
        return news

    def _findings(
        self, step: int, metrics: Metrics, warming_up: bool, validation: bool
    ) -> Iterator[tuple[str, str]]:
        """Findings by name."""
        undecided = metrics.get("relative_entropy", 0.0)
        if undecided > UNIFORM and step >= AFTER:
            yield "uniform", self._uniform(step, undecided, warming_up)
        elif (differ := metrics.get("prior_information", 1.0)) < SAME and step >= AFTER:
            yield (
                "same",
                f"all words of a sentence attend to the same source positions after {step:,} steps "
                f"({differ:.2f} of the maximum mutual information). "
                + (WAIT if warming_up or self.attention == "soft" else self._remedy),
            )
        if warming_up:
            return
        kl = metrics.get("kl")
        if kl is not None and kl < NO_DIVERGENCE and UNDECIDED < undecided <= UNIFORM and step >= AFTER:
            yield (
                "no divergence",
                f"posterior and prior are equal (KL {kl:.3f}) and nearly uniform ({undecided:.2f} of the "
                f"maximum entropy): neither learns. {self._remedy}",
            )
        of_posterior = _relative_posterior_entropy(metrics)
        if of_posterior < SHARP and metrics.get("posterior_information", 1.0) < SAME:
            yield (
                "one position",
                f"the posterior has collapsed to one source position for all words of a sentence "
                f"({of_posterior:.2f} of the maximum entropy, {metrics['posterior_information']:.2f} of the "
                f"maximum mutual information). {self._remedy}",
            )
        if (variance := metrics.get("reward_variance")) is not None:
            if variance > max(VARIANCE, GROWTH * self._lowest_variance):
                yield (
                    "variance",
                    f"the variance of rewards has grown from {self._lowest_variance:.1f} to {variance:.1f}. "
                    "Decrease -learning_rate, increase -attention_samples, or use -baseline soft or "
                    "-attention_estimator sum_and_sample",
                )
            self._lowest_variance = min(self._lowest_variance, max(variance, 1e-3))
        if metrics.get("at_bounds", 0.0) > AT_BOUNDS:
            yield (
                "bounds",
                f"{metrics['at_bounds']:.0%} of the concentrations are at their bounds, where they get no "
                "gradient. Decrease -learning_rate or -kl_weight",
            )
        if validation and metrics.get("soft_ppl", float("inf")) * WORSE < metrics["ppl"]:
            yield (
                "worse than soft",
                f"validation perplexity {metrics['ppl']:.2f} is above {metrics['soft_ppl']:.2f}, that of "
                "soft attention with the same parameters: single alignments are not sufficient. Train "
                "longer, use -test_attention soft, or another -attention_estimator",
            )

    def _uniform(self, step: int, undecided: float, warming_up: bool) -> str:
        what = f"alignments are uniform after {step:,} steps ({undecided:.2f} of the maximum entropy)"
        if self.attention == "soft" or warming_up:
            go_on = (
                f"; {self.first} attention continues until they form" if warming_up and self.automatic else ""
            )
            return (
                f"{what}{go_on}. If this lasts, check that line n of the source is the translation of "
                "line n of the target, try another -learning_rate, and -param_init 0"
            )
        return f"{what}: the source is ignored. {self._remedy}"

    @property
    def _remedy(self) -> str:
        """Advice for alignments without information."""
        lower = "a lower -learning_rate"
        return f"Restart with {lower}" if self.automatic else "Restart with -attention_warmup_steps auto"


def _relative_posterior_entropy(metrics: Metrics) -> float:
    """Entropy of the posterior relative to the maximum; 1 if unknown."""
    prior, relative = metrics.get("prior_entropy", 0.0), metrics.get("relative_entropy", 0.0)
    if "posterior_entropy" not in metrics or not relative > 0:
        return 1.0
    return metrics["posterior_entropy"] * relative / prior
