"""More anchors of cross-attention: doubled places, repeats, learned counts.

model:
  positions: examples/anchors.py:Stack
  cross_positions: examples/anchors.py:Stack
  source_bos: true
  score_cap: 1

The classes at the end each have a list of anchors. Write one of your own beside them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelSettings
from toytrans.model.positions.anchored import Anchored, farthest
from toytrans.model.positions.base import Distances
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, Vocabulary


@dataclass(frozen=True)
class CountedDistances(Distances):
    """Distances of which those of G heads are learned counts, clipped to where a bias still bends.

    index: as of `Distances`; counts are rounded down
    fraction: (G, B, Tq, S), in [0, 1), what rounding took away
    extra: (G, B, Tq or 1, S), added to the scores: how much a key adds to the count, and the slope
        over what was clipped
    """

    fraction: Tensor
    extra: Tensor


LEARNED = ("count", "count_end", "fertility", "fertility_end")
"""Anchors whose places a head learns to count."""


class MoreAnchors(Anchored):
    """Anchored positions with more anchors. t, j, n and p(j) are those of `Anchored`.

        double       d = 2t - p(j): two places of the source for one of the target
        double_wrap  d = 2(t - floor(n / 2)) - j
        repeat       d = r(t) - r(j), if j holds the token of t; r = how often the token of a
                     place has come before it; EOS follows the last of these; others: n + 2
        first        d = -r(j): the first of each symbol, whatever t is
        count        d = t + 1 - c(j), c = a learned count of places
        count_end    the same, counted from the end; BOS comes last
        fertility, fertility_end: as count and count_end, with amounts e^x > 0

    A counting head gives each symbol an amount, made from memory m, the same in all layers. With
    x = w m_j + b it is clip(1.1 tanh(x + 1), -1, 1), with the gradient of 1.1 tanh(x + 1). So it
    can be exactly 1. A fertility is e^x, x at most 6: the log link of Poisson regression. Words
    that add to the memory of a place then multiply its amount. w starts small, so that at first
    every symbol counts nearly one.

    c(j) is the largest running sum of amounts so far. What was taken away must be added again
    before the count goes on. At the far end (EOS, or BOS) it grows by one. Scores also get
    log(0.01 + c(j) - c(j')), j' the place before: a place that does not raise the count is hardly
    visible. With a push 1 and a POP -1, counted from the end, the rest of a stack is numbered from
    its top. Between whole numbers the bias is interpolated.

    Sources: learned counts, Golovneva et al. 2024 (Contextual Position Encoding); visibility by
    what a place adds, Dong and Xu 2020 (CIF); fertility, Brown et al. 1993.
    """

    needs_fp32 = True

    def __init__(self, settings: ModelSettings, vocabulary: Vocabulary) -> None:
        super().__init__(settings, vocabulary)
        counting = [head for head, name in enumerate(self.names) if name in LEARNED]
        self.register_buffer("counting", torch.tensor(counting).long(), persistent=False)
        self.counting: Tensor  # which heads, (G,)
        names = [self.names[head] for head in counting]
        backwards = torch.tensor([name.endswith("_end") for name in names]).bool()
        self.register_buffer("backwards", backwards[:, None, None], persistent=False)
        self.backwards: Tensor  # (G, 1, 1)
        multiplying = torch.tensor([name.startswith("fertility") for name in names]).bool()
        self.register_buffer("multiplying", multiplying, persistent=False)
        self.multiplying: Tensor  # (G,)
        self.amounts = nn.Linear(settings.d_model, len(counting)) if counting else None
        if self.amounts is not None:
            nn.init.zeros_(self.amounts.bias)

    def cross_distances(
        self, memory: Tensor, src: Tensor, tgt_in: Tensor, queries: range
    ) -> Distances:
        t = torch.arange(queries.start, queries.stop, device=src.device)[:, None]
        # the places of a parallel pass, or the beams at one place
        asking = tgt_in.shape[1] * len(t)
        shape = len(src), asking, src.shape[1]
        reach, learned = farthest(queries, src), self.learned_places(memory, src)
        measured = {
            name: self.since_same(src, tgt_in, queries)
            if name == "repeat"
            else self.from_anchor(name, src, t)
            for name in set(self.names) - set(LEARNED)
        }
        if learned is None:
            distance = [measured[name].expand(shape) for name in self.names]
            return Distances.within(reach, torch.stack(distance))
        reached, added = learned  # (G, B, S) each
        exact = t + 1 - reached[:, :, None, :]  # (G, B, Tq, S)
        near = exact.clamp(-self.reach - 1, self.reach + 1)  # beyond, the slope alone goes on
        below = near.detach().floor()
        extra = (0.01 + added).log()[:, :, None, :] - self.slope * (exact - near).abs()
        counts = iter(below.long())
        distance = [
            (next(counts) if name in LEARNED else measured[name]).expand(shape)
            for name in self.names
        ]
        whole = Distances.within(reach, torch.stack(distance))
        return CountedDistances(whole.steps, whole.index, near - below, extra)

    def learned_places(self, memory: Tensor, src: Tensor) -> tuple[Tensor, Tensor] | None:
        """c(j), and what place j adds to it: (G, B, S) each. None if no head counts."""
        if self.amounts is None:
            return None
        with torch.autocast(memory.device.type, enabled=False):
            x = self.amounts(memory.to(self.amounts.weight.dtype))  # (B, S, G)
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
        """Places (G, B, S) in the order in which a head counts, and back."""
        return torch.where(self.backwards, x.flip(2), x)

    def from_anchor(self, name: str, src: Tensor, t: Tensor) -> Tensor:
        match name:
            case "double":
                return 2 * t - self.since_separator(src)[:, None, :]
            case "double_wrap":
                n = (src >= FIRST_SYMBOL_ID).sum(1)[:, None, None]
                return 2 * (t - n // 2) - torch.arange(src.shape[1], device=src.device)
            case "first":
                return -repeats_of(src)[:, None, :]
        return super().from_anchor(name, src, t)

    def since_same(self, src: Tensor, tgt_in: Tensor, queries: range) -> Tensor:
        """Occurrences of a query's token between its own place and place j: (B, W Tq, S)."""
        here = slice(queries.start, queries.stop)
        tokens = tgt_in[:, :, here].flatten(1)[..., None]  # (B, W Tq, 1)
        before = repeats_of(tgt_in.flatten(0, 1)).view_as(tgt_in)[:, :, here].flatten(1)[..., None]
        same = tokens == src[:, None, :]
        n = (src >= FIRST_SYMBOL_ID).sum(1)[:, None, None]
        distance = (before - repeats_of(src)[:, None, :]).where(same, n + 2)
        past_all = before - same.sum(-1, keepdim=True)
        return torch.where(src[:, None, :] == EOS_ID, past_all, distance)

    def bias(self, table: Tensor, distances: Distances) -> Tensor:
        """The bias of `Anchored`, (B or 1, H, Tq, Tk), interpolated for heads that count."""
        bias = super().bias(table, distances)
        if not isinstance(distances, CountedDistances):
            return bias
        heads = self.counting
        values = self.values(table, distances.steps)[heads]  # (G, N)
        above = self.look_up(values, distances.index[heads] + 1).transpose(0, 1)
        fraction, extra = distances.fraction.transpose(0, 1), distances.extra.transpose(0, 1)
        return bias.index_add(1, heads, (above - bias[:, heads]) * fraction + extra)


def repeats_of(ids: Tensor) -> Tensor:
    """How often the id of each place occurs before it in its row: (B, L) -> (B, L)."""
    order = ids.argsort(dim=1, stable=True)
    sorted_ids = ids.gather(1, order)
    places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    new_id = sorted_ids[:, 1:] != sorted_ids[:, :-1]
    begins = nn.functional.pad(new_id, (1, 0), value=True)
    start = torch.where(begins, places, 0).cummax(1).values  # of the run of each id
    return torch.empty_like(order).scatter(1, order, places - start)


class Stack(MoreAnchors):
    """For configs/stack.yaml: two heads count what is left of a stack, from its top."""

    anchors = ("count_end", "count_end", "start", "end")


class Chomsky(MoreAnchors):
    """For the board chomsky, whose tasks reverse, double, sort, add, take every other place or work
    a stack."""

    anchors = (
        *("start", "start", "start", "start", "start", "count_end"),
        *("wrap", "double", "double_wrap", "repeat", "first", "first"),
    )
    slope = 2.0


class T2T(MoreAnchors):
    """For the board t2t, whose tasks copy, reverse, double, sort, add and multiply."""

    anchors = ("start", "start", "end", "wrap", "repeat", "first", "first", "first")


class Scan(MoreAnchors):
    """For the board scan, where words like twice multiply what a command becomes."""

    anchors = ("fertility", "fertility", "fertility_end", "fertility_end")


class Double(MoreAnchors):
    """For tasks that take every other place, as odds_first does."""

    anchors = ("double", "double_wrap", "end", "start")


class Repeat(MoreAnchors):
    """For tasks that go on from where the symbol just written stands."""

    anchors = ("repeat", "first", "start", "end")


class Count(MoreAnchors):
    """For tasks that leave places out: counts of those that stay, from both ends."""

    anchors = ("count", "count_end", "start", "end")


class Fertility(MoreAnchors):
    """For tasks in which a symbol becomes several: counts of those, from both ends."""

    anchors = ("fertility", "fertility_end", "start", "wrap")


class Every(MoreAnchors):
    """Every anchor once, for eleven heads: for tests."""

    anchors = ("start", "end", "wrap", "double", "double_wrap", "repeat", "first", *LEARNED)
