"""The relative positions of T5."""

import math

import torch
from torch import Tensor, nn

from toytrans.model.positions.relative import Relative


class T5Buckets(Relative):
    """One number per head and bucket of distances (Raffel et al. 2020, T5, section 2.1).

    There are 16 buckets in each direction. The first 8 hold one distance each. The other 8 grow
    logarithmically; the last begins at 128. Each layer has a table of its own, where T5 shares
    one. The decoder does not use the buckets of the future. The numbers start normal with
    standard deviation 0.1.
    """

    bias_weights, bias_deviation = 32, 0.1
    near, farthest = 8, 128

    def features(self, distance: Tensor) -> Tensor:
        far = distance.abs().clamp(min=self.near).double() / self.near
        steps = far.log() / math.log(self.farthest / self.near) * self.near
        bucket = torch.where(distance.abs() < self.near, distance.abs(), self.near + steps.long())
        bucket = bucket.clamp(max=2 * self.near - 1) + 2 * self.near * (distance < 0)
        return nn.functional.one_hot(bucket, self.bias_weights)


SCHEME = T5Buckets
