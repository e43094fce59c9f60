"""Schemes whose bias is a function of the distance in one sequence: clipped distances, ALiBi, and
T5's buckets."""

import math

import torch
from torch import Tensor

from toytrans.config.schema import ModelSettings
from toytrans.model.positions.base import DistanceBias
from toytrans.tokens import Vocabulary


class Clipped(DistanceBias):
    """One number per head and distance, clipped to -16 .. 16.

    These are the clipped relative positions of Shaw et al. 2018 (Self-Attention with Relative
    Position Representations, section 3.2), as a bias on the scores in place of vectors on keys
    and values. The numbers start normal with standard deviation 0.1.
    """

    reach = 16
    bias_weights, bias_deviation = 2 * reach + 1, 0.1

    def values(self, table: Tensor, distance: Tensor) -> Tensor:
        return self.look_up(table, (distance.clamp(-self.reach, self.reach) + self.reach)[None])


class Alibi(DistanceBias):
    """-m_h |d| on the scores of head h = 1 .. H, with m_h = 2^(-8h / H) (Press et al. 2022, Train
    Short, Test Long, section 3).

    The encoder has it in both directions. Nothing is learned.
    """

    summary = "given how far apart two tokens of a sequence are, as a penalty"

    def __init__(self, settings: ModelSettings, vocabulary: Vocabulary) -> None:
        super().__init__(settings, vocabulary)
        heads = torch.arange(1, settings.n_heads + 1)
        slopes = 2.0 ** (-8.0 * heads / settings.n_heads)[:, None]
        self.register_buffer("slopes", slopes, persistent=False)
        self.slopes: Tensor  # (H, 1)

    def values(self, table: Tensor, distance: Tensor) -> Tensor:
        return -self.slopes * distance.abs()


class T5Buckets(DistanceBias):
    """One number per head and bucket of distances (Raffel et al. 2020, T5, section 2.1).

    There are 16 buckets in each direction. The first 8 hold one distance each. The other 8 grow
    logarithmically; the last begins at 128. Each layer has a table of its own, where T5 shares
    one. The decoder does not use the buckets of the future. The numbers start normal with
    standard deviation 0.1.
    """

    bias_weights, bias_deviation = 32, 0.1
    near, farthest = 8, 128

    def values(self, table: Tensor, distance: Tensor) -> Tensor:
        return self.look_up(table, self.bucket(distance)[None])

    def bucket(self, distance: Tensor) -> Tensor:
        """The number of each distance's bucket: 0 .. 15 for the past, 16 .. 31 for the future."""
        far = distance.abs().clamp(min=self.near).double() / self.near
        steps = far.log() / math.log(self.farthest / self.near) * self.near
        bucket = torch.where(distance.abs() < self.near, distance.abs(), self.near + steps.long())
        return bucket.clamp(max=2 * self.near - 1) + 2 * self.near * (distance < 0)
