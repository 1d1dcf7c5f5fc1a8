"""The automatic start: train a simpler objective until alignments have formed.

From random parameters a latent objective is apt to stay where it is: a word's alignment is a random
source position, the emission learns to ignore it, and once it does, neither the prior nor the
posterior gets a gradient. Soft attention has no such plateau, since its gradient reaches every score
through the expected context. So it goes first, until

    a = sum_j I_j / sum_j log S_j          0: all words have the same alignment, 1: each has its own

has risen and levelled off, where I is the mutual information of target and source position
(`objectives.mutual_information`), of the prior or, if that is less, of the posterior. Entropy alone
would not do: it is as low if all words look at the full stop. Both are judged by the run's own curve,
however long it is: the last fifth of all steps so far is compared with the fifth before it.
"""

from typing import Any

RISEN = 0.15  # a is at least this: alignments that are all the same do not count as a level
LEVEL = 0.1  # a fifth of the steps changed a by less than this share of it
BLOCKS = 64  # of equal length that the curve is kept in
FEWEST = 20  # blocks before anything is judged


class Formation:
    """The curve of a, and whether alignments have formed.

    Each block is the mean of a over `steps` training steps; when there are too many blocks, each
    two of them become one, so that the memory is bounded and the resolution follows the run.
    """

    def __init__(self) -> None:
        self.blocks: list[float] = []
        self.steps = 1  # in a block
        self.sums = [0.0, 0.0]  # of the block that is not full yet: information, and the most it can be
        self.count = 0  # of its steps

    def add(self, information: float, most: float) -> None:
        """Add a training step.

        Args:
            information: sum of the mutual information over the step's positions.
            most: sum of log S.
        """
        if not most > 0:  # one source position each: nothing to choose from
            return
        self.sums = [self.sums[0] + information, self.sums[1] + most]
        self.count += 1
        if self.count < self.steps:
            return
        self.blocks.append(self.sums[0] / self.sums[1])
        self.sums, self.count = [0.0, 0.0], 0
        if len(self.blocks) == BLOCKS:
            self.blocks = [(a + b) / 2 for a, b in zip(self.blocks[::2], self.blocks[1::2], strict=True)]
            self.steps *= 2

    @property
    def level(self) -> float | None:
        """a over the last fifth of the steps; None while there are too few."""
        return _mean(self.blocks[-(len(self.blocks) // 5) :]) if len(self.blocks) >= FEWEST else None

    @property
    def has_formed(self) -> bool:
        """Whether a has risen and levelled off."""
        now = self.level
        if now is None or self.count:  # judged once a block
            return False
        fifth = len(self.blocks) // 5
        before = _mean(self.blocks[-2 * fifth : -fifth])
        return now >= RISEN and abs(now - before) <= LEVEL * now

    def state_dict(self) -> dict[str, Any]:
        """The curve, as plain numbers."""
        return {
            "blocks": list(self.blocks),
            "steps": self.steps,
            "sums": list(self.sums),
            "count": self.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a curve.

        Raises:
            ValueError: it is not what `state_dict` gives.
        """
        blocks, steps, sums, count = (state[name] for name in ("blocks", "steps", "sums", "count"))
        lists = (
            isinstance(blocks, list) and len(blocks) < BLOCKS and isinstance(sums, list) and len(sums) == 2
        )
        if not (lists and all(type(x) in (int, float) for x in [*blocks, *sums])):
            raise ValueError("the curve of alignments is damaged")
        if not (type(steps) is int and type(count) is int and 0 <= count < steps):
            raise ValueError("the curve of alignments is damaged")
        self.blocks, self.steps, self.sums, self.count = list(blocks), steps, list(sums), count


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
