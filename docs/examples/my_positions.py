# my_positions.py
import torch

from toytrans.model.positions.relative import Relative


class LogDistance(Relative):
    """a log(1 + |d|) + b sign(d) on the scores, d = i - j; each head learns its a and b.

    The logarithm is that of Kerple (Chi et al. 2022); b tells left from right.
    """

    bias_weights, bias_deviation = 2, 0.5

    def features(self, distance: torch.Tensor) -> torch.Tensor:
        return torch.stack((torch.log1p(distance.abs()), distance.sign()), -1)
