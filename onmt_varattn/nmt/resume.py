"""What a run needs to go on as if it had never stopped, and where to find it."""

import glob
import os
import platform
import re
from importlib.metadata import version
from typing import Any

import torch
from onmt.utils.earlystopping import EarlyStopping, PatienceEnum
from onmt.utils.logging import logger

from onmt_varattn.errors import UserError


def versions() -> dict[str, str]:
    """What a checkpoint was written with."""
    import onmt_varattn

    return {
        "onmt_varattn": onmt_varattn.__version__,
        "OpenNMT-py": version("OpenNMT-py"),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def early_stopping_state(stopper: EarlyStopping | None) -> dict[str, Any] | None:
    """How patient early stopping still is."""
    if stopper is None:
        return None
    return {
        "current": stopper.current_tolerance,
        "stalled": stopper.stalled_tolerance,
        "status": stopper.status.name,
        "step": stopper.current_step_best,
        "scores": {scorer.name: scorer.best_score for scorer in stopper.early_stopping_scorers},
    }


def set_early_stopping_state(stopper: EarlyStopping | None, state: dict[str, Any] | None) -> None:
    """Be as patient as then; a run that asks for early stopping only now starts with all its patience."""
    if stopper is None or state is None:
        return
    stopper.current_tolerance, stopper.stalled_tolerance = state["current"], state["stalled"]
    stopper.status, stopper.current_step_best = PatienceEnum[state["status"]], state["step"]
    for scorer in stopper.early_stopping_scorers:
        scorer.best_score = state["scores"].get(scorer.name, scorer.best_score)


def checkpoints_of(prefix: str) -> dict[int, str]:
    """The checkpoints that a run with this -save_model left, by step, the newest first."""
    found = {}
    for path in glob.glob(f"{glob.escape(prefix)}_step_*.pt"):
        match = re.fullmatch(r"(\d+)\.pt", path[len(prefix) + len("_step_") :])
        if match:
            found[int(match[1])] = path
    return dict(sorted(found.items(), reverse=True))


def newest_good(prefix: str) -> tuple[int, dict[str, Any] | None]:
    """The newest checkpoint that can be read and says where training stood.

    Returns:
        Its step and its content; 0 and None if there is none.
    """
    from onmt_varattn.nmt import checkpoint

    for step, path in checkpoints_of(prefix).items():
        try:
            found = checkpoint.load(path)
        except UserError as error:
            logger.warning("-resume passes over a checkpoint: %s", error)
            continue
        if found.get("training"):
            return step, found
        logger.warning("-resume passes over %s, which does not say where training stood", path)
    return 0, None


def remove_remains(prefix: str) -> None:
    """Remove what a run that was killed while saving left half-written."""
    directory, name = os.path.split(os.path.abspath(prefix))
    for path in glob.glob(os.path.join(glob.escape(directory), f".{glob.escape(name)}_step_*.pt.*.tmp")):
        os.unlink(path)
