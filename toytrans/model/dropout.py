"""Dropout (Srivastava et al. 2014), as a layer and as a function.

On a CPU torch draws one random number an element, which costs more than the layer around it. Here
one 64-bit word of torch's generator decides eight elements.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """`dropout` as a layer, which does nothing outside of training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate) if self.training else x

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def dropout(x: Tensor, rate: float) -> Tensor:
    """x with elements zeroed with probability `rate` and the others made up for it."""
    if not rate:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    return x * keep_mask(x, rate)


def keep_mask(x: Tensor, rate: float) -> Tensor:
    """0 with probability `rate`, else 1 / (1 - rate), in the shape of x: x times it is dropout.

    On a CPU each element has a random byte, one of 256 values, and drops if that is among the
    lowest 256 * rate. That number is rounded up or down at random for each mask, so that the rate
    holds on average.
    """
    if x.device.type != "cpu":
        return F.dropout(torch.ones_like(x), rate)
    dropping = int(256 * rate + float(torch.rand(())))  # how many of a byte's values
    scale = 1 / (1 - rate)
    if dropping in (0, 256):
        return torch.full_like(x, 0 if dropping else scale)
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    random_bytes = words.view(torch.int8)[: x.numel()].view(x.shape)  # -128 .. 127
    highest = dropping - 129  # of the bytes that drop
    kept = random_bytes.clamp(highest, highest + 1).sub_(highest)  # 0 or 1, quicker than to compare
    return kept.to(x.dtype).mul_(scale)
