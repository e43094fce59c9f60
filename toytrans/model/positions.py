"""Where a token stands: one class per scheme.

A scheme may add something to the embeddings (`embed`), may turn queries and keys (`turn`), and may
tell every attention how far its keys are from its queries (`self_distances`, `cross_distances`); an
attention makes of those distances a bias on its scores, with the few numbers per head that it
learns (`bias`).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from toytrans.config import ModelConfig, PositionName
from toytrans.data.pairs import permutation
from toytrans.errors import UserError
from toytrans.tokens import EOS_ID, PAD_ID

LookUp = Callable[[Tensor, Tensor, Tensor, Sequence[int]], Tensor]
Turn = Callable[[Tensor, Tensor, Tensor], Tensor]


def look_up(weights: Tensor, described: Tensor, places: Tensor, rows: Sequence[int]) -> Tensor:
    """What N distances, described by F numbers each (N, F), are worth to H heads that weigh these
    (H, F), looked up where `places` (A, B, Tq, Tk) says; head h looks in its row rows[h]
    -> (B, H, Tq, Tk). Most distances occur many times, so they are weighed once."""
    with torch.autocast(weights.device.type, enabled=False):
        values = (weights @ described.mT).unbind()  # H of (N,)
    flat = [place.flatten() for place in places]
    found = [value.index_select(0, flat[row]) for value, row in zip(values, rows, strict=True)]
    return torch.stack([bias.view(places.shape[1:]) for bias in found], 1)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + Dh / 2) of x (..., L, Dh) turned by the angles of (L, Dh / 2)."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Read(NamedTuple):
    """Tokens (B, Tq) that queries stand at, and how often each has come before, (B, Tq)."""

    tokens: Tensor
    repeats: Tensor

    @staticmethod
    def of(tgt_in: Tensor) -> "Read":
        return Read(tgt_in, repeats_of(tgt_in))

    def part(self, queries: range) -> "Read":
        return Read(*(column[:, queries.start : queries.stop] for column in self))


def repeats_of(ids: Tensor) -> Tensor:
    """How often the id of each place has come before it in its row: (B, L) -> (B, L)."""
    order = ids.argsort(dim=1, stable=True)
    alike = ids.gather(1, order)
    places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    begins = nn.functional.pad(alike[:, 1:] != alike[:, :-1], (1, 0), value=True)
    start = torch.where(begins, places, 0).cummax(1).values  # of the run of each id
    return torch.empty_like(order).scatter(1, order, places - start)


class Positions(nn.Module):
    """No positions at all: attention then cannot tell one order of its keys from another."""

    bias_weights = 0
    """Numbers per head that an attention learns for its bias."""

    reads_tokens = False
    """Whether cross-attention asks which tokens its queries stand at."""

    bias_deviation = 0.0
    """The standard deviation that they start with; where they are all that tells places apart, it
    is not 0, so that even a fresh model sees the order of its source."""

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__()

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        """Embeddings (B, L, D) of places start .. start + L - 1, with their places."""
        return x

    def self_distances(self, queries: range, keys: range, device: torch.device) -> Tensor | None:
        """Places Tq and Tk -> whole numbers (1, 1, Tq, Tk) for self-attention, or None."""
        return None

    def cross_distances(
        self, queries: range, src: Tensor, read: Read | None = None
    ) -> Tensor | None:
        """Target places Tq and source ids (B, S) -> whole numbers (A, B, Tq, S), or None; A where
        there are several ways to measure.

        read: the tokens of the queries, where a scheme `reads_tokens`; of one place there may be
        several, those of a source's beams.
        """
        return None

    def bias(self, table: Tensor | None, distances: Tensor, look_up: LookUp = look_up) -> Tensor:
        """What heads add to their scores: (H, W), (A, B, Tq, Tk) -> (B, H, Tq, Tk). table: what
        an attention has learned; None where a scheme has `bias_weights` 0."""
        raise NotImplementedError

    def turn(self, x: Tensor, places: range, turned: Turn = turned) -> Tensor:
        """Queries or keys (B, H, L, Dh) of L places, or all of one place, in self-attention, as the
        scheme turns them."""
        return x


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
        angles = _arange(places, x.device)[:, None] * rates
        return turned(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))  # (L, Dh / 2) each


class Relative(Positions):
    """What schemes share whose self-attention adds a bias by the distance d = i - j of query i and
    key j: each describes d by F numbers, weighed by each head. Cross-attention has no bias. There
    is no longest sequence."""

    rows: Sequence[int]
    """Of each head, by which of several distances it goes."""

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        self.register_buffer("like", torch.empty(0), persistent=False)  # dtype and device
        self.like: Tensor
        self._described = torch.empty(0, 0)  # of as many distances as were met
        self._farthest = 0

    def self_distances(self, queries: range, keys: range, device: torch.device) -> Tensor:
        self._farthest = max(self._farthest, queries.stop, keys.stop)
        return (_arange(queries, device)[:, None] - _arange(keys, device))[None, None]

    def bias(self, table: Tensor | None, distances: Tensor, look_up: LookUp = look_up) -> Tensor:
        """(H, F) and (1, B or 1, Tq, Tk) -> (B or 1, H, Tq, Tk)."""
        assert table is not None
        described = self.described()
        rows = [0] * len(table) if len(distances) == 1 else self.rows
        return look_up(table.to(described.dtype), described, distances + len(described) // 2, rows)

    def describe(self, distance: Tensor) -> Tensor:
        """Whole numbers (...) -> (..., F)."""
        raise NotImplementedError

    def described(self) -> Tensor:
        """Every distance that was met, and as far to the other side: (N, F)."""
        reached, like = len(self._described) // 2, self.like
        known = (self._described.dtype, self._described.device) == (like.dtype, like.device)
        if reached >= self._farthest and known and not torch.compiler.is_compiling():
            return self._described
        reached = max(self._farthest, 2 * reached)
        every = _arange(range(-reached, reached + 1), like.device)
        described = self.describe(every).to(like.dtype)
        if not torch.compiler.is_compiling():  # a graph keeps no table
            self._described = described
        return described


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

    def bias(self, table: Tensor | None, distances: Tensor, look_up: LookUp = look_up) -> Tensor:
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


class Anchored(Relative):
    """Distances from anchors, clipped to seven learned steps, and a slope without end.

    A head adds gain T_h[clip(d, -3, 3)] - slope |d| to its scores. In self-attention d = i - j.
    In cross-attention, t being the decoder's place and j the source's (BOS is place 0 in both,
    n symbols in the source), each head has one anchor:

        start        d = t - p(j), p(j) = places since the last separator before j, or since BOS
        end          d = t - (n + 1 - j)
        wrap         d = t - n - j
        double       d = 2t - p(j): two places of the source for one of the target
        double_wrap  d = 2(t - floor(n / 2)) - j
        repeat       d = r(t) - r(j), r = how often the token of a place has come before it,
                     where j holds the token of t; EOS follows the last of these; others: n + 2
        first        d = - r(j): whatever t is, the first of each symbol

    T_h starts at zero. The clipped table is that of Shaw et al. 2018 (Self-Attention with
    Relative Position Representations) as a bias, the slope that of Press et al. 2022 (ALiBi):
    with it the weight of all far keys together is a geometric series, bounded at any length. A
    head whose wanted key does not exist falls on the nearest end of the source, the same picture
    at every length. There is no longest sequence. Sources carry BOS and EOS.
    """

    reach = 3
    bias_weights = 2 * reach + 1

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        assert model.cross_anchors and model.bias_gain and model.slope is not None
        self.gain, self.slope = model.bias_gain, model.slope
        self.anchors = tuple(dict.fromkeys(model.cross_anchors))
        self.reads_tokens = "repeat" in self.anchors
        self.register_buffer("separators", torch.tensor(separator_ids).long(), persistent=False)
        self.separators: Tensor
        self.rows = [self.anchors.index(anchor) for anchor in model.cross_anchors]

    def cross_distances(self, queries: range, src: Tensor, read: Read | None = None) -> Tensor:
        """The distances from each of the A anchors in use: (A, B, Tq, S)."""
        places = torch.arange(src.shape[1], device=src.device)
        symbols = (src != PAD_ID).sum(1)[:, None, None] - 2  # n, (B, 1, 1)
        t = _arange(queries, src.device)[:, None]
        distances = {
            "start": lambda: t - self._since_separator(src, places)[:, None, :],
            "end": lambda: t - (symbols + 1 - places),
            "wrap": lambda: t - symbols - places,
            "double": lambda: 2 * t - self._since_separator(src, places)[:, None, :],
            "double_wrap": lambda: 2 * (t - symbols // 2) - places,
            "repeat": lambda: self._since_same(read, src, symbols + 2),
            "first": lambda: -repeats_of(src)[:, None, :],
        }
        rows = len(queries) if read is None else read.tokens.shape[1]
        shape = (len(src), rows, len(places))
        self._farthest = max(self._farthest, 2 * (queries.stop + len(places)))
        return torch.stack([distances[anchor]().expand(shape) for anchor in self.anchors])

    def bias(self, table: Tensor | None, distances: Tensor, look_up: LookUp = look_up) -> Tensor:
        """T_h (H, 7) and distances (1 or A, B or 1, Tq, Tk) -> (B or 1, H, Tq, Tk)."""
        assert table is not None
        weights = nn.functional.pad(table, (0, 1), value=1.0)  # (H, 8); the slope is not learned
        return super().bias(weights, distances, look_up)

    @staticmethod
    def _since_same(read: Read | None, src: Tensor, far: Tensor) -> Tensor:
        """Occurrences of a query's token between its own and place j's, (B, Tq, S); `far`
        (B, 1, 1), where place j holds another."""
        assert read is not None
        same = read.tokens[..., None] == src[:, None, :]
        distance = read.repeats[..., None] - repeats_of(src)[:, None, :]
        past_all = read.repeats[..., None] - same.sum(-1, keepdim=True)
        distance = distance.where(same, far)
        return torch.where(src[:, None, :] == EOS_ID, past_all, distance)

    def _since_separator(self, src: Tensor, places: Tensor) -> Tensor:
        """p(j), (B, S)."""
        if not len(self.separators):
            return places.expand(src.shape)
        separates = (src[..., None] == self.separators).any(-1)
        last = torch.where(separates, places, 0).cummax(1).values
        return places - nn.functional.pad(last[:, :-1], (1, 0))

    def describe(self, distance: Tensor) -> Tensor:
        """Eight numbers: gain at one of seven steps, and the slope."""
        steps = _arange(range(-self.reach, self.reach + 1), distance.device)
        near = distance.clamp(-self.reach, self.reach)[..., None] == steps
        return torch.cat((self.gain * near, -self.slope * distance.abs()[..., None]), -1)


def _arange(places: range, device: torch.device) -> Tensor:
    return torch.arange(places.start, places.stop, device=device)


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
