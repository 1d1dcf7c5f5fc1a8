"""What training and validation report, beyond OpenNMT's perplexity and accuracy."""

from typing import Any

import onmt.utils.report_manager
import torch
from onmt.utils import Statistics
from onmt.utils.logging import logger

from onmt_varattn.training.checkpoints.trees import like
from onmt_varattn.training.metrics import MetricsFile, means
from onmt_varattn.training.processes import World


class AlignmentStatistics(Statistics):
    """OpenNMT's statistics, with named sums over target words.

    Without any names it is OpenNMT's own, to the letter.

    Attributes:
        warm_up: they are of the warm-up; set for reports.
    """

    warm_up = False

    def __init__(self, *args: Any, sums: dict[str, float] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Each with the words it is over: some are reported only after a warm-up.
        self.sums = {name: (value, self.n_words) for name, value in (sums or {}).items()}

    def update(self, stat: Any, update_n_src_words: bool = False) -> None:
        """Add another's counts to this one's."""
        super().update(stat, update_n_src_words)
        for name, (value, words) in getattr(stat, "sums", {}).items():
            total, over = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + value, over + words)

    def state_dict(self) -> dict[str, Any]:
        """All counts and sums, as plain values."""
        counts = {name: getattr(self, name) for name in ("loss", "n_words", "n_correct", "n_src_words")}
        return {**counts, "sums": dict(self.sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over counts and sums."""
        fresh = {**self.state_dict(), "sums": {name: [0.0, 0] for name in state["sums"]}}
        for name, value in like(state, fresh, "report").items():
            setattr(self, name, value)

    def metrics(self) -> dict[str, float]:
        """Means per target word. Perplexities are exp of the mean; a reward has its variance too."""
        return means(self.sums)

    def output(self, step: int, num_steps: int, learning_rate: float, start: float) -> None:
        """OpenNMT's line, and one of ours if there is something to say."""
        super().output(step, num_steps, learning_rate, start)
        if self.sums:
            logger.info("  " + "; ".join(f"{name}: {value:.3f}" for name, value in self.metrics().items()))

    def log_tensorboard(
        self, prefix: str, writer: Any, learning_rate: float, patience: int | None, step: int
    ) -> None:
        """OpenNMT's curves and ours."""
        super().log_tensorboard(prefix, writer, learning_rate, patience, step)
        for name, value in self.metrics().items():
            writer.add_scalar(f"{prefix}/{name}", value, step)


def sum_over(world: World, stats: AlignmentStatistics) -> AlignmentStatistics:
    """The statistics of all processes together, in each of them; sums are taken in double precision."""
    if world.size == 1:
        return stats
    texts = world.gather_texts("\n".join(stats.sums))
    names = list(dict.fromkeys(name for text in texts for name in text.splitlines()))
    counts = [stats.loss, stats.n_words, stats.n_correct, stats.n_src_words]
    values = counts + [part for name in names for part in stats.sums.get(name, (0.0, 0))]
    loss, words, correct, source, *sums = world.sum(torch.tensor(values, dtype=torch.float64)).tolist()
    total = AlignmentStatistics(loss, int(words), int(correct), stats.computed_metrics)
    total.n_src_words, total.start_time = int(source), stats.start_time
    total.sums = {name: (sums[2 * i], int(sums[2 * i + 1])) for i, name in enumerate(names)}
    return total


class ReportManager(onmt.utils.report_manager.ReportMgr):
    """OpenNMT's report manager, which also appends every report to a file of JSON lines.

    Args:
        path: the file; None for none.
        args: as for OpenNMT's.
        kwargs: likewise.
    """

    def __init__(self, path: str | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.file = MetricsFile(path) if path else None

    def _report_training(
        self, step: int, num_steps: int, learning_rate: float, patience: int | None, report_stats: Any
    ) -> Any:
        self._append("train", step, learning_rate, report_stats)
        return super()._report_training(step, num_steps, learning_rate, patience, report_stats)

    def _report_step(
        self, lr: float, patience: int | None, step: int, train_stats: Any = None, valid_stats: Any = None
    ) -> None:
        super()._report_step(lr, patience, step, train_stats, valid_stats)
        if valid_stats is not None:
            metrics = valid_stats.metrics()
            if metrics:
                self.log("Validation " + "; ".join(f"{name}: {value:.4f}" for name, value in metrics.items()))
            self._append("valid", step, lr, valid_stats)

    def _append(self, part: str, step: int, learning_rate: float, stats: Any) -> None:
        if self.file is None or not stats.n_words:
            return
        line = {
            "part": part,
            "step": step,
            "words": stats.n_words,
            "ppl": stats.ppl(),
            "accuracy": stats.accuracy(),
            "learning_rate": learning_rate,
            **stats.metrics(),
            **({"warm_up": True} if stats.warm_up else {}),
        }
        self.file.append(line)


def build_report_manager(stock: Any, opt: Any, gpu_rank: int) -> Any:
    """OpenNMT's report manager, or ours around the same writer for models with -attention."""
    manager = stock(opt, gpu_rank)
    if not opt.attention:
        return manager
    path = opt.metrics_file or f"{opt.save_model}.metrics.jsonl"
    only_first = None if path == "none" or gpu_rank > 0 else path
    return ReportManager(
        only_first, manager.report_every, manager.start_time, tensorboard_writer=manager.tensorboard_writer
    )
