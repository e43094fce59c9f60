"""Rotary positions."""

import math

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelConfig
from toytrans.model.positions.base import Positions, extend_table
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

    Pair i of a head's numbers, i and i + Dh / 2, is rotated by the angle t / 10000^(2i / Dh). Then
    a score depends on the distance alone. Sequences may have any length, but angles beyond those
    of training are new to the model.
    """

    given = "given how far apart two tokens of a sequence are, as a rotation"

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        self.width = model.d_model // model.n_heads
        self.apply_rotary = ApplyRotary()
        self._table = torch.empty(0, 2, self.width // 2)  # of as many places as were met

    def rotate(self, x: Tensor, places: range) -> Tensor:
        cos, sin = self.cos_sin(places, x).unbind(1)
        return self.apply_rotary(x, cos, sin)

    def make_room(self, places: int, like: Tensor) -> None:
        self.cos_sin(range(places), like)

    def cos_sin(self, places: range, like: Tensor) -> Tensor:
        """Cosine and sine of the angles of some places, (L, 2, Dh / 2), in the dtype of `like`.

        Looked up in a table, fp32 at least, that grows as longer sequences are met.
        """
        self._table = extend_table(self._table, places.stop, like, self._computed)
        return self._table[places.start : places.stop].to(like.dtype)

    def _computed(self, rows: int) -> Tensor:
        even = torch.arange(0, self.width, 2, dtype=torch.float64)
        rates = torch.exp(even * (-math.log(10_000.0) / self.width))
        angles = torch.arange(rows)[:, None] * rates  # (L, Dh / 2)
        return torch.stack((angles.cos(), angles.sin()), 1)
