"""Schemes that add a bias by distance to the scores: clipped distances, ALiBi, T5's buckets, and
distances from the ends of a source."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from toytrans.config.schema import ModelConfig
from toytrans.errors import UserError
from toytrans.model.positions.base import CrossState, Distances, Positions, arange, extend_table
from toytrans.tokens import FIRST_SYMBOL_ID, Vocabulary


def distance_bias(weights: Tensor, features: Tensor, index: Tensor, rows: Sequence[int]) -> Tensor:
    """The bias of distances (B or 1, H, Tq, Tk): the product of a head's weights and a distance's
    features. Most distances occur many times, so each is computed once and then looked up.

    weights: (H, F)
    features: (N, F), of N distances
    index: (M, B, Tq, Tk), which of the N, measured in M ways
    rows: which of the M ways each head uses
    """
    shape = index.shape[1:]
    flat = [way.flatten() for way in index]
    places = flat if len(flat) == 1 else [flat[row] for row in rows]  # of all heads, or of each
    if weights.device.type == "cuda" and weights.requires_grad and torch.is_grad_enabled():
        bias = for_gradients(weights, features, places)
        return bias.view(len(bias), *shape).transpose(0, 1)
    with torch.autocast(weights.device.type, enabled=False):
        values = weights @ features.mT  # (H, N)
    if len(flat) == 1:  # all heads at once are three times as fast
        return values.index_select(1, flat[0]).view(len(values), *shape).transpose(0, 1)
    heads = list(zip(values.unbind(), places, strict=True))
    if torch.is_grad_enabled():
        return torch.stack([v.index_select(0, place).view(shape) for v, place in heads], 1)
    bias = values.new_empty(len(heads), *shape)  # writing in place takes a third as long
    for (value, place), head in zip(heads, bias, strict=True):
        torch.index_select(value, 0, place, out=head.view(-1))
    return bias.transpose(0, 1)


class Lookup(torch.autograd.Function):
    """The biases of distances that occur many times, with a gradient for a GPU.

    That of `index_select` adds up in any order there, so two equal runs would differ.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, features: Tensor, place: Tensor) -> Tensor:
        """weights (H, F), features (N, F), which of the N (n,) -> (H, n)."""
        ctx.save_for_backward(features, place)
        with torch.autocast(weights.device.type, enabled=False):
            return (weights @ features.mT).index_select(1, place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        features, place = ctx.saved_tensors
        with torch.autocast(gradient.device.type, enabled=False):
            return gradient @ features.index_select(0, place), None, None


def for_gradients(weights: Tensor, features: Tensor, places: Sequence[Tensor]) -> Tensor:
    """The bias (H, n), with the gradient of `Lookup`.

    weights: (H, F)
    features: (N, F), of N distances
    places: which of the N, (n,), for all heads together or for each
    """
    groups = zip(weights.split(len(weights) // len(places)), places, strict=True)
    return torch.cat([Lookup.apply(group, features, place) for group, place in groups])  # type: ignore[no-untyped-call]


class Relative(Positions):
    """A bias by the distance d = i - j of query i and key j.

    A subclass describes each distance by F features, which each head weighs. Cross-attention has
    a bias where `cross_state` gives distances. Sequences may have any length.
    """

    given = "given how far apart two tokens of a sequence are, in learned steps"
    weigh = staticmethod(distance_bias)  # `model.backward: by_hand` has one of its own

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        self._table = torch.empty(0, 0)  # features of as many distances as were needed so far

    def self_distances(self, queries: range, keys: range, device: torch.device) -> Distances:
        offset = max(queries.stop, keys.stop)
        index = arange(queries, device)[:, None] - arange(keys, device) + offset
        return Distances(index[None, None], offset)

    def make_room(self, places: int, like: Tensor) -> None:
        """A subclass that measures farther than `places` in cross-attention overrides it."""
        self.features_up_to(places, like)

    def bias(self, table: Tensor | None, distances: Distances) -> Tensor:
        """table (H, F) -> (B or 1, H, Tq, Tk)."""
        assert table is not None
        return self.weighed(table, distances, [0] * len(table))

    def weighed(self, table: Tensor, distances: Distances, rows: Sequence[int]) -> Tensor:
        """As `bias`. rows: which of the M ways of measuring each head uses."""
        features = self.features_up_to(distances.offset, table)
        return self.weigh(table, features, distances.index, rows)

    def features(self, distance: Tensor) -> Tensor:
        """Distances (...) -> (..., F)."""
        raise NotImplementedError

    def features_up_to(self, offset: int, like: Tensor) -> Tensor:
        """Features of all distances -offset .. offset: (2 offset + 1, F), of the dtype and device
        of `like`.

        Looked up in a table that grows as larger distances are met.
        """

        def compute(rows: int) -> Tensor:
            return self.features(arange(range(-(rows // 2), rows // 2 + 1), like.device))

        self._table = extend_table(self._table, 2 * offset + 1, like, compute)
        zero = len(self._table) // 2  # the row of distance 0
        return self._table[zero - offset : zero + offset + 1].to(like.dtype)


class Clipped(Relative):
    """One number per head and distance, clipped to -16 .. 16.

    These are the clipped relative positions of Shaw et al. 2018 (Self-Attention with Relative
    Position Representations, section 3.2), as a bias on the scores in place of vectors on keys
    and values. The numbers start normal with standard deviation 0.1.
    """

    reach = 16
    bias_weights, bias_deviation = 2 * reach + 1, 0.1

    def features(self, distance: Tensor) -> Tensor:
        place = distance.clamp(-self.reach, self.reach) + self.reach
        return nn.functional.one_hot(place, self.bias_weights)


class Alibi(Relative):
    """-m_h |d| on the scores of head h = 1 .. H, with m_h = 2^(-8h / H) (Press et al. 2022, Train
    Short, Test Long, section 3).

    The encoder has it in both directions. Nothing is learned.
    """

    given = "given how far apart two tokens of a sequence are, as a penalty"

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        heads = torch.arange(1, model.n_heads + 1)
        self.register_buffer(
            "slopes", 2.0 ** (-8.0 * heads / model.n_heads)[:, None], persistent=False
        )
        self.slopes: Tensor

    def bias(self, table: Tensor | None, distances: Distances) -> Tensor:
        return super().bias(self.slopes, distances)

    def features(self, distance: Tensor) -> Tensor:
        return -distance.abs()[..., None]


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


class Anchored(Relative):
    """Distances from anchors: seven learned steps near d = 0, and a slope beyond.

    Each head adds gain T_h[clip(d, -3, 3)] - slope |d| to its scores. In self-attention d = i - j.
    In cross-attention each head has one anchor, in the order of `anchors`, which is repeated. t is
    the decoder's place, j the source's. BOS is place 0 in both, and the source has n symbols.

        start   d = t - p(j), p(j) = places since the last separator before j, or since BOS
        end     d = t - (n + 1 - j)
        wrap    d = t - n - j

    T_h starts at zero. The clipped table is that of Shaw et al. 2018 (Self-Attention with Relative
    Position Representations) as a bias. The slope is that of Press et al. 2022 (ALiBi). It bounds
    the weights of all far keys by a geometric series, at any length. If the wanted key lies
    outside the source, the nearest end gets the largest bias. Sequences may have any length.
    Sources carry BOS and EOS. `configs/examples/anchors.py` has more anchors.

    ways: the anchors in use. rows: which of them each head measures from.
    """

    given = "told where each output's source stands"
    reach = 3
    bias_weights = 2 * reach + 1
    anchors: tuple[str, ...] = ("start", "end", "wrap", "start")
    gain = 16.0
    slope = 1.0

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        if not model.source_bos:
            raise UserError("model.source_bos: false; anchored positions count from BOS, take true")
        separators = torch.tensor(vocabulary.separator_ids).long()
        self.register_buffer("separators", separators, persistent=False)
        self.separators: Tensor
        self.names = [self.anchors[head % len(self.anchors)] for head in range(model.n_heads)]
        self.ways = list(dict.fromkeys(self.names))
        self.rows = [self.ways.index(name) for name in self.names]

    def cross_state(
        self, memory: Tensor, src: Tensor, tgt_in: Tensor | None = None, beams: int = 1
    ) -> CrossState:
        return SourceAnchors(self, src)

    def make_room(self, places: int, like: Tensor) -> None:
        self.features_up_to(4 * places, like)  # the offset of `SourceAnchors`: 2 (T + S)

    def bias(self, table: Tensor | None, distances: Distances) -> Tensor:
        """table (H, 7) -> (B or 1, H, Tq, Tk)."""
        one = len(distances.index) == 1  # as in self-attention
        rows = [0] * len(self.rows) if one else self.rows
        return self.weighed(self.with_slope(table), distances, rows)

    def with_slope(self, table: Tensor | None) -> Tensor:
        """(H, 7) -> (H, 8): the slope has weight 1 and is not learned."""
        assert table is not None
        return nn.functional.pad(table, (0, 1), value=1.0)

    def since_separator(self, src: Tensor) -> Tensor:
        """p(j): (B, S)."""
        places = torch.arange(src.shape[1], device=src.device)
        if not len(self.separators):
            return places.repeat(len(src), 1)
        separates = (src[..., None] == self.separators).any(-1)
        last = torch.where(separates, places, 0).cummax(1).values
        # a separator itself counts from the one before it
        return places - nn.functional.pad(last[:, :-1], (1, 0))

    def features(self, distance: Tensor) -> Tensor:
        """Eight features: the gain at one of seven steps, and the slope."""
        steps = arange(range(-self.reach, self.reach + 1), distance.device)
        near = distance.clamp(-self.reach, self.reach)[..., None] == steps
        return torch.cat((self.gain * near, -self.slope * distance.abs()[..., None]), -1)


class SourceAnchors(CrossState):
    """The anchors of B sources.

    symbols: (B,), number of symbols
    since: (B, S), places since the last separator
    """

    def __init__(self, scheme: Anchored, src: Tensor) -> None:
        self.scheme, self.src = scheme, src
        self.symbols = (src >= FIRST_SYMBOL_ID).sum(1)
        self.since = scheme.since_separator(src)

    def distances(self, queries: range) -> Distances:
        """From each anchor in use."""
        offset = 2 * (queries.stop + self.src.shape[1])  # at least any anchor's distance
        return Distances(torch.stack(self.measure(queries)).add_(offset), offset)

    def measure(self, queries: range) -> list[Tensor]:
        """Distances from each anchor in use: (B, Tq, S) each."""
        t = arange(queries, self.src.device)[:, None]
        shape = (len(self.src), len(queries), self.src.shape[1])
        return [self.from_anchor(name, t).expand(shape) for name in self.scheme.ways]

    def from_anchor(self, name: str, t: Tensor) -> Tensor:
        """Distances from one anchor, for target places t (Tq, 1): (B or 1, Tq, S)."""
        n, j = self.symbols[:, None, None], torch.arange(self.src.shape[1], device=t.device)
        if name == "start":
            return t - self.since[:, None, :]
        return t - (n + 1 - j) if name == "end" else t - n - j

    def select_sources(self, sources: Tensor) -> None:
        self.src, self.symbols = self.src[sources], self.symbols[sources]
        self.since = self.since[sources]
