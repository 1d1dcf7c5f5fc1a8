"""What a run reports: means of named sums, and a file with a line of JSON a report."""

import json
import logging
import math
import os
from typing import Any

from onmt_varattn.utils.files import append_whole, atomic_write

logger = logging.getLogger()


def means(sums: dict[str, tuple[float, int]]) -> dict[str, float]:
    """Means of sums, each given with the number of items it is over.

    The perplexity of a bound is exp of its mean; a reward has its variance too. The prior's entropy is
    given in nats, and relative to that of uniform alignments; mutual information is relative to the same.
    """
    found = {name: value / items for name, (value, items) in sums.items() if items}
    if (most := found.pop("uniform_entropy", 0.0)) > 0:
        found["relative_entropy"] = found["prior_entropy"] / most
    for name in ("prior_information", "posterior_information"):
        if name in found and most > 0:
            found[name] /= most
        else:
            found.pop(name, None)  # one source position each: nothing to choose from
    if "soft_log_likelihood" in found:
        found["soft_ppl"] = math.exp(min(-found.pop("soft_log_likelihood"), 100))
    if "squared_reward" in found:
        found["reward_variance"] = found.pop("squared_reward") - found["reward"] ** 2
    if "elbo" in found:
        found["exp_elbo"] = math.exp(min(-found["elbo"], 100))
    return found


class MetricsFile:
    """A file of JSON lines, each of which tells of a step; none is lost, and none is there twice.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._waiting: list[str] = []  # lines that could not be written yet

    def begin(self, step: int, resume: bool) -> None:
        """Keep the lines of the steps before the run's first one, and no others.

        Args:
            step: the first step of the run.
            resume: later lines are of this very run, and will be written again; otherwise a copy
                of the file is left beside it.
        """
        if not os.path.exists(self.path):
            return
        with open(self.path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.endswith("\n")]
        kept = [line for line in lines if 0 < self._step_of(line) < step]
        if len(kept) < len(lines) and not resume:
            logger.info("%s: lines of an earlier run are moved to %s.old", self.path, self.path)
            os.replace(self.path, f"{self.path}.old")
        with atomic_write(self.path) as file:
            file.writelines(kept)

    def append(self, line: dict[str, Any]) -> None:
        """Add a line, after those that could not be written before."""
        self._waiting.append(json.dumps(line) + "\n")
        try:
            append_whole(self.path, "".join(self._waiting))
            self._waiting = []
        except OSError as error:
            logger.warning(
                "%s: cannot be written (%s); its lines are kept for later", self.path, error.strerror
            )

    def _step_of(self, line: str) -> int:
        """The step that a line tells of; 0 if it is none of ours."""
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            logger.warning("%s: a line that is no report is left out: %.40s", self.path, line.strip())
            return 0
