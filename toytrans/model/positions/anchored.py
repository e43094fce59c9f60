"""Anchored positions: cross-attention is told how far each source place is from where the output's
source should stand."""

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelSettings
from toytrans.model.positions.base import DistanceBias, Distances
from toytrans.tokens import FIRST_SYMBOL_ID, Vocabulary


class Anchored(DistanceBias):
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

    names: the anchor of each head.
    """

    summary = "told where each output's source stands"
    needs_source_bos = True
    default_score_cap = 1.0
    reach = 3
    bias_weights = 2 * reach + 1
    anchors: tuple[str, ...] = ("start", "end", "wrap", "start")
    gain = 16.0
    slope = 1.0

    def __init__(self, settings: ModelSettings, vocabulary: Vocabulary) -> None:
        super().__init__(settings, vocabulary)
        separators = torch.tensor(vocabulary.separator_ids).long()
        self.register_buffer("separators", separators, persistent=False)
        self.separators: Tensor
        self.names = [self.anchors[head % len(self.anchors)] for head in range(settings.n_heads)]

    def values(self, table: Tensor, distance: Tensor) -> Tensor:
        near = distance.clamp(-self.reach, self.reach) + self.reach  # (N,), columns of the table
        return self.gain * self.look_up(table, near[None]) - self.slope * distance.abs()

    def cross_distances(
        self, memory: Tensor, src: Tensor, tgt_in: Tensor, queries: range
    ) -> Distances:
        t = torch.arange(queries.start, queries.stop, device=src.device)[:, None]
        shape = len(src), len(t), src.shape[1]
        measured = {name: self.from_anchor(name, src, t).expand(shape) for name in set(self.names)}
        distance = torch.stack([measured[name] for name in self.names])  # (H, B, Tq, S)
        return Distances.within(farthest(queries, src), distance)

    def from_anchor(self, name: str, src: Tensor, t: Tensor) -> Tensor:
        """Distances of the places of src (B, S) from one anchor of the target places t (Tq, 1):
        (B or 1, Tq, S)."""
        j = torch.arange(src.shape[1], device=src.device)
        n = (src >= FIRST_SYMBOL_ID).sum(1)[:, None, None]
        match name:
            case "start":
                return t - self.since_separator(src)[:, None, :]
            case "end":
                return t - (n + 1 - j)
            case "wrap":
                return t - n - j
        raise ValueError(f"no anchor is called {name!r}")

    def since_separator(self, src: Tensor) -> Tensor:
        """p(j): (B, S)."""
        places = torch.arange(src.shape[1], device=src.device)
        if not len(self.separators):
            return places.repeat(len(src), 1)
        separates = (src[..., None] == self.separators).any(-1)
        last = torch.where(separates, places, 0).cummax(1).values
        # a separator itself counts from the one before it
        return places - nn.functional.pad(last[:, :-1], (1, 0))


def farthest(queries: range, src: Tensor) -> int:
    """A bound on every anchor's distance, known without reading a value from a GPU."""
    return 2 * (queries.stop + src.shape[1])
