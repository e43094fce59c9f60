"""Parameter groups and the learning-rate schedule."""

import math

import torch
from torch import nn

from toytrans.config import TrainConfig

FLOOR = 0.02
"""Where linear and cosine decay end, as a share of the peak."""


def make_optimizer(model: nn.Module, train: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019), betas 0.9 and 0.98 as in Vaswani et al. 2017.

    Weight decay applies to matrices only, not to biases, norms and position tables.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        decays = parameter.dim() == 2 and "bias" not in name and "positions" not in name
        (matrices if decays else others).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": train.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, lr=train.lr, betas=(0.9, 0.98), fused=fused)


def learning_rate(step: int, train: TrainConfig) -> float:
    """The rate of step 1, 2, ...: a straight line up to lr, then the schedule.

    inverse_sqrt is lr sqrt(warmup / step); linear and cosine reach 2% of lr at max_steps.
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
