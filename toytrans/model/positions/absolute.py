"""Schemes that add a vector to each embedding, by the place of the token: sinusoidal or learned."""

import functools
import math

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelSettings
from toytrans.data.hashing import Use, permutation
from toytrans.errors import BadKey, UserError
from toytrans.model.positions.base import Positions
from toytrans.tokens import Vocabulary


class Absolute(Positions):
    """A vector per place, added to the embedding.

    With `model.random_positions` places are drawn (Ruoss et al. 2023, Randomized Positional
    Encodings Boost Length Generalization of Transformers, section 3). N is max_positions.
        training: a batch of length L gets L different places below N, in order, drawn each time
        evaluation: the first L of N / 4 fixed places, so that a token keeps its place whatever
            follows it
    Training then sees places far beyond its longest sequence.
    """

    takes_random_positions = True

    def __init__(self, settings: ModelSettings, vocabulary: Vocabulary) -> None:
        super().__init__(settings, vocabulary)
        self.rows, self.room = settings.max_positions, settings.max_length
        self.random = settings.random_positions
        self.fixed: Tensor  # the places of evaluation
        if self.random:
            assert settings.max_positions and settings.max_length
            places = permutation(settings.max_positions, Use.RANDOM_PLACES)[: settings.max_length]
            self.register_buffer("fixed", places.sort().values, persistent=False)

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        """x (B, L, D) with the vectors of its places. Raises UserError past the table's room."""
        stop = start + x.shape[1]
        if self.room is not None and stop > self.room:
            raise UserError(
                f"a sequence of {stop} places is longer than the position table has room for: "
                f"{self.room} (model.max_positions {self.rows}); shorten it, or train with more"
            )
        if not self.random:
            return x + self.vectors(stop, x)[start:]
        assert self.rows
        places = self.fixed[start:stop]
        if self.training:
            places = torch.randperm(self.rows, device=x.device)[: x.shape[1]].sort().values
        return x + self.vectors(self.rows, x)[places]

    def vectors(self, places: int, like: Tensor) -> Tensor:
        """The vectors of the first places, (places, D), of the dtype and device of `like`."""
        raise NotImplementedError


class Sinusoidal(Absolute):
    """Sines and cosines of D / 2 wavelengths, from 2 pi to 10,000 times that.

    PE(t, 2i) = sin(t / 10000^(2i / D)) and PE(t, 2i + 1) = cos(t / 10000^(2i / D)) (Vaswani et
    al. 2017, Attention Is All You Need, section 3.5). Sequences may have any length.
    """

    @classmethod
    def check(cls, settings: ModelSettings) -> None:
        if settings.d_model % 2:
            reason = f"sinusoidal positions need an even width, not {settings.d_model}"
            raise BadKey("model.d_model", reason)

    def vectors(self, places: int, like: Tensor) -> Tensor:
        table = sinusoidal_table(rounded_up(places), like.shape[-1], like.dtype, like.device)
        return table[:places]


class Learned(Absolute):
    """A learned vector per place (Gehring et al. 2017, section 3.1).

    The table starts normal with standard deviation 0.1. It has `max_positions` rows, and no
    sequence may be longer.
    """

    summary = "given a vector for each place, learned in training"
    default_max_positions = 512

    def __init__(self, settings: ModelSettings, vocabulary: Vocabulary) -> None:
        super().__init__(settings, vocabulary)
        assert settings.max_positions
        self.table = nn.Parameter(torch.randn(settings.max_positions, settings.d_model) * 0.1)

    def vectors(self, places: int, like: Tensor) -> Tensor:
        return self.table[:places]


def sinusoids(start: int, length: int, width: int) -> Tensor:
    """Rows start .. start + length - 1 of the sinusoidal table: (length, width), fp64."""
    angles = angles_of(start, length, width)
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1)


def angles_of(start: int, length: int, width: int) -> Tensor:
    """t / 10000^(2i / width) for places t from `start` on: (length, width / 2), fp64."""
    places = torch.arange(start, start + length, dtype=torch.float64)
    even = torch.arange(0, width, 2, dtype=torch.float64)
    return places[:, None] * torch.exp(even * (-math.log(10_000.0) / width))


def rounded_up(places: int) -> int:
    """The number of rows of a table for so many places, a power of two, so that few are made."""
    return max(64, 1 << (places - 1).bit_length())


@functools.cache
def sinusoidal_table(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows 0 .. rows - 1 of `sinusoids`, kept for good: a CUDA graph reads them where they are."""
    with torch.inference_mode(False):  # training may use what evaluation made
        return sinusoids(0, rows, width).to(device, dtype)
