"""Dropout whose masks are cut from random words (Srivastava et al. 2014).

On a CPU torch draws one random number an element, which costs more than the layer around it. Here
one 64-bit word of torch's generator decides four elements.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_STEPS = 2**15
"""A rate is a multiple of 1 / 32,768."""


def keep_mask(x: Tensor, rate: float) -> Tensor:
    """0 with probability `rate`, else 1 / (1 - rate), like x on a CPU: x times it is dropout.

    A share of 15 random bits below the threshold drops an element; shifts in place of a
    comparison, whose result a CPU writes slowly.
    """
    threshold = round(rate * _STEPS)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    shares = words.view(torch.int16)[: x.numel()].view(x.shape) >> 1  # -16,384 .. 16,383
    dropped = shares.sub_(threshold - _STEPS // 2).bitwise_right_shift_(15)  # -1 or 0
    return dropped.to(x.dtype).add_(1).mul_(_STEPS / (_STEPS - threshold))


def dropout(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """x with elements zeroed with probability `rate` and the others made up for it."""
    if not training or not rate:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    return x * keep_mask(x, rate)


class Dropout(nn.Module):
    """`dropout` as a layer."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate, self.training)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
