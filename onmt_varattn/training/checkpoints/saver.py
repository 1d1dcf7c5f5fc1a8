"""The checkpoints of a run: which are kept, which one is the best, and which one a run resumes from."""

import contextlib
import glob
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.training.checkpoints import write
from onmt_varattn.utils.files import TEMPORARY, temporary_start

logger = logging.getLogger()  # OpenNMT-py logs to the root logger too

Load = Callable[[str, bool], dict[str, Any]]
"""Reads a checkpoint, given its path and whether to leave the data of tensors unread."""


class Saver:
    """Writes checkpoints atomically, with a link to the best one.

    Args:
        base_path: prefix of the files: BASE_step_N.pt, BASE_best.pt.
        content: makes the content of a checkpoint, given the state of the run.
        keep_checkpoint: number of the last checkpoints to keep; -1: all, 0: none is written.
    """

    def __init__(
        self,
        base_path: str,
        content: Callable[[dict[str, Any]], dict[str, Any]],
        keep_checkpoint: int = -1,
    ) -> None:
        self.base_path, self.content, self.keep_checkpoint = base_path, content, keep_checkpoint
        self.last_saved_step: int | None = None
        self._kept: list[int] = []  # steps whose checkpoints count for -keep_checkpoint, oldest first
        self._passing: int | None = None  # kept as the best one only
        self._best = 0  # the step of the best checkpoint that is there
        self._replaced: list[str] = []  # an earlier run's checkpoints, to be removed

    def replace(self, paths: Sequence[str]) -> None:
        """Replace an earlier run: its files are removed after the first checkpoint of the new run.

        Args:
            paths: checkpoints of the earlier run.
        """
        self._replaced = list(paths)

    def go_on(self, steps: Sequence[int], best: int, passing: int | None = None) -> None:
        """Take over the checkpoints of a run that is resumed.

        Args:
            steps: steps with a checkpoint, up to the one that the run resumes from.
            best: the step with the best validation.
            passing: the step that was saved only because it was the best.
        """
        if best in steps:
            self._link(best)
        else:  # it could not be saved: the one before it is still linked
            linked = os.path.realpath(self._best_path)
            self._best = next((step for step in steps if os.path.realpath(self._path(step)) == linked), 0)
        self._passing = passing if passing in steps else None
        self._kept = sorted(set(steps) - {self._passing})
        self.last_saved_step = max(steps, default=None)

    def save(
        self, step: int, training: dict[str, Any] | None = None, best: int = 0, lasting: bool = True
    ) -> bool:
        """Save a checkpoint; a failure is logged, and existing files stay as they are.

        Args:
            step: the last finished step.
            training: state of the run.
            best: the step with the best validation so far.
            lasting: keep the checkpoint, as -keep_checkpoint says, even if a better one follows.

        Returns:
            Whether it was saved.
        """
        if self.keep_checkpoint == 0 or step == self.last_saved_step:
            return True
        path = self._path(step)
        passing = (self._passing if self._passing == best else None) if lasting else step
        logger.info("Saving checkpoint %s", path)
        try:
            write(self.content({**(training or {}), "passing": passing}), path)
        except (OSError, RuntimeError) as error:  # of the disk, or of the device that the tensors are on
            logger.error("%s: cannot be saved (%s); training goes on and tries again", path, _reason(error))
            return False
        self.last_saved_step = step
        if best == step:
            self._link(step)
        self._forget(step, lasting)
        self._remove_replaced(path)
        return True

    def _path(self, step: int) -> str:
        return f"{self.base_path}_step_{step}.pt"

    @property
    def _best_path(self) -> str:
        return f"{self.base_path}_best.pt"

    def _link(self, step: int) -> None:
        """Link the name of the best checkpoint to this one."""
        self._best = step
        try:
            link(self._path(step), self._best_path)
        except OSError as error:
            logger.warning("%s: cannot be linked to step %d: %s", self._best_path, step, error.strerror)

    def _forget(self, step: int, lasting: bool) -> None:
        """Remove checkpoints that are no longer kept; never the best one, nor this one."""
        if self._passing is not None and self._best != self._passing:
            _remove(self._path(self._passing))
            self._passing = None
        if not lasting:
            self._passing = step
            return
        self._kept.append(step)
        while 0 < self.keep_checkpoint < len(self._kept):
            oldest = self._kept.pop(0)
            if oldest == self._best:
                self._passing = oldest
            else:
                _remove(self._path(oldest))

    def _remove_replaced(self, saved: str) -> None:
        """Remove the checkpoints of an earlier run, except one that was just overwritten."""
        replaced, self._replaced = self._replaced, []
        try:
            for path in replaced:
                if path != saved:
                    _remove(path)
            if replaced and not os.path.exists(self._best_path):
                _remove(self._best_path)  # a link to nothing
        except OSError as error:
            logger.warning("%s: of an earlier run, cannot be removed: %s", error.filename, error.strerror)


