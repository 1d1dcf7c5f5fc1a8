"""Statistics of training and validation, beyond OpenNMT's perplexity and accuracy."""

from typing import Any

from onmt.utils import Statistics
from onmt.utils.logging import logger

from onmt_varattn.training import metrics


class AlignmentStatistics(Statistics, metrics.Statistics):
    """OpenNMT's statistics with named sums over target words; without any, exactly OpenNMT's.

    Args:
        args: arguments of OpenNMT's statistics.
        sums: sums by name.
        kwargs: arguments of OpenNMT's statistics.
    """

    counts = ("loss", "n_words", "n_correct", "n_src_words")

    def __init__(self, *args: Any, sums: dict[str, float] | None = None, **kwargs: Any) -> None:
        Statistics.__init__(self, *args, **kwargs)
        self.sums = {name: (value, self.n_words) for name, value in (sums or {}).items()}

    def add(self, other: Any) -> None:
        """See the base class."""
        super().add(other)
        self.computed_metrics = other.computed_metrics

    def update(self, stat: Any, update_n_src_words: bool = False) -> None:
        """OpenNMT's name for `add`."""
        super().update(stat, update_n_src_words)
        self._add_sums(getattr(stat, "sums", {}))

    def report(self) -> dict[str, float]:
        """See the base class."""
        return {
            "words": self.n_words,
            "ppl": self.ppl(),
            "accuracy": self.accuracy(),
            **self.metrics(),
        }

    def output(self, step: int, num_steps: int, learning_rate: float, start: float) -> None:
        """Log OpenNMT's line, and another one with the means of the named sums."""
        super().output(step, num_steps, learning_rate, start)
        if self.sums:
            logger.info("  " + "; ".join(f"{name}: {value:.3f}" for name, value in self.metrics().items()))

    def log_tensorboard(
        self, prefix: str, writer: Any, learning_rate: float, patience: int | None, step: int
    ) -> None:
        """Write OpenNMT's curves, and the means of the named sums."""
        super().log_tensorboard(prefix, writer, learning_rate, patience, step)
        for name, value in self.metrics().items():
            writer.add_scalar(f"{prefix}/{name}", value, step)
