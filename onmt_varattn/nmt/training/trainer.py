"""Training: OpenNMT's trainer, in one process or many, that loses nothing on a bad day."""

import contextlib
import json
import math
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import onmt
import torch
from onmt.utils import Statistics
from onmt.utils.logging import logger

from onmt_varattn.errors import StoppedError, TrainingError
from onmt_varattn.nmt.data.batches import Share, TrainingData, amount, lines_of
from onmt_varattn.nmt.training.loss import TrainingLoss
from onmt_varattn.nmt.training.memory import accumulate
from onmt_varattn.nmt.training.optimizer import PlateauOptimizer
from onmt_varattn.nmt.training.resume import (
    early_stopping_state,
    forget_validations,
    set_early_stopping_state,
    versions,
)
from onmt_varattn.nmt.training.statistics import AlignmentStatistics, sum_over
from onmt_varattn.training.checkpoints.trees import BrokenError, is_count, like
from onmt_varattn.training.health import NOT_BEGUN, Health
from onmt_varattn.training.pace import Pace
from onmt_varattn.training.processes import World
from onmt_varattn.training.randomness import model_stream, seed_of_rank, set_model_stream
from onmt_varattn.training.signals import SIGNALS, StopRequest
from onmt_varattn.training.start import load_start


@dataclass(frozen=True)
class News:
    """What the processes tell each other in each step.

    Attributes:
        signal: that some process was asked to stop by; 0 for none.
        save_again: the last checkpoint could not be written.
        left_out: how much of the batch did not fit into some process's memory, as the loss is normalised.
        sentences: how many that were.
        bad_ranks: processes whose loss is not finite.
        present: whether some process has a gradient, one a parameter.
        watched: sums over target words that the end of the warm-up depends on.
    """

    signal: int
    save_again: bool
    left_out: int
    sentences: int
    bad_ranks: list[int]
    present: list[bool]
    watched: list[float]


