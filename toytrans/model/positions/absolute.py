"""Schemes by the place of a token alone: a sinusoidal or learned vector is added to its embedding,
or its queries and keys are rotated."""

import math

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelConfig
from toytrans.data.hashing import Use, permutation
from toytrans.errors import UserError
from toytrans.model.positions.base import Positions, extend_table
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

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        self.rows, self.room = model.max_positions, model.max_length
        self.random = model.random_positions
        fixed = permutation(model.max_positions or 0, Use.RANDOM_PLACES)[: model.max_length or 0]
        self.register_buffer("fixed", fixed.sort().values, persistent=False)
        self.fixed: Tensor

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        """x (B, L, D) with the vectors of its places. Raises UserError past the table's room."""
        stop = start + x.shape[1]
        if self.room is not None and stop > self.room:
            raise UserError(
                f"a sequence of {stop} places is longer than the position table has room for: "
                f"{self.room} (model.max_positions {self.rows}); shorten it, or train with more"
            )
        if not self.random:
            return x + self.vectors(range(start, stop), x)
        assert self.rows
        places = self.fixed[start:stop]
        if self.training:
            places = torch.randperm(self.rows, device=x.device)[: x.shape[1]].sort().values
        return x + self.vectors(range(self.rows), x)[places]

    def vectors(self, places: range, like: Tensor) -> Tensor:
        """The vectors of some places, (L, D), of the dtype and device of `like`."""
        raise NotImplementedError


class Sinusoidal(Absolute):
    """Sines and cosines of D / 2 wavelengths, from 2 pi to 10,000 times that.

    PE(t, 2i) = sin(t / 10000^(2i / D)) and PE(t, 2i + 1) = cos(t / 10000^(2i / D)) (Vaswani et
    al. 2017, Attention Is All You Need, section 3.5). Sequences may have any length.
    """

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        self._table = torch.empty(0, model.d_model)  # of as many places as were met

    def vectors(self, places: range, like: Tensor) -> Tensor:
        width = like.shape[-1]
        self._table = extend_table(
            self._table, places.stop, like, lambda rows: sinusoids(0, rows, width)
        )
        return self._table[places.start : places.stop].to(like.dtype)

    def make_room(self, places: int, like: Tensor) -> None:
        self.vectors(range(max(places, self.rows or 0)), like)


def sinusoids(start: int, length: int, width: int) -> Tensor:
    """Rows start .. start + length - 1 of the sinusoidal table: (length, width), fp64."""
    places = torch.arange(start, start + length, dtype=torch.float64)
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angles = places[:, None] * torch.exp(even * (-math.log(10_000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1)


class Learned(Absolute):
    """A learned vector per place (Gehring et al. 2017, section 3.1).

    The table starts normal with standard deviation 0.1. It has `max_positions` rows, and no
    sequence may be longer.
    """

    given = "given a vector for each place, learned in training"

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        assert model.max_positions
        self.table = nn.Parameter(torch.randn(model.max_positions, model.d_model) * 0.1)

    def vectors(self, places: range, like: Tensor) -> Tensor:
        return self.table[places.start : places.stop]


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + Dh / 2) of x (..., L, Dh) by angles given as cos and sin (L, Dh / 2)."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Rotary(Positions):
    """Queries and keys of self-attention, rotated by their place (Su et al. 2021, RoFormer,
    section 3.2).

    Pair i of a head's numbers, i and i + Dh / 2, is rotated by the angle t / 10000^(2i / Dh). Then
    a score depends on the distance alone. Sequences may have any length, but angles beyond those
    of training are new to the model.
    """

    given = "given how far apart two tokens of a sequence are, as a rotation"
    apply_rotary = staticmethod(apply_rotary)  # `model.backward: by_hand` has one of its own

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        self.width = model.d_model // model.n_heads
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
