"""Training: OpenNMT's trainer and optimiser, with validation wherever it runs."""

from typing import Any

import onmt
import torch
from onmt.utils import Optimizer, Statistics
from onmt.utils.logging import logger


class Trainer(onmt.Trainer):
    """OpenNMT's trainer, which validates on a CPU too.

    OpenNMT-py 2.3.0 counts GPUs to decide whether to validate. One process is one worker,
    whatever it runs on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_gpu: int = max(self.n_gpu, 1)

    def _gradient_accumulation(self, *args: Any, **kwargs: Any) -> None:
        """One training step; schedules need to know which."""
        self.train_loss.step = self.optim.training_step
        super()._gradient_accumulation(*args, **kwargs)

    def validate(self, valid_iter: Any, moving_average: Any = None) -> Statistics:
        """Validate, and let the learning rate follow."""
        stats = super().validate(valid_iter, moving_average)
        if isinstance(self.optim, PlateauOptimizer):
            self.optim.report_validation(stats.ppl())
        return stats


class PlateauOptimizer(Optimizer):
    """OpenNMT's optimiser, whose rate falls when validation stops getting better.

    On a CPU the models of this package are updated by torch's fused Adam: the same update in one
    pass over the parameters instead of ten.

    With `-decay_on_plateau N`, N validations in a row without a new lowest perplexity multiply
    the rate by `-learning_rate_decay`, and this takes the place of OpenNMT's schedule by steps.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience = 0
        self._decay = 1.0
        self._plateau = {"rate_scale": 1.0, "best": float("inf"), "stalled": 0}

    @classmethod
    def from_opt(cls, model: Any, opt: Any, checkpoint: dict[str, Any] | None = None) -> "PlateauOptimizer":
        """OpenNMT's constructor."""
        optimizer = super().from_opt(model, opt, checkpoint)
        optimizer._patience = opt.decay_on_plateau
        optimizer._decay = opt.learning_rate_decay
        if optimizer._patience:
            optimizer._learning_rate_decay_fn = None
        if opt.attention:
            optimizer._fuse()
        return optimizer

    def _fuse(self) -> None:
        if type(self._optimizer) is not torch.optim.Adam:
            return
        for group in self._optimizer.param_groups:
            if all(parameter.device.type == "cpu" for parameter in group["params"]):
                group["fused"] = True

    def learning_rate(self) -> float:
        """The rate of the next step."""
        return super().learning_rate() * self._plateau["rate_scale"]

    def report_validation(self, perplexity: float) -> None:
        """Count a validation, and lower the rate if it is time."""
        if not self._patience:
            return
        plateau = self._plateau
        if perplexity < plateau["best"]:
            plateau.update(best=perplexity, stalled=0)
            return
        plateau["stalled"] += 1
        if plateau["stalled"] == self._patience:
            plateau.update(rate_scale=plateau["rate_scale"] * self._decay, stalled=0)
            logger.info(
                "No lower validation perplexity than %g for %d validations: learning rate %g",
                plateau["best"],
                self._patience,
                self.learning_rate(),
            )

    def state_dict(self) -> dict[str, Any]:
        """OpenNMT's state, and where the plateau search stands. It may be resumed on any device."""
        state = super().state_dict()
        if type(self._optimizer) is torch.optim.Adam:
            for group in state["optimizer"]["param_groups"]:
                group["fused"] = None
        return {**state, "plateau": dict(self._plateau)} if self._patience else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a saved state; one without a plateau is OpenNMT's own.

        The state of a model with other parameters (before it got a posterior, say) fits no more.
        """
        saved = state_dict.get("optimizer", {}).get("param_groups", [])
        ours = self._optimizer.param_groups
        if saved and [len(group["params"]) for group in saved] != [len(group["params"]) for group in ours]:
            logger.info("The model has other parameters than in the checkpoint: the optimiser starts anew.")
            state_dict = {name: value for name, value in state_dict.items() if name != "optimizer"}
        super().load_state_dict(state_dict)
        self._plateau.update(state_dict.get("plateau", {}))
