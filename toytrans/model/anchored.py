"""Anchored positions: distances from the ends of a source, its separators, its repeats."""

import torch
from torch import Tensor, nn

from toytrans.config import ModelConfig
from toytrans.model.scheme import LookUp, Read, Relative, arange, look_up, repeats_of
from toytrans.tokens import EOS_ID, PAD_ID


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
        t = arange(queries, src.device)[:, None]
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
        steps = arange(range(-self.reach, self.reach + 1), distance.device)
        near = distance.clamp(-self.reach, self.reach)[..., None] == steps
        return torch.cat((self.gain * near, -self.slope * distance.abs()[..., None]), -1)