def _reason(error: BaseException) -> str:
    """The message of the system, from anywhere in a chain of exceptions."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.strerror:
            return link.strerror
        link = link.__cause__ or link.__context__
    return str(error).splitlines()[0]


def link(path: str, name: str) -> None:
    """Link a name to a file in the same directory; the name exists at every moment."""
    temporary = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(os.path.basename(path), temporary)
    os.replace(temporary, name)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def checkpoints_of(prefix: str) -> dict[int, str]:
    """The checkpoints with this prefix, by step, the newest first."""
    found = {}
    for path in glob.glob(f"{glob.escape(prefix)}_step_*.pt"):
        match = re.fullmatch(r"(\d+)\.pt", path[len(prefix) + len("_step_") :])
        if match:
            found[int(match[1])] = path
    return dict(sorted(found.items(), reverse=True))


Run = tuple[int, float]
"""The run that a checkpoint belongs to; later runs with the same -save_model compare as greater."""


def run_of(beginning: object) -> Run | None:
    """The run that the value "began" of a checkpoint means; None if it is not valid.

    It is the number of the run among those with the same -save_model. In version 0.1 it was a time (a
    float), which depends on the clock: such runs count as earlier than all runs with a number.
    """
    if isinstance(beginning, float) and beginning > 0:
        return (0, beginning)
    if isinstance(beginning, int) and not isinstance(beginning, bool) and beginning > 0:
        return (1, beginning)
    return None


def _run_in(checkpoint: dict[str, Any]) -> Run | None:
    training = checkpoint.get("training")
    return run_of(training.get("began")) if isinstance(training, dict) else None


def began(path: str, load: Load) -> Run | None:
    """The run of a checkpoint; None if it cannot be read or has no state of training."""
    try:
        run = _run_in(load(path, True))
    except UserError as error:
        logger.warning("-resume passes over a checkpoint: %s", error)
        return None
    if run is None:
        logger.warning("-resume passes over %s, which does not say where training stood", path)
    return run


def next_number(prefix: str, load: Load) -> int:
    """The number of a new run: one more than the largest among the checkpoints with this prefix."""
    numbers = [0]
    for path in checkpoints_of(prefix).values():
        with contextlib.suppress(UserError):
            has_number, number = _run_in(load(path, True)) or (0, 0)
            numbers.append(int(number) if has_number else 0)
    return max(numbers) + 1


def newest_good(prefix: str, load: Load) -> int:
    """The step of the newest valid checkpoint of the latest run; 0 if there is none.

    An earlier run with the same -save_model may have left checkpoints with larger steps.
    """
    found = [
        (run, step, path)
        for step, path in checkpoints_of(prefix).items()
        if (run := began(path, load)) is not None
    ]
    for _, step, path in sorted(found, reverse=True):
        try:
            load(path, False)
        except UserError as error:
            logger.warning("-resume passes over a checkpoint: %s", error)
        else:
            return step
    return 0


def steps_of_run(prefix: str, beginning: float, last: int, load: Load) -> list[int]:
    """The steps, up to the last one, that have a checkpoint of a run."""
    found = checkpoints_of(prefix).items()
    return [step for step, path in found if step <= last and began(path, load) == run_of(beginning)]


def remove_remains(prefix: str) -> None:
    """Remove the incomplete files of a run that was killed while saving."""
    directory, name = os.path.split(os.path.abspath(prefix))
    of_version_0_1 = f".{glob.escape(name)}_step_*.pt.*"
    for start in (f"{temporary_start(f'{name}_step_0.pt')}*", of_version_0_1):
        for path in glob.glob(os.path.join(glob.escape(directory), start + TEMPORARY)):
            _remove(path)
