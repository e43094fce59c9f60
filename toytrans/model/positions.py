"""Where a token stands: one class per scheme, those that anchor apart (anchored.py)."""

import math

import torch
from torch import Tensor, nn

from toytrans.choices import PositionName
from toytrans.config import ModelConfig
from toytrans.data.pairs import permutation
from toytrans.errors import UserError
from toytrans.model.anchored import Anchored
from toytrans.model.scheme import (
    Distances,
    LookUp,
    Positions,
    Relative,
    Turn,
    arange,
    look_up,
    turned,
)


class Absolute(Positions):
    """What schemes share that add a vector of its place to each embedding.

    With `model.random_positions` places are not counted but drawn (Ruoss et al. 2023, Randomized
    Positional Encodings Boost Length Generalization of Transformers, section 3): in training the
    L places of a batch are L different numbers below N = max_positions, in order, drawn anew each
    time; otherwise the first L of N / 4 that are fixed, so that a token keeps its place whatever
    follows it. Places far beyond those of training sequences have then been seen in training.
    """

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        self.rows, self.room = model.max_positions, model.room
        self.drawn = model.random_positions
        fixed = permutation(model.max_positions or 0, 0x4A)[: model.room or 0].sort().values
        self.register_buffer("fixed", fixed, persistent=False)
        self.fixed: Tensor

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        """x (B, L, D) with the vectors of its places. Raises UserError past the table's room."""
        stop = start + x.shape[1]
        if self.room is not None and stop > self.room:
            raise UserError(
                f"a sequence of {stop} places is longer than the position table has room for: "
                f"{self.room} (model.max_positions {self.rows}); shorten it, or train with more"
            )
        if not self.drawn:
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
    """Sines and cosines of the place at D / 2 wavelengths from 2 pi to 10,000 times that.

    PE(t, 2i) = sin(t / 10000^(2i / D)), PE(t, 2i + 1) = cos of the same (Vaswani et al. 2017,
    Attention Is All You Need, section 3.5). There is no longest sequence.
    """

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        self._table = torch.empty(0, model.d_model)  # of as many places as were met

    def vectors(self, places: range, like: Tensor) -> Tensor:
        """Looked up in a table that grows as longer sequences are met."""
        table, width = self._table, like.shape[-1]
        if torch.compiler.is_compiling() and like.device.type != "mps":  # a graph keeps no table
            return sinusoids(places.start, len(places), width, like.device).to(like)
        known = (table.dtype, table.device) == (like.dtype, like.device)
        if len(table) < places.stop or not known:
            rows = max(places.stop, 2 * len(table))
            table = self._table = sinusoids(0, rows, width).to(like)
        return table[places.start : places.stop]


def sinusoids(start: int, length: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Rows start .. start + length - 1 of the sinusoidal table: (length, width), fp64."""
    places = torch.arange(start, start + length, dtype=torch.float64, device=device)
    even = torch.arange(0, width, 2, dtype=torch.float64, device=device)
    angles = places[:, None] * torch.exp(even * (-math.log(10_000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1)


class Learned(Absolute):
    """A learned vector per place (Gehring et al. 2017, section 3.1): nothing past its last row.

    The table starts normal with standard deviation 0.1.
    """

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        assert model.max_positions
        self.table = nn.Parameter(torch.randn(model.max_positions, model.d_model) * 0.1)

    def vectors(self, places: range, like: Tensor) -> Tensor:
        return self.table[places.start : places.stop]


class Rotary(Positions):
    """Queries and keys of self-attention turned by their place (Su et al. 2021, RoFormer, section
    3.2): pair i of a head's numbers, i and i + Dh / 2, by the angle t / 10000^(2i / Dh). A score
    then depends on the distance alone. There is no longest sequence; angles beyond those of
    training are new.
    """

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        self.width = model.d_model // model.n_heads

    def turn(self, x: Tensor, places: range, turned: Turn = turned) -> Tensor:
        even = torch.arange(0, self.width, 2, dtype=torch.float64, device=x.device)
        rates = torch.exp(even * (-math.log(10_000.0) / self.width))
        angles = arange(places, x.device)[:, None] * rates
        return turned(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))  # (L, Dh / 2) each


class Alibi(Relative):
    """- m_h |d| on the scores of head h = 1 .. H, with m_h = 2^(-8h / H) (Press et al. 2022, Train
    Short, Test Long; section 3), both ways in the encoder. Nothing is learned."""

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        heads = torch.arange(1, model.n_heads + 1)
        self.register_buffer(
            "slopes", 2.0 ** (-8.0 * heads / model.n_heads)[:, None], persistent=False
        )
        self.slopes: Tensor

    def bias(self, table: Tensor | None, distances: Distances, look_up: LookUp = look_up) -> Tensor:
        return super().bias(self.slopes, distances, look_up)

    def describe(self, distance: Tensor) -> Tensor:
        return -distance.abs()[..., None]


class T5Buckets(Relative):
    """A number learned by each head for each of 32 buckets of distances (Raffel et al. 2020, T5,
    section 2.1): 16 either way, of which 8 hold one distance each and 8 grow as its logarithm, the
    last from 128 on. One table a layer here, where T5 has one for all; the decoder leaves the
    buckets of the future unused. Normal at first, with standard deviation 0.1.
    """

    bias_weights, bias_deviation = 32, 0.1
    near, farthest = 8, 128

    def describe(self, distance: Tensor) -> Tensor:
        far = distance.abs().clamp(min=self.near).double() / self.near
        steps = far.log() / math.log(self.farthest / self.near) * self.near
        bucket = torch.where(distance.abs() < self.near, distance.abs(), self.near + steps.long())
        bucket = bucket.clamp(max=2 * self.near - 1) + 2 * self.near * (distance < 0)
        return nn.functional.one_hot(bucket, self.bias_weights)


class Clipped(Relative):
    """A number learned by each head for each distance, clipped to -16 .. 16: the clipped relative
    positions of Shaw et al. 2018 (Self-Attention with Relative Position Representations, section
    3.2) as a bias on the scores in place of their vectors on keys and values. Normal at first, with
    standard deviation 0.1.
    """

    reach = 16
    bias_weights, bias_deviation = 2 * reach + 1, 0.1

    def describe(self, distance: Tensor) -> Tensor:
        place = distance.clamp(-self.reach, self.reach) + self.reach
        return nn.functional.one_hot(place, self.bias_weights)


POSITIONS: dict[PositionName, type[Positions]] = {
    "none": Positions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "alibi": Alibi,
    "t5": T5Buckets,
    "relative": Clipped,
    "anchored": Anchored,
}
