"""What a position scheme is.

A scheme may add something to the embeddings (`embed`), may turn queries and keys (`turn`), and may
tell every attention how far its keys are from its queries (`self_distances`, `cross_distances`); an
attention makes of those distances a bias on its scores, with the few numbers per head that it
learns (`bias`). What distances need of a source is taken from it once (`landmarks`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from toytrans.config import ModelConfig

LookUp = Callable[[Tensor, Tensor, Tensor, Sequence[int]], Tensor]
Turn = Callable[[Tensor, Tensor, Tensor], Tensor]


def look_up(weights: Tensor, described: Tensor, places: Tensor, rows: Sequence[int]) -> Tensor:
    """What N distances, described by F numbers each (N, F), are worth to H heads that weigh these
    (H, F), looked up where `places` (A, B, Tq, Tk) says; head h looks in its row rows[h]
    -> (B, H, Tq, Tk). Most distances occur many times, so they are weighed once."""
    with torch.autocast(weights.device.type, enabled=False):
        values = weights @ described.mT  # (H, N)
    flat, shape = [place.flatten() for place in places], places.shape[1:]
    if len(flat) == 1:  # measured in one way: all heads at once take a third as long
        return values.index_select(1, flat[0]).view(len(values), *shape).transpose(0, 1)
    heads = [(value, flat[row]) for value, row in zip(values.unbind(), rows, strict=True)]
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.stack([v.index_select(0, place).view(shape) for v, place in heads], 1)
    found = values.new_empty(len(heads), *shape)  # to write it in place takes a third as long
    for (value, place), bias in zip(heads, found, strict=True):
        torch.index_select(value, 0, place, out=bias.view(-1))
    return found.transpose(0, 1)


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


class Landmarks(NamedTuple):
    """What cross-attention measures distances from, in B sources.

    symbols (B,): how many there are; since (B, S): places since the last separator; repeats (B, S):
    how often the id of each place has come before, where that is asked for. Of G heads that count,
    (G, B, S) each: the count reached at each place, and how much of it the place has added.
    """

    symbols: Tensor
    since: Tensor
    repeats: Tensor | None = None
    reached: Tensor | None = None
    added: Tensor | None = None

    def select(self, rows: Tensor) -> "Landmarks":
        """Those of some sources (A',), in that order."""
        repeats = None if self.repeats is None else self.repeats[rows]
        counts = (x if x is None else x[:, rows] for x in (self.reached, self.added))
        return Landmarks(self.symbols[rows], self.since[rows], repeats, *counts)


class Distances(NamedTuple):
    """How far keys are from queries, measured in A ways.

    whole (A, B or 1, Tq, Tk): whole numbers, to each of which `farthest` has been added, so that
    none is below zero. The last G of the A ways go by counts: theirs are clipped to where a bias
    still bends, and rounded down; fraction (G, B, Tq, Tk), in [0, 1), is what that took away, and
    extra (G, B, Tq, Tk) what else their scores get, for how much a key has added to the count and
    for what was clipped.
    """

    whole: Tensor
    farthest: int
    fraction: Tensor | None = None
    extra: Tensor | None = None


class Positions(nn.Module):
    """No positions at all: attention without a triangle then cannot tell one order of its keys from
    another, while a decoder can learn to count what it sees (Kazemnejad et al. 2023, The Impact of
    Positional Encoding on Length Generalization in Transformers). What other schemes fill in."""

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

    def self_distances(self, queries: range, keys: range, device: torch.device) -> Distances | None:
        """From queries to keys at some places of the same sequence, in one way, or None."""
        return None

    def landmarks(self, memory: Tensor, src: Tensor) -> Landmarks | None:
        """Memory (B, S, D) and source ids (B, S) -> what `cross_distances` needs of them."""
        return None

    def cross_distances(
        self, queries: range, src: Tensor, landmarks: Landmarks | None, read: Read | None = None
    ) -> Distances | None:
        """From target places Tq to those of source ids (B, S), or None.

        read: the tokens of the queries, where a scheme `reads_tokens`; of one place there may be
        several, those of a source's beams.
        """
        return None

    def bias(self, table: Tensor | None, distances: Distances, look_up: LookUp = look_up) -> Tensor:
        """What heads add to their scores: (H, W) -> (B or 1, H, Tq, Tk). table: what an attention
        has learned; None where a scheme has `bias_weights` 0."""
        raise NotImplementedError

    def turn(self, x: Tensor, places: range, turned: Turn = turned) -> Tensor:
        """Queries or keys (B, H, L, Dh) of L places, or all of one place, in self-attention, as the
        scheme turns them."""
        return x


class Relative(Positions):
    """What schemes share whose self-attention adds a bias by the distance d = i - j of query i and
    key j: each describes d by F numbers, weighed by each head. Cross-attention has a bias where a
    scheme says how far away its keys are. There is no longest sequence."""

    rows: Sequence[int]
    """Of each head, by which of several distances it goes."""

    def __init__(self, model: ModelConfig, separator_ids: tuple[int, ...]) -> None:
        super().__init__(model, separator_ids)
        self.register_buffer("like", torch.empty(0), persistent=False)  # dtype and device
        self.like: Tensor
        self._described = torch.empty(0, 0)  # of as many distances as were met

    def self_distances(self, queries: range, keys: range, device: torch.device) -> Distances:
        farthest = max(queries.stop, keys.stop)
        whole = arange(queries, device)[:, None] - arange(keys, device) + farthest
        return Distances(whole[None, None], farthest)

    def bias(self, table: Tensor | None, distances: Distances, look_up: LookUp = look_up) -> Tensor:
        """(H, F) -> (B or 1, H, Tq, Tk)."""
        assert table is not None
        described = self.described(distances.farthest)
        rows = [0] * len(table) if len(distances.whole) == 1 else self.rows  # measured in one way
        return look_up(table.to(described.dtype), described, distances.whole, rows)

    def describe(self, distance: Tensor) -> Tensor:
        """Whole numbers (...) -> (..., F)."""
        raise NotImplementedError

    def described(self, farthest: int) -> Tensor:
        """All distances up to the farthest, either way: (2 farthest + 1, F). They are kept."""
        if torch.compiler.is_compiling():  # a graph keeps no table
            return self._describe_all(farthest)
        met, like = len(self._described) // 2, self.like
        known = (self._described.dtype, self._described.device) == (like.dtype, like.device)
        if met < farthest or not known:
            met = max(farthest, 2 * met)
            self._described = self._describe_all(met)
        return self._described[met - farthest : met + farthest + 1]

    def _describe_all(self, farthest: int) -> Tensor:
        every = arange(range(-farthest, farthest + 1), self.like.device)
        return self.describe(every).to(self.like.dtype)


def arange(places: range, device: torch.device) -> Tensor:
    return torch.arange(places.start, places.stop, device=device)
