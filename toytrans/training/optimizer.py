"""Parameter groups and the learning-rate schedule."""

import math

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from toytrans.config.schema import TrainConfig

FLOOR = 0.02
"""Linear and cosine decay end at this share of the peak."""


class AdamW:
    """AdamW (Loshchilov and Hutter 2019) with betas 0.9 and 0.98, as in Vaswani et al. 2017.

    Weight decay applies to matrices only, not to biases, norms and parameters of positions. The
    update is torch's function `adamw`. Torch's own class imports a compiler first, which takes most
    of a second.

    state: by parameter: "step", and "exp_avg" and "exp_avg_sq" of the parameter's shape.
    """

    def __init__(self, model: nn.Module, weight_decay: float) -> None:
        self.decayed: list[nn.Parameter] = []
        self.others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            decays = parameter.dim() > 1 and "bias" not in name and "positions" not in name
            (self.decayed if decays else self.others).append(parameter)
        self.weight_decay = weight_decay
        device = next(model.parameters()).device
        self.fused = device.type in ("cpu", "cuda")
        counting = device if self.fused else "cpu"  # unfused kernels read the count on the host
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {
            parameter: {
                "step": torch.zeros((), device=counting),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            for parameter in model.parameters()
        }

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.state:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float | Tensor) -> None:
        """Update every parameter that has a gradient. lr: a scalar on the device is not read by
        the host."""
        for parameters, decay in ((self.decayed, self.weight_decay), (self.others, 0.0)):
            moved = [parameter for parameter in parameters if parameter.grad is not None]
            states = [self.state[parameter] for parameter in moved]
            adamw(
                moved,  # type: ignore[arg-type]
                [parameter.grad for parameter in moved if parameter.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=self.fused,
                capturable=isinstance(lr, Tensor),
                amsgrad=False,
                beta1=0.9,
                beta2=0.98,
                lr=lr,
                weight_decay=decay,
                eps=1e-8,
                maximize=False,
            )


def learning_rate(step: int, train: TrainConfig) -> float:
    """The learning rate of step 1, 2, ...: linear warm-up to lr, then the schedule.

    inverse_sqrt: lr sqrt(warmup / step).
    linear, cosine: fall to 2% of lr at max_steps.
    """
    warmup = train.warmup_steps or 0
    if step <= warmup:
        return train.lr * step / warmup
    if train.schedule == "constant":
        return train.lr
    if train.schedule == "inverse_sqrt":
        return train.lr * math.sqrt(max(warmup, 1) / step)
    done = min(1.0, (step - warmup) / max(1, train.max_steps - warmup))
    left = 1 - done if train.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return train.lr * (FLOOR + (1 - FLOOR) * left)
