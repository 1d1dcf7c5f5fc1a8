"""The automatic start of a run, in its checkpoints."""

from typing import Any

from onmt_varattn.latent.objectives import ScheduledObjective
from onmt_varattn.training.checkpoints.trees import BrokenError


def load_start(scheduled: ScheduledObjective, state: Any) -> None:
    """Go on where a checkpoint left the automatic start; those of version 0.1 have none.

    Raises:
        BrokenError: it is damaged.
    """
    try:
        scheduled.load_start_state(state)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise BrokenError("its automatic start is damaged") from None
