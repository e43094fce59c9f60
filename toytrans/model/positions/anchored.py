"""Anchored positions: distances from the ends of a source."""

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelConfig
from toytrans.errors import UserError
from toytrans.model.positions.base import CrossState, Distances, arange
from toytrans.model.positions.relative import Relative
from toytrans.tokens import FIRST_SYMBOL_ID, Vocabulary


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
