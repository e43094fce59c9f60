# my_positions.py
import torch

from toytrans.model.positions.base import DistanceBias


class LogDistance(DistanceBias):
    """a log(1 + |d|) + b sign(d) on the scores, d = i - j; each head learns its a and b.

    The logarithm is that of Kerple (Chi et al. 2022); b tells left from right.
    """

    bias_weights, bias_deviation = 2, 0.5

    def values(self, table: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        """What distances (N,) add to the scores of each head, (H, N)."""
        a, b = table[:, :1], table[:, 1:]  # (H, 1) each
        return a * torch.log1p(distance.abs()) + b * distance.sign()