class Trainer(onmt.Trainer):
    """OpenNMT's trainer with a loop of our own.

    It validates on a CPU too (OpenNMT-py 2.3.0 counts GPUs to decide), sums gradients and
    statistics over processes, leaves out a step that is not finite, splits a batch that does not
    fit into memory, and saves all that a later run needs to go on as if nothing had happened.

    Attributes:
        world: the processes that train together.
        validates_alone: every process does all of a validation, and the first one's counts.
        bad_steps_limit: give up after this many steps in a row that could not be taken.
        filled: options that nobody gave, and what they were filled in with.
        health: judges reports; None for models of OpenNMT-py's own.
        pace: tells how long it will take; None for nobody to tell.
    """

    optim: PlateauOptimizer
    report_stats: AlignmentStatistics
    world = World()
    validates_alone = False
    moving_average: list[torch.Tensor] | None
    bad_steps_limit = 10
    filled: dict[str, Any]
    health: Health | None = None
    pace: Pace | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_gpu = 1  # what OpenNMT's methods do for several processes is done here
        self.report_stats = AlignmentStatistics()
        self.best: dict[str, float] = {"step": 0, "ppl": math.inf}
        self.left_out = {"steps": 0, "in_a_row": 0, "sentences": 0}
        self.save_again = False
        self.filled = {}
        self.began: float = 1  # the run's number among those with its -save_model; see saving.run_of
        self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def train(
        self,
        train_iter: TrainingData,
        train_steps: int,
        save_checkpoint_steps: int = 5000,
        valid_iter: Any = None,
        valid_steps: int = 10000,
    ) -> None:
        """Train, validate and save until the steps are done, early stopping says so, or a signal comes.

        Args:
            train_iter: shares of batches.
            train_steps: how many steps there are to be in all; 0 for as many as there are batches.
            save_checkpoint_steps: steps between checkpoints; 0 for only one at the end.
            valid_iter: validation batches, or None.
            valid_steps: steps between validations.
        """
        self._start_report_manager()
        self._steps = train_steps
        self.train_loss.step = max(1, self.optim.training_step - 1)
        self._catch_up_on_dropout()
        step, news = self.optim.training_step - 1, None
        pace = self.pace or contextlib.nullcontext()
        with StopRequest(announce=self.world.first) as stop, pace:
            for shares, normalization in self._accum_batches(train_iter):
                step = self.optim.training_step
                news = self._train_step(shares, normalization, stop)
                if self.average_decay > 0 and (step - 1) % self.average_every == 0:
                    self._update_average(step)
                began = self._follow_warm_up(news)
                self._report(step, train_steps, split=began)
                if self.pace is not None:
                    self.pace.step(step)
                new_best = early = False
                if valid_iter is not None and step % valid_steps == 0:
                    if self.pace is not None:
                        self.pace.pause("validating")
                    new_best = self._validate(valid_iter, step)
                    early = self.earlystopper is not None and self.earlystopper.has_stopped()
                last = bool(news.signal) or early or 0 < train_steps <= step
                due = save_checkpoint_steps > 0 and step % save_checkpoint_steps == 0
                again = news.save_again and step % self.report_manager.report_every == 0
                if due or new_best or last or again:
                    self._save(step, train_iter, lasting=due or last or again)
                if last:
                    break
            else:
                self._save(step, train_iter)
        self._end(step, news.signal if news else 0)

    def _catch_up_on_dropout(self) -> None:
        """Have the dropout of the steps before, which OpenNMT changes at a step's own turn only."""
        past = [i for i, step in enumerate(self.dropout_steps) if 0 < step < self.optim.training_step - 1]
        if past:
            self.model.update_dropout(self.dropout[past[-1]], self.attention_dropout[past[-1]])

    def _update_average(self, step: int) -> None:
        """OpenNMT's; its first average would be the parameters themselves, and change with them."""
        first = self.moving_average is None
        super()._update_average(step)
        if first and self.moving_average is not None:
            self.moving_average = [average.clone() for average in self.moving_average]

    def _end(self, step: int, stopped_by: int) -> None:
        """Say what the run left out, and why it is over if it was interrupted.

        Nobody leaves before the first process has saved.
        """
        self.save_again = bool(self.world.from_first(int(self.save_again)))
        if self._warming_up and not stopped_by:
            logger.warning(NOT_BEGUN, self.train_loss.scheduled.schedule.warm_up_objective)
        if self.left_out["sentences"]:
            logger.warning(
                "Left out: %d steps, %d sentences in all.", self.left_out["steps"], self.left_out["sentences"]
            )
        if self.save_again:
            raise TrainingError(f"the model of step {step} could not be saved (see above)")
        if stopped_by:
            name = signal.Signals(stopped_by).name
            nothing = self.model_saver is not None and self.model_saver.keep_checkpoint == 0
            saved = "not saved (-keep_checkpoint 0)" if nothing else "which is saved; -resume goes on"
            raise StoppedError(f"{name}: stopped after step {step}, {saved}", stopped_by)

    def _accum_batches(self, iterator: Iterable[Share]) -> Iterator[tuple[list[Share], int]]:
        """The shares of a step, and what the loss of all processes together is divided by."""
        shares: list[Share] = []
        for share in iterator:
            shares.append(share)
            if len(shares) == self._accum_count(self.optim.training_step):
                yield shares, self._amount(share.whole for share in shares)
                shares = []
        if shares:
            yield shares, self._amount(share.whole for share in shares)

    def _amount(self, parts: Iterable[list[Any]]) -> int:
        return sum(amount(examples, self.norm_method) for examples in parts)

    def _train_step(self, shares: list[Share], normalization: int, stop: StopRequest) -> News:
        """One step of the optimiser, or none if it would do harm."""
        step = self.optim.training_step
        self._maybe_update_dropout(step)
        self.accum_count = len(shares)
        self.train_loss.step = step
        if self.trunc_size:
            return self._truncated_step(shares, normalization, stop)
        computed, left_out = accumulate(
            shares, self.optim.zero_grad, lambda share: self._backward(share, normalization)
        )
        finite = all(math.isfinite(stats.loss) for stats in computed)
        news = self._exchange(stop.signal, left_out, finite, computed)
        self._share_averages()
        self.world.sum_gradients(self._trained, news.present)
        if 0 < news.left_out < normalization:
            for parameter in self._trained:
                if parameter.grad is not None:
                    parameter.grad *= normalization / (normalization - news.left_out)
        self.left_out["sentences"] += news.sentences
        if news.bad_ranks or news.left_out == normalization:
            self.optim.count_step()
            self._leave_out(
                step, shares, "its loss is not finite" if news.bad_ranks else "out of memory", news
            )
        elif not self.optim.update():
            self._leave_out(step, shares, "its gradient is not finite", news)
        else:
            self.left_out["in_a_row"] = 0
            for stats in computed:
                self.report_stats.update(stats, update_n_src_words=True)
            return news
        return replace(news, watched=[0.0] * len(news.watched))

    def _backward(self, share: Share, normalization: int) -> Statistics:
        """Add the gradient of a share."""
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
            stats.computed_metrics = self._score(self.train_scorers, batch, "train")
        if loss is not None:  # OpenNMT's own losses differentiate in shards
            self.optim.backward(loss)
        if self.model.decoder.state is not None:
            self.model.decoder.detach_state()
        if lengths is not None:
            stats.n_src_words = lengths.sum().item()
        return stats

    def _score(self, scorers: dict[str, Any], batch: Any, mode: str) -> dict[str, float]:
        """OpenNMT's metrics that need translations."""
        for name, entry in scorers.items():
            entry["value"] = self.training_eval_handler(entry["scorer"], batch, mode)
            logger.info("%s %s: %s", mode, name, entry["value"])
        return {name: entry["value"] for name, entry in scorers.items()}

    def _truncated_step(self, shares: list[Share], normalization: int, stop: StopRequest) -> News:
        """OpenNMT's own step for its -truncated_decoder, which updates several times a batch."""
        batches = [share.batch() for share in shares]
        self._gradient_accumulation(batches, normalization, Statistics(), self.report_stats)
        return self._exchange(stop.signal, [], True, [])

    def _exchange(
        self, stop_signal: int, left_out: list[Share], finite: bool, computed: list[Statistics]
    ) -> News:
        """Tell the other processes what happened here, and hear what happened there."""
        rank, size = self.world.rank, self.world.size
        sentences = sum(len(share.examples) for share in left_out)
        parts: list[list[float]] = [
            [stop_signal == number for number in SIGNALS],
            [self.save_again, self._amount(share.examples for share in left_out), sentences],
            [not finite and rank == other for other in range(size)],
            [parameter.grad is not None for parameter in self._trained],
            [_total(computed, name) for name in self._watched],
        ]
        told = self.world.sum(torch.tensor(list(chain(*parts)), dtype=torch.float64))
        lengths = [len(part) for part in parts]
        signals, counts, bad, present, watched = (part.tolist() for part in told.cpu().split(lengths))
        return News(
            signal=next((number for number, count in zip(SIGNALS, signals, strict=True) if count), 0),
            save_again=counts[0] > 0,
            left_out=int(counts[1]),
            sentences=int(counts[2]),
            bad_ranks=[rank for rank, count in enumerate(bad) if count],
            present=[count > 0 for count in present],
            watched=watched,
        )

    def _share_averages(self) -> None:
        """Have running averages of an objective be the same in all processes: their mean."""
        if self.world.size > 1 and isinstance(self.train_loss, TrainingLoss):
            for average in self.train_loss.attention.objective.buffers():
                average.copy_(self.world.sum(average.double().view(1)).view(()) / self.world.size)

    def _leave_out(self, step: int, shares: list[Share], reason: str, news: News) -> None:
        """Count and report a step that was not taken; give up if there are too many in a row."""
        size = self.world.size
        ranks = news.bad_ranks or range(size)  # nobody in particular is to blame for a sum
        examples = [example for share in shares for example in share.of_ranks(ranks, size)]
        self.left_out["steps"] += 1
        self.left_out["in_a_row"] += 1
        self.left_out["sentences"] += sum(len(share.whole) for share in shares) - news.sentences
        logger.warning("Step %d is left out: %s. Lines: %s", step, reason, lines_of(examples))
        if self.left_out["in_a_row"] >= self.bad_steps_limit:
            many = f"{self.bad_steps_limit} steps in a row could not be taken (the last: {reason})"
            raise TrainingError(f"{many}; {self._advice()}")

    def _advice(self) -> str:
        """What to do about steps that cannot be taken."""
        if self.model_saver is None:
            return "see what the first process says"
        changes = "a lower -learning_rate, -max_grad_norm or -batch_size"
        if (saved := self.model_saver.last_saved_step) is None:
            return f"look at the lines named above, and begin anew with {changes}"
        path = f"{self.model_saver.base_path}_step_{saved}.pt"
        return (
            f"look at the lines named above, and go on with -train_from {path} -reset_optim keep_states, "
            f"another -save_model, and {changes}"
        )

    @property
    def _warming_up(self) -> bool:
        """Whether the last step was trained with a simpler objective."""
        return isinstance(self.train_loss, TrainingLoss) and self.train_loss.scheduled.warming_up

    @property
    def _watched(self) -> tuple[str, ...]:
        """The names of the sums that the end of the warm-up depends on."""
        return self.train_loss.scheduled.watched if isinstance(self.train_loss, TrainingLoss) else ()

    def _follow_warm_up(self, news: News) -> bool:
        """End the warm-up if it is time.

        Returns:
            Whether the step was the last one of the warm-up.
        """
        if not isinstance(self.train_loss, TrainingLoss):
            return False
        scheduled = self.train_loss.scheduled
        if not scheduled.watch(*news.watched):
            return False
        self._begin_objective(scheduled.why_it_ended)
        return True

    def _begin_objective(self, why: str) -> None:
        """What was validated during the warm-up counts for nothing afterwards."""
        logger.info("%s: %s attention from here", why, self.model.attention)
        if self.pace is not None:
            self.pace.restart()
        self.best = {"step": 0, "ppl": math.inf}
        self.optim.forget_validations()
        forget_validations(self.earlystopper)

    def _report(self, step: int, train_steps: int, split: bool = False) -> None:
        """Log and write what training reports: every so many steps, and where the objective changes."""
        if step % self.report_manager.report_every and not split:
            return
        stats = sum_over(self.world, self.report_stats)
        if self.world.first and stats.n_words:
            patience = None if self.earlystopper is None else self.earlystopper.current_tolerance
            rate = self.optim.learning_rate()
            stats.warm_up = self._warming_up
            self.report_manager._report_training(step, train_steps, rate, patience, stats)
            self._judge(step, stats, validation=False)
        self.report_stats = AlignmentStatistics()

    def _judge(self, step: int, stats: AlignmentStatistics, validation: bool) -> None:
        """Log what is wrong with the run."""
        if self.health is None:
            return
        metrics = {"ppl": stats.ppl(), **stats.metrics()}
        for finding in self.health.judge(step, metrics, self._warming_up, validation):
            logger.warning("Health: %s.", finding)

    def _validate(self, valid_iter: Any, step: int) -> bool:
        """Validate, report, and let learning rate and early stopping follow.

        Returns:
            Whether this is the best perplexity so far.
        """
        stats = self.validate(valid_iter, moving_average=self.moving_average)
        if self.world.first:
            stats.warm_up = self._warming_up
            self._report_step(self.optim.learning_rate(), step, valid_stats=stats)
            self._judge(step, stats, validation=True)
        if self._warming_up:
            if not self._still_warming_up(stats, step):
                return False
        else:
            self.optim.report_validation(stats.ppl())
            if self.earlystopper is not None:
                self.earlystopper(stats, step)
        if not stats.ppl() < self.best["ppl"]:
            return False
        self.best = {"step": step, "ppl": stats.ppl()}
        return True

    def _still_warming_up(self, stats: AlignmentStatistics, step: int) -> bool:
        """Whether the warm-up goes on after this validation: neither rate nor patience follow it."""
        scheduled = self.train_loss.scheduled
        metrics = stats.metrics()
        soft = scheduled.schedule.warm_up_objective == "soft"
        if scheduled.validated(metrics.get("soft_ppl", stats.ppl()) if soft else stats.ppl()):
            self._begin_objective(scheduled.why_it_ended)
            self._report(step, self._steps, split=True)
        return scheduled.warm_up_end is None or step < scheduled.warm_up_end

    def validate(self, valid_iter: Any, moving_average: Any = None) -> Statistics:
        """The statistics of all processes' validation batches."""
        stats = super().validate(valid_iter, moving_average)
        if self.validates_alone and not self.world.first:
            stats = AlignmentStatistics()
        return sum_over(self.world, stats)

    def _save(self, step: int, data: TrainingData, lasting: bool = True) -> None:
        """Save, in the first process; a failure is reported there, and remembered."""
        state = self.state_dict(data)
        if self.model_saver is not None:
            best = int(self.best["step"])
            self.save_again = not self.model_saver.save(step, self.moving_average, state, best, lasting)

    def state_dict(self, data: TrainingData) -> dict[str, Any]:
        """All that a checkpoint of the model and its optimiser lacks; the processes gather it together."""
        state = {
            "streams": self.world.gather(model_stream(self.world.device)),
            "data": data.state_dict(),
            "reports": self.world.gather_texts(json.dumps(self.report_stats.state_dict())),
            "began": self.began,
            "best": dict(self.best),
            "left_out": dict(self.left_out),
            "early_stopping": early_stopping_state(self.earlystopper),
            "filled": dict(self.filled),
            "versions": versions(),
        }
        if isinstance(self.train_loss, TrainingLoss):
            state["start"] = self.train_loss.scheduled.start_state()
        if self.moving_average:  # which takes the parameters' place in the checkpoint
            state["parameters"] = [parameter.detach().clone() for parameter in self.model.parameters()]
        return state

    def load_state_dict(self, state: dict[str, Any], data: TrainingData) -> None:
        """Go on from there."""
        rank, device = self.world.rank, self.world.device
        streams = state["streams"]
        if rank < len(streams):
            set_model_stream(streams[rank], device)
        else:
            torch.manual_seed(seed_of_rank(torch.initial_seed(), rank, self.optim.training_step))
        if len(streams) != self.world.size:
            logger.warning("%d processes go on with what %d began.", self.world.size, len(streams))
        data.load_state_dict(state["data"])
        if isinstance(self.train_loss, TrainingLoss):
            load_start(self.train_loss.scheduled, state.get("start"))
        if len(streams) == self.world.size:
            self.report_stats.load_state_dict(json.loads(state["reports"][rank]))
        self.began = state["began"]
        self.best = like(state["best"], self.best, "best step")
        if not is_count(self.best["step"]):
            raise BrokenError("its best step is damaged")
        self.left_out = like(state["left_out"], self.left_out, "count of what was left out")
        set_early_stopping_state(self.earlystopper, state["early_stopping"])
        if "parameters" in state:
            if self.average_decay > 0:
                self.moving_average = [p.detach().clone().float() for p in self.model.parameters()]
            for parameter, value in zip(self.model.parameters(), state["parameters"], strict=True):
                parameter.data.copy_(value)
        self._forget_an_earlier_warm_up()

    def _forget_an_earlier_warm_up(self) -> None:
        """Begin the objective where the run was resumed after its warm-up, and saved without knowing so."""
        if not isinstance(self.train_loss, TrainingLoss):
            return
        end = self.train_loss.scheduled.warm_up_end
        if end is not None and 0 < self.best["step"] <= end < self.optim.training_step:
            self._begin_objective("The warm-up is over")


def _total(computed: list[Statistics], name: str) -> float:
    """A named sum over the statistics of several batches."""
    return sum(getattr(stats, "sums", {}).get(name, (0.0, 0))[0] for stats in computed)
