"""Rotary positions."""

import math

import torch
from torch import Tensor, nn

from toytrans.config import ModelConfig
from toytrans.model.positions.base import Positions, arange
from toytrans.tokens import Vocabulary


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + Dh / 2) of x (..., L, Dh) by angles given as cos and sin (L, Dh / 2)."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class ApplyRotary(nn.Module):
    """`apply_rotary` as a module."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return apply_rotary(x, cos, sin)


class Rotary(Positions):
    """Queries and keys of self-attention, rotated by their place (Su et al. 2021, RoFormer,
    section 3.2).

    Pair i of a head's numbers, i and i + Dh / 2, turns by the angle t / 10000^(2i / Dh). A score
    then depends on the distance alone. Sequences may have any length, but angles beyond those of
    training are new to the model.
    """

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        self.width = model.d_model // model.n_heads
        self.apply_rotary = ApplyRotary()

    def rotate(self, x: Tensor, places: range) -> Tensor:
        even = torch.arange(0, self.width, 2, dtype=torch.float64, device=x.device)
        rates = torch.exp(even * (-math.log(10_000.0) / self.width))
        angles = arange(places, x.device)[:, None] * rates  # (L, Dh / 2)
        return self.apply_rotary(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))


SCHEME = Rotary
