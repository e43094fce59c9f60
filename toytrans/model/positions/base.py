"""What a position scheme is: all that the transformer asks of one.

A scheme may do any of three things, and inherits from `Positions` what it leaves alone:

    embed     adds something to the embeddings
    rotate    rotates queries and keys of self-attention
    bias      adds numbers to the scores, by the distance of each key from each query, which
              self_distances and cross_distances measure

A scheme with a bias derives from `DistanceBias` and says which number a distance is worth. Each
scheme is a file of this package and an entry in `SCHEMES`; yours may be a file anywhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.config.schema import ModelSettings
from toytrans.tokens import Vocabulary


@dataclass(frozen=True)
class Distances:
    """How far keys are from queries, in whole places.

    steps: (N,), every distance that may occur: -reach .. reach
    index: (H or 1, B or 1, Tq or 1, Tk), which of the N lies between a query and a key; heads may
        measure from different places
    """

    steps: Tensor
    index: Tensor

    @staticmethod
    def within(reach: int, distance: Tensor) -> "Distances":
        """Those of a tensor (H or 1, B or 1, Tq or 1, Tk). Farther ones count as `reach`."""
        steps = torch.arange(-reach, reach + 1, device=distance.device)
        return Distances(steps, distance.clamp(-reach, reach) + reach)


class Positions(nn.Module):
    """A scheme that does nothing. Others override what they need.

    What a config has to know of a scheme stands here too: `toytrans.resolve` asks the class, and
    knows no scheme by its name.

    summary: what a model is told of places by it, where that is not what the paper's model is told
    needs_source_bos: whether it counts from BOS, so that sources must start with one
    default_score_cap: `model.score_cap` where the config says nothing
    default_max_positions: `model.max_positions` likewise; None = the scheme has no such number
    takes_random_positions: whether `model.random_positions` may be set
    needs_fp32: whether its bias loses too much in bf16, in which a GPU's fused kernel would add it,
        so that the slower eager attention is taken there. No scheme of this package sets it; one
        that counts in fractions of a place does, as in configs/examples/anchors.py.
    bias_weights: F, how many numbers each head of an attention learns for its bias
    bias_deviation: standard deviation of their first values. It is not 0 where nothing else tells
        places apart, so that even a fresh model sees the order of its source.
    """

    summary = ""
    needs_source_bos = False
    default_score_cap = 0.0
    default_max_positions: int | None = None
    takes_random_positions = False
    needs_fp32 = False
    bias_weights = 0
    bias_deviation = 0.0

    def __init__(self, settings: ModelSettings, vocabulary: Vocabulary) -> None:
        super().__init__()

    @classmethod
    def check(cls, settings: ModelSettings) -> None:
        """Raise BadKey for a model that the scheme does not fit, because of a width, say."""

    @classmethod
    def measures_cross_attention(cls) -> bool:
        """Whether the scheme can be one of cross-attention."""
        return cls.cross_distances is not Positions.cross_distances

    def embed(self, x: Tensor, start: int = 0) -> Tensor:
        """Embeddings (B, L, D) of places start .. start + L - 1 -> (B, L, D)."""
        return x

    def rotate(self, q: Tensor, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """Queries and keys of self-attention, (B, H, L, Dh) each, at places start .. start + L - 1
        -> the same, rotated."""
        return q, k

    def self_distances(self, queries: range, device: torch.device) -> Distances | None:
        """From some places of a sequence to all places up to the last of them; None = no bias."""
        return None

    def cross_distances(
        self, memory: Tensor, src: Tensor, tgt_in: Tensor, queries: range
    ) -> Distances | None:
        """From target places to source places; None = no bias.

        memory: (B, S, D), the encoder's output
        src: (B, S)
        tgt_in: (B, W, T), the target tokens so far in the W rows of each source: one row in a
            parallel pass, the beams in a search
        queries: the Tq places of `tgt_in` that ask: all T in a parallel pass, the newest one in a
            search
        Returns an index (H or 1, B or 1, W Tq or 1, S): the queries of a source are those of all
            its rows, side by side. Either W or Tq is 1.
        """
        return None

    def bias(self, table: Tensor, distances: Distances) -> Tensor:
        """What heads add to their scores: (B or 1, H, Tq or 1, Tk).

        table: (H, F), what an attention has learned
        """
        raise NotImplementedError

    def new_bias_table(self, n_heads: int) -> Tensor:
        """The table that an attention starts with: (H, F). It is no parameter where F is 0."""
        table = torch.zeros(n_heads, self.bias_weights)
        if self.bias_deviation:
            table.normal_(0, self.bias_deviation)
        return nn.Parameter(table) if self.bias_weights else table


class NoPositions(Positions):
    """No positions.

    Attention without a causal mask cannot tell one order of its keys from another then. A decoder
    can learn to count what it sees (Kazemnejad et al. 2023, The Impact of Positional Encoding on
    Length Generalization in Transformers).
    """

    summary = "given no places; a decoder can count what it sees"


class DistanceBias(Positions):
    """A bias by the distance of a key from a query.

    A subclass gives `values`. They are computed once for each distance, and looked up for each
    query and key. In self-attention the distance of query i and key j is d = i - j. A scheme for
    cross-attention says with `cross_distances` how it measures there. Sequences may have any
    length.
    """

    summary = "given how far apart two tokens of a sequence are, in learned steps"

    def values(self, table: Tensor, distance: Tensor) -> Tensor:
        """What distances (N,) are worth to each head: (H, N).

        table: (H, F), what an attention has learned; `look_up` takes numbers from it
        """
        raise NotImplementedError

    def self_distances(self, queries: range, device: torch.device) -> Distances:
        i = torch.arange(queries.start, queries.stop, device=device)[:, None]
        j = torch.arange(queries.stop, device=device)
        return Distances.within(queries.stop, (i - j)[None, None])

    def bias(self, table: Tensor, distances: Distances) -> Tensor:
        values = self.values(table, distances.steps)  # (H, N)
        return self.look_up(values, distances.index).transpose(0, 1)  # (B or 1, H, Tq, Tk)

    def look_up(self, table: Tensor, index: Tensor) -> Tensor:
        """Numbers of each head: table (H, N), index (..., one axis for heads first) -> (H, ...).

        index: (H or 1, ...), the same for all heads or one for each
        """
        heads, columns = table.shape
        index = index.expand(heads, *index.shape[1:])
        if table.device.type != "cuda":
            return table.gather(1, index.flatten(1)).view(index.shape)
        # the gradient of `gather` adds up in any order on a GPU, so that two equal runs would
        # differ; that of an embedding sorts first
        first = torch.arange(0, heads * columns, columns, device=index.device)
        flat = index + first.view(-1, *[1] * (index.dim() - 1))
        return F.embedding(flat, table.reshape(-1, 1)).view(flat.shape)
