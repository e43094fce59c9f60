"""Anchored positions: distances from the ends of a source, its separators, its repeats, and by what
is counted in it."""

import torch
from torch import Tensor, nn

from toytrans.config import COUNTING, ModelConfig
from toytrans.model.scheme import (
    Distances,
    Landmarks,
    LookUp,
    Read,
    Relative,
    arange,
    look_up,
    repeats_of,
)
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID


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
        count        d = t + 1 - c(j): c counts places, each for as much as the head has learned
        count_end    the same counted from the end, BOS coming last
        fertility, fertility_end: as count and count_end, with amounts e^x, above zero

    A head that counts makes of memory m an amount for each symbol, alike in all layers; w and b are
    learned here, by the scheme. With x = w m_j + b it is clip(1.1 tanh(x + 1), -1, 1), which can be
    exactly 1 and has the gradient of 1.1 tanh(x + 1); a fertility is e^x (x at most 6, 403 places),
    the log link of Poisson regression, so that what several words add to the memory of a place, say
    "around" and "thrice", multiplies its amount. w starts small (as torch's Linear does), so that
    at first every symbol counts nearly one. c(j) is the most that the running sum of amounts has
    come to: what has been taken away must be added again before the count goes on. At the far end
    (EOS, or BOS) it goes on by one. To the scores comes log(0.01 + c(j) - c(j')), j' the place
    before: a place that does not raise the count is hardly seen. With a push 1 and a POP -1,
    counted from the end, what is left on a stack is so numbered from its top. Between two whole
    numbers the bias is interpolated. Learned counts are those of Golovneva et al. 2024 (Contextual
    Position Encoding); places seen by what they add those of Dong and Xu 2020 (CIF); how many
    target places a source symbol fills is its fertility (Brown et al. 1993).

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
        counting = [head for head, name in enumerate(model.cross_anchors) if name in COUNTING]
        measured = [name for name in model.cross_anchors if name not in COUNTING]
        self.anchors = tuple(dict.fromkeys(measured))
        self.reads_tokens = "repeat" in self.anchors
        self.asks_for_repeats = self.reads_tokens or "first" in self.anchors
        self.register_buffer("separators", torch.tensor(separator_ids).long(), persistent=False)
        self.separators: Tensor
        self.register_buffer("counting", torch.tensor(counting).long(), persistent=False)
        self.counting: Tensor  # which heads, (G,)
        names = [model.cross_anchors[head] for head in counting]
        backwards = torch.tensor([name.endswith("_end") for name in names]).bool()
        self.register_buffer("backwards", backwards[:, None, None], persistent=False)
        self.backwards: Tensor  # (G, 1, 1)
        multiplying = torch.tensor([name.startswith("fertility") for name in names]).bool()
        self.register_buffer("multiplying", multiplying, persistent=False)
        self.multiplying: Tensor  # (G,)
        self.amounts = nn.Linear(model.d_model, len(counting)) if counting else None
        self.rows = [
            len(self.anchors) + counting.index(head)
            if head in counting
            else self.anchors.index(name)
            for head, name in enumerate(model.cross_anchors)
        ]

    def landmarks(self, memory: Tensor, src: Tensor) -> Landmarks:
        """n, p(j), r(j), c(j) and what c(j) adds to that of the place before."""
        symbols = (src >= FIRST_SYMBOL_ID).sum(1)
        repeats = repeats_of(src) if self.asks_for_repeats else None
        return Landmarks(symbols, self._since_separator(src), repeats, *self._count(memory, src))

    def _count(self, memory: Tensor, src: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """c(j) and what it adds, by the heads that count."""
        if self.amounts is None:
            return None, None
        with torch.autocast(memory.device.type, enabled=False):
            x = self.amounts(memory.to(self.like.dtype))  # (B, S, G)
        steep = 1.1 * torch.tanh(x + 1)
        clipped = steep + (steep.clamp(-1, 1) - steep).detach()  # the gradient of the unclipped
        amounts = torch.where(self.multiplying, x.clamp(max=6).exp(), clipped)
        amounts = amounts * (src >= FIRST_SYMBOL_ID)[..., None]
        amounts = self._from_its_end(amounts.permute(2, 0, 1))  # (G, B, S)
        reached = amounts.cumsum(2).cummax(2).values.clamp(min=0)
        added = reached.diff(prepend=torch.zeros_like(reached[..., :1]))
        last = torch.where(self.backwards, src == BOS_ID, src == EOS_ID)  # (G, B, S)
        after_all = (reached[..., -1:] + 1).where(last, self._from_its_end(reached))
        return after_all, self._from_its_end(added).masked_fill(last, 1)

    def _from_its_end(self, x: Tensor) -> Tensor:
        """Places (G, B, S) in the order of a head's counting, and back."""
        return torch.where(self.backwards, x.flip(2), x)

    def cross_distances(
        self, queries: range, src: Tensor, landmarks: Landmarks | None, read: Read | None = None
    ) -> Distances:
        """The distances from each anchor in use, and by each head that counts."""
        assert landmarks is not None
        places = torch.arange(src.shape[1], device=src.device)
        symbols = landmarks.symbols[:, None, None]
        t = arange(queries, src.device)[:, None]
        distances = {
            "start": lambda: t - landmarks.since[:, None, :],
            "end": lambda: t - (symbols + 1 - places),
            "wrap": lambda: t - symbols - places,
            "double": lambda: 2 * t - landmarks.since[:, None, :],
            "double_wrap": lambda: 2 * (t - symbols // 2) - places,
            "repeat": lambda: _since_same(read, src, landmarks),
            "first": lambda: -_repeats(landmarks)[:, None, :],
        }
        rows = len(queries) if read is None else read.tokens.shape[1]
        shape = (len(src), rows, len(places))
        farthest = 2 * (queries.stop + len(places))
        whole = [distances[anchor]().expand(shape) for anchor in self.anchors]
        if landmarks.reached is None or landmarks.added is None:
            return Distances(torch.stack(whole).add_(farthest), farthest)
        exact = (t + 1 - landmarks.reached[:, :, None, :]).expand(-1, *shape)
        near = exact.clamp(-self.reach - 1, self.reach + 1)  # beyond, the slope alone goes on
        below = near.detach().floor()
        extra = (0.01 + landmarks.added).log()[:, :, None, :] - self.slope * (exact - near).abs()
        whole += [*below.long()]
        return Distances(torch.stack(whole).add_(farthest), farthest, near - below, extra)

    def bias(self, table: Tensor | None, distances: Distances, look_up: LookUp = look_up) -> Tensor:
        """T_h (H, 7) -> (B or 1, H, Tq, Tk)."""
        assert table is not None
        weights = nn.functional.pad(table, (0, 1), value=1.0)  # (H, 8); the slope is not learned
        bias = super().bias(weights, distances, look_up)
        whole, farthest, fraction, extra = distances
        if fraction is None or extra is None:
            return bias
        described, heads = self.described(farthest), self.counting
        next_places = whole[len(self.anchors) :] + 1
        weights = weights[heads].to(described.dtype)
        above = look_up(weights, described, next_places, range(len(heads)))
        more = (above - bias[:, heads]) * fraction.transpose(0, 1) + extra.transpose(0, 1)
        return bias.index_add(1, heads, more)

    def _since_separator(self, src: Tensor) -> Tensor:
        """p(j), (B, S)."""
        places = torch.arange(src.shape[1], device=src.device)
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


def _since_same(read: Read | None, src: Tensor, landmarks: Landmarks) -> Tensor:
    """Occurrences of a query's token between its own and place j's, (B, Tq, S); n + 2, where place
    j holds another."""
    assert read is not None
    same = read.tokens[..., None] == src[:, None, :]
    distance = read.repeats[..., None] - _repeats(landmarks)[:, None, :]
    past_all = read.repeats[..., None] - same.sum(-1, keepdim=True)
    distance = distance.where(same, landmarks.symbols[:, None, None] + 2)
    return torch.where(src[:, None, :] == EOS_ID, past_all, distance)


def _repeats(landmarks: Landmarks) -> Tensor:
    assert landmarks.repeats is not None
    return landmarks.repeats
