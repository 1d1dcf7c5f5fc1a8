"""A learning rate that falls when validation stops getting better."""

import logging
from typing import Any

logger = logging.getLogger()


class Plateau:
    """A factor of the learning rate.

    Args:
        patience: validations in a row without a new lowest perplexity that lower the rate; 0: never.
        decay: what the rate is multiplied by then.
    """

    def __init__(self, patience: int, decay: float) -> None:
        self.patience, self.decay = patience, decay
        self.state: dict[str, Any] = {"rate_scale": 1.0, "best": float("inf"), "stalled": 0}

    @property
    def rate_scale(self) -> float:
        """The factor."""
        return self.state["rate_scale"]

    def report(self, perplexity: float) -> bool:
        """Count a validation.

        Returns:
            Whether the rate was lowered.
        """
        if not self.patience:
            return False
        if perplexity < self.state["best"]:
            self.state.update(best=perplexity, stalled=0)
            return False
        self.state["stalled"] += 1
        if self.state["stalled"] < self.patience:
            return False
        self.state.update(rate_scale=self.rate_scale * self.decay, stalled=0)
        return True

    def forget(self) -> None:
        """Begin to compare anew, with the rate as it is."""
        self.state.update(best=float("inf"), stalled=0)

    def tell(self, learning_rate: float) -> None:
        """Log that the rate was lowered."""
        logger.info(
            "No lower validation perplexity than %g for %d validations: learning rate %g",
            self.state["best"],
            self.patience,
            learning_rate,
        )
