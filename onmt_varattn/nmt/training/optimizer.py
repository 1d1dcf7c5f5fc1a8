"""The optimiser: OpenNMT's, with a rate that follows validation, and without steps that go nowhere."""

import math
from typing import Any

import torch
from onmt.utils import Optimizer
from onmt.utils.logging import logger
from torch.nn.utils import clip_grad_norm_, get_total_norm

from onmt_varattn.training.checkpoints.fitting import check_state
from onmt_varattn.training.checkpoints.trees import like
from onmt_varattn.training.plateau import Plateau


class PlateauOptimizer(Optimizer):
    """OpenNMT's optimiser, whose rate falls when validation stops getting better.

    On a CPU the models of this package are updated by torch's fused Adam: the same update in one
    pass over the parameters instead of ten.

    With `-decay_on_plateau N`, N validations in a row without a new lowest perplexity multiply
    the rate by `-learning_rate_decay`, and this takes the place of OpenNMT's schedule by steps.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plateau = Plateau(0, 1.0)

    @classmethod
    def from_opt(cls, model: Any, opt: Any, checkpoint: dict[str, Any] | None = None) -> "PlateauOptimizer":
        """OpenNMT's constructor."""
        optimizer = super().from_opt(model, opt, checkpoint)
        plateau = optimizer._plateau  # its state may be from the checkpoint
        plateau.patience, plateau.decay = opt.decay_on_plateau, opt.learning_rate_decay
        if plateau.patience:
            optimizer._learning_rate_decay_fn = None
        if opt.attention:
            optimizer._fuse()
        if optimizer._scaler is not None:  # which otherwise waits for a loss, and a process may have none
            optimizer._scaler.scale(torch.zeros((), device=next(model.parameters()).device))
        return optimizer

    def _fuse(self) -> None:
        if type(self._optimizer) is not torch.optim.Adam:
            return
        for group in self._optimizer.param_groups:
            if all(parameter.device.type == "cpu" for parameter in group["params"]):
                group["fused"] = True

    def learning_rate(self) -> float:
        """The rate of the next step."""
        return super().learning_rate() * self._plateau.rate_scale

    def update(self) -> bool:
        """Update the parameters, unless a gradient is not finite; either way the step is counted.

        With fp16 torch's scaler leaves out what overflows, and lowers its scale. Sparse gradients have
        no norm: they are OpenNMT's business.

        Returns:
            Whether the gradients were finite.
        """
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        if self._fp16 or any(p.grad is not None and p.grad.is_sparse for p in parameters):
            self.step()
            return True
        finite = True
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate()
            parameters = group["params"]
            if self._max_grad_norm > 0:
                norm = clip_grad_norm_(parameters, self._max_grad_norm)
            else:
                norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
            finite = finite and math.isfinite(norm)
        if finite:
            self._optimizer.step()
        self.count_step()
        return finite

    def count_step(self) -> None:
        """A step is over."""
        self._decay_step += 1
        self._training_step += 1

    def report_validation(self, perplexity: float) -> None:
        """Count a validation, and lower the rate if it is time."""
        if self._plateau.report(perplexity):
            self._plateau.tell(self.learning_rate())

    def forget_validations(self) -> None:
        """Compare later validations with each other alone; the rate stays as it is."""
        self._plateau.forget()

    def state_dict(self) -> dict[str, Any]:
        """OpenNMT's state, and where the plateau search stands. It may be resumed on any device."""
        state = super().state_dict()
        if type(self._optimizer) is torch.optim.Adam:
            for group in state["optimizer"]["param_groups"]:
                group["fused"] = None
        if self._scaler is not None:
            state["scaler"] = self._scaler.state_dict()
        return {**state, "plateau": dict(self._plateau.state)} if self._plateau.patience else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a saved state; one without a plateau is OpenNMT's own.

        The state of a model with other parameters (before it got a posterior, say) fits no more.
        """
        optimizer = state_dict.get("optimizer", {})
        saved = (
            optimizer.get("param_groups", []) if isinstance(optimizer, dict) else []
        )  # several have a list
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
            self._plateau.state.update(like(state_dict["plateau"], self._plateau.state, "plateau"))
