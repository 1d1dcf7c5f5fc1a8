"""Translation as a task of the training engine, on top of OpenNMT's trainer."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from onmt import Trainer
from onmt.utils.logging import logger

from onmt_varattn.nmt.data.batches import Share, TrainingData, ValidationData, lines_of
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.training.loss import TrainingLoss
from onmt_varattn.nmt.training.optimizer import PlateauOptimizer
from onmt_varattn.nmt.training.statistics import AlignmentStatistics
from onmt_varattn.training.engine import Task
from onmt_varattn.training.processes import World


class TranslationTask(Task, Trainer):
    """Translation: OpenNMT's trainer as the engine uses it.

    OpenNMT's part is the moving average, gradient accumulation, the dropout schedule, the truncated
    decoder, and metrics that need translations.

    Attributes:
        world: the processes that train together.
        data: training data.
        valid: validation data; None: there are none.
        validates_alone: every process does all of a validation, and the result of the first one counts.
        train_steps: number of steps, for the log.
        saved: model options and fields for the checkpoints.
        filled: options that were not given, with the values they were filled in with.
    """

    items = "sentences"
    model: Any
    world = World()
    data: TrainingData
    valid: ValidationData | None = None
    validates_alone = False
    train_steps = 0
    saved: tuple[Any, Any]
    optim: PlateauOptimizer
    moving_average: list[torch.Tensor] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Trainer.__init__(self, *args, **kwargs)
        self.n_gpu = 1  # the engine replaces OpenNMT's code for several processes
        self.filled: dict[str, Any] = {}
        self.started = time.time()
        if isinstance(self.train_loss, TrainingLoss):
            self.attention, self.scheduled = self.model.attention, self.train_loss.scheduled

    @property
    def optimizer(self) -> PlateauOptimizer:
        """The optimiser."""
        return self.optim

    @contextlib.contextmanager
    def steps(self) -> Iterator[Iterator[list[Share]]]:
        """See the base class."""
        self.started = time.time()
        self._catch_up_on_dropout()
        yield self._accumulated(self.data)

    def _accumulated(self, shares: Iterable[Share]) -> Iterator[list[Share]]:
        """The shares of each step, as many as gradients are accumulated over."""
        step: list[Share] = []
        for share in shares:
            step.append(share)
            if len(step) == self._accum_count(self.optim.training_step):
                yield step
                step = []
        if step:
            yield step

    def _catch_up_on_dropout(self) -> None:
        """Set the dropout of a resumed run; OpenNMT changes it only when the step of the change comes."""
        past = [i for i, step in enumerate(self.dropout_steps) if 0 < step < self.optim.training_step - 1]
        if past:
            self.model.update_dropout(self.dropout[past[-1]], self.attention_dropout[past[-1]])

    def before_step(self, step: int) -> None:
        """See the base class."""
        self._maybe_update_dropout(step)

    def after_step(self, step: int) -> None:
        """See the base class."""
        if self.average_decay > 0 and (step - 1) % self.average_every == 0:
            self._update_average(step)

    def _update_average(self, step: int) -> None:
        """OpenNMT's; its first average would be the parameters themselves, and change with them."""
        first = self.moving_average is None
        super()._update_average(step)
        if first and self.moving_average is not None:
            self.moving_average = [average.clone() for average in self.moving_average]

    def backward(self, share: Share, normalization: int) -> AlignmentStatistics:
        """See the base class."""
        batch = share.batch()
        source, lengths = batch.src if isinstance(batch.src, tuple) else (batch.src, None)
        with torch.amp.autocast("cuda", enabled=self.optim.amp):
            outputs, attns = self.model(source, batch.tgt, lengths, with_align=self.with_align)
            loss, stats = self.train_loss(
                batch,
                outputs,
                attns,
                normalization=normalization,
                shard_size=self.shard_size,
                trunc_start=0,
                trunc_size=batch.tgt.size(0),
            )
        if self.train_scorers and self.optim.training_step % self.train_eval_steps == 0:
            stats.computed_metrics = self._scores(batch)
        if loss is not None:  # OpenNMT's own losses differentiate in shards
            self.optim.backward(loss)
        if self.model.decoder.state is not None:
            self.model.decoder.detach_state()
        if lengths is not None:
            stats.n_src_words = lengths.sum().item()
        return stats

    def _scores(self, batch: Any) -> dict[str, float]:
        """OpenNMT's metrics that need translations."""
        for name, entry in self.train_scorers.items():
            entry["value"] = self.training_eval_handler(entry["scorer"], batch, "train")
            logger.info("train %s: %s", name, entry["value"])
        return {name: entry["value"] for name, entry in self.train_scorers.items()}

    def own_step(self, shares: Sequence[Share], normalization: int, statistics: AlignmentStatistics) -> bool:
        """OpenNMT's own step for -truncated_decoder, with several updates per batch."""
        if not self.trunc_size:
            return False
        self.accum_count = len(shares)
        batches = [share.batch() for share in shares]
        self._gradient_accumulation(batches, normalization, AlignmentStatistics(), statistics)
        return True

    def statistics(self) -> AlignmentStatistics:
        """See the base class."""
        return AlignmentStatistics()

    def validate(self) -> AlignmentStatistics:
        """See the base class."""
        stats = Trainer.validate(self, self.valid, moving_average=self.moving_average)
        if self.validates_alone and not self.world.first:
            stats = AlignmentStatistics()
        return stats.over(self.world)

    def log_training(self, step: int, statistics: AlignmentStatistics, learning_rate: float) -> None:
        """See the base class."""
        statistics.output(step, self.train_steps, learning_rate, self.started)

    def log_validation(self, statistics: AlignmentStatistics) -> None:
        """See the base class."""
        logger.info("Validation perplexity: %g", statistics.ppl())
        logger.info("Validation accuracy: %g", statistics.accuracy())
        if metrics := statistics.metrics():
            logger.info("Validation " + "; ".join(f"{name}: {value:.4f}" for name, value in metrics.items()))

    def describe(self, shares: Sequence[Share], ranks: Sequence[int] | None = None) -> str:
        """Line numbers of sentence pairs."""
        size = self.world.size
        pairs = (share.examples if ranks is None else share.of_ranks(ranks, size) for share in shares)
        return f"lines: {lines_of(example for examples in pairs for example in examples)}"

    def advice(self, saved: str | None) -> str:
        """See the base class."""
        changes = "a lower -learning_rate, -max_grad_norm or -batch_size"
        if saved is None:
            return f"look at the lines named above, and begin anew with {changes}"
        return (
            f"look at the lines named above, and go on with -train_from {saved} -reset_optim keep_states, "
            f"another -save_model, and {changes}"
        )

    def content(self, training: dict[str, Any]) -> dict[str, Any]:
        """The content of a checkpoint, with averages in place of the parameters if there are any."""
        options, fields = self.saved
        return checkpoint.content(self.model, options, fields, self.optim, training, self.moving_average)

    def load(self, path: str, lazily: bool) -> dict[str, Any]:
        """See the base class."""
        return checkpoint.load(path, lazily)

    def state_dict(self) -> dict[str, Any]:
        """See the base class."""
        state: dict[str, Any] = {"data": self.data.state_dict(), "filled": dict(self.filled)}
        if self.moving_average:  # which takes the place of the parameters in the checkpoint
            state["parameters"] = [parameter.detach().clone() for parameter in self.model.parameters()]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See the base class."""
        self.data.load_state_dict(state["data"])
        if "parameters" in state:
            if self.average_decay > 0:
                self.moving_average = [p.detach().clone().float() for p in self.model.parameters()]
            for parameter, value in zip(self.model.parameters(), state["parameters"], strict=True):
                parameter.data.copy_(value)
