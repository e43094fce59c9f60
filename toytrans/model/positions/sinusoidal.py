"""Sinusoidal positions."""

import math

import torch
from torch import Tensor

from toytrans.config.schema import ModelConfig
from toytrans.model.positions.absolute import Absolute
from toytrans.model.positions.base import extend_table
from toytrans.tokens import Vocabulary


class Sinusoidal(Absolute):
    """Sines and cosines of D / 2 wavelengths, from 2 pi to 10,000 times that.

    PE(t, 2i) = sin(t / 10000^(2i / D)) and PE(t, 2i + 1) = cos(t / 10000^(2i / D)) (Vaswani et
    al. 2017, Attention Is All You Need, section 3.5). Sequences may have any length.
    """

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        self._table = torch.empty(0, model.d_model)  # of as many places as were met

    def vectors(self, places: range, like: Tensor) -> Tensor:
        """Looked up in a table, fp32 at least, that grows as longer sequences are met."""
        width, device = like.shape[-1], like.device
        if torch.compiler.is_compiling() and device.type != "mps":  # a graph keeps no table
            return sinusoids(places.start, len(places), width, device).to(like)
        self._table = extend_table(
            self._table, places.stop, like, lambda rows: sinusoids(0, rows, width)
        )
        return self._table[places.start : places.stop].to(like.dtype)

    def make_room(self, places: int, like: Tensor) -> None:
        self.vectors(range(max(places, self.rows or 0)), like)


def sinusoids(start: int, length: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Rows start .. start + length - 1 of the sinusoidal table: (length, width), fp64."""
    places = torch.arange(start, start + length, dtype=torch.float64, device=device)
    even = torch.arange(0, width, 2, dtype=torch.float64, device=device)
    angles = places[:, None] * torch.exp(even * (-math.log(10_000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1)


SCHEME = Sinusoidal
