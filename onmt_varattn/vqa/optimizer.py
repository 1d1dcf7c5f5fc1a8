"""The optimiser: torch's, with a rate that falls by steps or on plateaus."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from onmt_varattn.training.checkpoints.fitting import check_state
from onmt_varattn.training.checkpoints.trees import BrokenError, is_count, like
from onmt_varattn.training.plateau import Plateau
from onmt_varattn.vqa.settings import TrainSettings


class Optimizer:
    """Updates parameters, unless a gradient is not finite.

    The rate falls by steps as OpenNMT-py's does, or with `-decay_on_plateau` after validations that
    bring nothing better. On a CPU Adam is torch's fused one.
    """

    def __init__(self, parameters: Iterable[Tensor], opt: TrainSettings) -> None:
        self.parameters = list(parameters)
        fused = all(parameter.device.type == "cpu" for parameter in self.parameters) or None
        if opt.optim == "adam":
            self.optimizer: Any = torch.optim.Adam(self.parameters, lr=opt.learning_rate, fused=fused)
        else:
            self.optimizer = torch.optim.SGD(self.parameters, lr=opt.learning_rate)
        self.opt = opt
        self.step = 0  # steps done, those left out included
        self.plateau = Plateau(opt.decay_on_plateau, opt.learning_rate_decay)

    def learning_rate(self) -> float:
        """The rate of the next step."""
        rate = self.opt.learning_rate * self.plateau.rate_scale
        if self.plateau.patience:
            return rate
        late = self.step + 1 - self.opt.start_decay_steps + self.opt.decay_steps
        return rate * self.opt.learning_rate_decay ** (max(late, 0) // self.opt.decay_steps)

    def update(self) -> bool:
        """Clip and step; count the step either way.

        Returns:
            Whether the gradients were finite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        norm = clip_grad_norm_(self.parameters, self.opt.max_grad_norm or math.inf)
        finite = math.isfinite(norm)
        if finite:
            self.optimizer.step()
        self.step += 1
        return finite

    def zero_grad(self) -> None:
        """Forget gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands. It may be resumed on any device."""
        state = self.optimizer.state_dict()
        for group in state["param_groups"]:
            group.pop("fused", None)
        return {"optimizer": state, "step": self.step, "plateau": dict(self.plateau.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        groups = [
            {**saved, **({"fused": own["fused"]} if "fused" in own else {})}
            for saved, own in zip(
                state["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True
            )
        ]
        check_state(self.optimizer, {**state["optimizer"], "param_groups": groups})
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        if not is_count(state["step"]):
            raise BrokenError("its step is damaged")
        self.step = state["step"]
        self.plateau.state.update(like(state["plateau"], self.plateau.state, "plateau"))
