"""What a position scheme is, and the schemes that do nothing.

A scheme may do three things:
    embed: add something to the embeddings
    rotate: rotate queries and keys of self-attention
    self_distances, cross_state: measure how far keys are from queries; `bias` turns that into
        numbers that each head adds to its scores

This is the seam for schemes of the user's. What cross-attention measures from is a `CrossState`,
which may read sources, memory and target tokens. configs/examples/anchors.py uses all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelConfig
from toytrans.tokens import Vocabulary


@dataclass(frozen=True)
class Distances:
    """How far keys are from queries, measured in M ways.

    index: (M, B or 1, Tq, Tk), distance + offset; never negative
    offset: at least the absolute value of any distance
    """

    index: Tensor
    offset: int
    needs_fp32: ClassVar[bool] = False
    """Whether the bias loses too much in bf16. A subclass with finer distances sets it."""


class CrossState:
    """What cross-attention measures its distances from, for A sources. This one measures none.

    A scheme keeps here whatever it needs of sources and of the tokens read so far. In decoding,
    `advance` comes before `distances` of its place, and the other two follow the search.
    """

    def distances(self, queries: range) -> Distances | None:
        """From target places to source places; None = no bias."""
        return None

    def advance(self, tokens: Tensor) -> None:
        """Read the newest token of each beam: (A, W)."""

    def select_sources(self, sources: Tensor) -> None:
        """Keep some sources (A',), in that order."""

    def select_beams(self, parents: Tensor) -> None:
        """Beam w of source a continues its beam parents[a, w]: (A, W)."""


class Positions(nn.Module):
    """A scheme that does nothing. Others override what they need.

    given: what a model knows of places by it, where that is not what the paper's model knows
    bias_weights: F, how many numbers each head of an attention learns for its bias
    bias_deviation: standard deviation of their first values. It is not 0 where nothing else tells
        places apart, so that even a fresh model sees the order of its source.
    """

    given = ""
    bias_weights = 0
    bias_deviation = 0.0

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__()

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        """Embeddings (B, L, D) of places start .. start + L - 1 -> (B, L, D)."""
        return x

    def make_room(self, places: int, like: Tensor) -> None:
        """Make every table long enough for sequences of so many places.

        like: has the dtype and device of embeddings.
        """

    def rotate(self, x: Tensor, places: range) -> Tensor:
        """Queries or keys (B, H, L, Dh) of self-attention -> (B, H, L, Dh).

        places: one for each of the L, or one for all of them.
        """
        return x

    def self_distances(self, queries: range, keys: range, device: torch.device) -> Distances | None:
        """From queries to keys of the same sequence, measured in one way; None = no bias."""
        return None

    def cross_state(
        self, memory: Tensor, src: Tensor, tgt_in: Tensor | None = None, beams: int = 1
    ) -> CrossState:
        """What cross-attention needs of its sources.

        memory: (A, S, D)
        src: (A, S)
        tgt_in: (A, T), all target tokens; None = they come one by one to `advance`
        beams: targets per source
        """
        return CrossState()

    def bias(self, table: Tensor | None, distances: Distances) -> Tensor:
        """What heads add to their scores: (B or 1, H, Tq, Tk).

        table: (H, F), what an attention has learned; None where `bias_weights` is 0
        """
        raise NotImplementedError

    def new_bias_table(self, n_heads: int) -> nn.Parameter | None:
        """The table that an attention starts with: (H, F)."""
        if not self.bias_weights:
            return None
        table = torch.zeros(n_heads, self.bias_weights)
        return nn.Parameter(table.normal_(0, self.bias_deviation) if self.bias_deviation else table)


class NoPositions(Positions):
    """Attention without a causal mask cannot tell one order of its keys from another. A decoder can
    learn to count what it sees (Kazemnejad et al. 2023, The Impact of Positional Encoding on Length
    Generalization in Transformers)."""

    given = "given no places; a decoder can count what it sees"


def extend_table(
    table: Tensor, rows: int, like: Tensor, compute: Callable[[int], Tensor]
) -> Tensor:
    """A table of so many rows or more, on the device of `like` and in its dtype, fp32 at least.

    It is the given one where that will do. A longer one has twice the rows at least, since decoding
    needs one more each step. For another dtype or device a table keeps its length.

    table: (N, ...), what an earlier call returned
    compute: gives so many rows or more
    """
    dtype, enough = torch.promote_types(like.dtype, torch.float32), len(table) >= rows
    if enough and (table.dtype, table.device) == (dtype, like.device):
        return table
    with torch.inference_mode(False):  # training may use it later
        return compute(len(table) if enough else max(rows, 2 * len(table))).to(like.device, dtype)


def arange(places: range, device: torch.device | str) -> Tensor:
    """Places as a tensor."""
    return torch.arange(places.start, places.stop, device=device)
