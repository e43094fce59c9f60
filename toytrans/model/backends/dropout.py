"""Dropout whose masks are cut from random words (Srivastava et al. 2014).

On a CPU torch draws one random number an element, which costs more than the layer around it. Here
one 64-bit word of torch's generator decides eight elements.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def keep_mask(x: Tensor, rate: float) -> Tensor:
    """0 with probability `rate`, else 1 / (1 - rate), like x: x times it is dropout.

    On a CPU: of the 256 values of a random byte, the lowest 256 rate drop an element; that number
    is rounded up or down at random for each mask, so that the rate holds on average.
    """
    if x.device.type != "cpu":
        return F.dropout(torch.ones_like(x), rate)
    lowest = int(256 * rate + float(torch.rand(())))
    scale = 1 / (1 - rate)
    if lowest in (0, 256):
        return torch.full_like(x, 0 if lowest else scale)
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    highest = lowest - 129  # of the bytes -128 .. 127 that drop
    shares = words.view(torch.int8)[: x.numel()].view(x.shape)
    kept = shares.clamp(highest, highest + 1).sub_(highest)  # 0 or 1, quicker than to compare
    return kept.to(x.dtype).mul_(scale)


def dropout(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """x with elements zeroed with probability `rate` and the others made up for it."""
    if not training or not rate:
        return x
    if x.device.type != "cpu":
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
