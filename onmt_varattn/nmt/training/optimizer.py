"""OpenNMT's optimiser with a learning rate that follows validation; steps that are not finite are skipped."""

from argparse import Namespace
from typing import Any

import torch
from onmt.utils import Optimizer
from onmt.utils.logging import logger

from onmt_varattn.training.checkpoints.fitting import check_state
from onmt_varattn.training.optimizer import Plateau, clip_and_step, fuse


class PlateauOptimizer(Optimizer):
    """OpenNMT's optimiser, whose learning rate falls when validation stops improving.

    With `-decay_on_plateau N` the plateau replaces OpenNMT's schedule by steps. On a CPU the models of this
    package are updated by torch's fused Adam.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plateau = Plateau(0, 1.0)

    @classmethod
    def from_opt(
        cls, model: Any, opt: Namespace, checkpoint: dict[str, Any] | None = None
    ) -> "PlateauOptimizer":
        """OpenNMT's constructor."""
        optimizer = super().from_opt(model, opt, checkpoint)
        plateau = optimizer.plateau  # its state may be from the checkpoint
        plateau.patience, plateau.decay = opt.decay_on_plateau, opt.learning_rate_decay
        if plateau.patience:
            optimizer._learning_rate_decay_fn = None
        if opt.attention:
            fuse(optimizer._optimizer)
        if optimizer._scaler is not None:  # it is set up by the first loss, and a process may have none
            optimizer._scaler.scale(torch.zeros((), device=next(model.parameters()).device))
        return optimizer

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return super().learning_rate() * self.plateau.rate_scale

    def update(self) -> bool:
        """Update the parameters, unless a gradient is not finite; the step is counted in any case.

        With fp16 torch's scaler skips what overflows, and lowers its scale. Sparse gradients have no norm
        and are left to OpenNMT.

        Returns:
            Whether the gradients were finite.
        """
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        if self._fp16 or any(p.grad is not None and p.grad.is_sparse for p in parameters):
            self.step()
            return True
        finite = clip_and_step(self._optimizer, self.learning_rate(), self._max_grad_norm)
        self.count_step()
        return finite

    def count_step(self) -> None:
        """Count a step."""
        self._decay_step += 1
        self._training_step += 1

    def state_dict(self) -> dict[str, Any]:
        """OpenNMT's state and that of the plateau, independent of the device."""
        state = super().state_dict()
        if type(self._optimizer) is torch.optim.Adam:
            for group in state["optimizer"]["param_groups"]:
                group["fused"] = None
        if self._scaler is not None:
            state["scaler"] = self._scaler.state_dict()
        return {**state, "plateau": dict(self.plateau.state)} if self.plateau.patience else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state; one without a plateau is OpenNMT's own.

        The state of a model with other parameters (before a posterior was added, say) is not used.
        """
        optimizer = state_dict.get("optimizer", {})
        saved = optimizer.get("param_groups", []) if isinstance(optimizer, dict) else []  # several are a list
        ours = self._optimizer.param_groups
        if saved and [len(group["params"]) for group in saved] != [len(group["params"]) for group in ours]:
            logger.info("The model has other parameters than in the checkpoint: the optimiser starts anew.")
            state_dict = {name: value for name, value in state_dict.items() if name != "optimizer"}
        elif saved:
            check_state(self._optimizer, optimizer)
        super().load_state_dict(state_dict)
        if self._scaler is not None and "scaler" in state_dict:
            self._scaler.load_state_dict(state_dict["scaler"])
        if "plateau" in state_dict:
            self.plateau.load_state_dict(state_dict["plateau"])
