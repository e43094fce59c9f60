"""More anchors of cross-attention: doubled places, repeats, learned counts.

model:
  positions: examples/anchors.py:Stack
  cross_positions: examples/anchors.py:Stack
  source_bos: true
  score_cap: 1

The classes at the end each have a list of anchors. Write one of your own beside them.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelConfig
from toytrans.model.positions.base import CrossState, Distances, arange
from toytrans.model.positions.relative import Anchored, SourceAnchors
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, Vocabulary


@dataclass(frozen=True)
class CountedDistances(Distances):
    """Distances whose last G ways are learned counts.

    index: counts are clipped to where a bias still bends, and rounded down
    fraction: (G, B, Tq, Tk), in [0, 1), what rounding took away
    extra: (G, B, Tq, Tk), added to the scores: how much a key adds to the count, and what was
        clipped
    """

    fraction: Tensor
    extra: Tensor
    needs_fp32: ClassVar[bool] = True


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

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        self.vocabulary_size, heads = len(vocabulary), list(enumerate(self.names))
        counting = [head for head, name in heads if name in LEARNED]
        self.ways = [name for name in self.ways if name not in LEARNED]
        every = [*self.ways, *counting]  # a counting head measures in a way of its own
        self.rows = [every.index(h if h in counting else name) for h, name in heads]
        self.reads_tokens = "repeat" in self.ways
        self.needs_repeats = self.reads_tokens or "first" in self.ways
        self.register_buffer("counting", torch.tensor(counting).long(), persistent=False)
        self.counting: Tensor  # which heads, (G,)
        names = [self.names[head] for head in counting]
        backwards = torch.tensor([name.endswith("_end") for name in names]).bool()
        self.register_buffer("backwards", backwards[:, None, None], persistent=False)
        self.backwards: Tensor  # (G, 1, 1)
        multiplying = torch.tensor([name.startswith("fertility") for name in names]).bool()
        self.register_buffer("multiplying", multiplying, persistent=False)
        self.multiplying: Tensor  # (G,)
        self.amounts = nn.Linear(model.d_model, len(counting)) if counting else None
        if self.amounts is not None:
            nn.init.zeros_(self.amounts.bias)

    def cross_state(
        self, memory: Tensor, src: Tensor, tgt_in: Tensor | None = None, beams: int = 1
    ) -> CrossState:
        return MoreSourceAnchors(self, memory, src, tgt_in, beams)

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

    def bias(self, table: Tensor | None, distances: Distances) -> Tensor:
        """The bias of `Anchored`, (B or 1, H, Tq, Tk), interpolated for heads that count."""
        bias = super().bias(table, distances)
        if not isinstance(distances, CountedDistances):
            return bias
        heads = self.counting
        weights = self.with_slope(table)[heads]
        features = self.features_up_to(distances.offset, weights)
        next_steps = distances.index[len(self.ways) :] + 1
        above = self.weigh(weights, features, next_steps, range(len(heads)))
        fraction, extra = distances.fraction.transpose(0, 1), distances.extra.transpose(0, 1)
        return bias.index_add(1, heads, (above - bias[:, heads]) * fraction + extra)


class MoreSourceAnchors(SourceAnchors):
    """The anchors of A sources with W beams each.

    repeats: (A, S), how often the id of a place occurs before it
    reached, added: (G, A, S), the count at each place, and what the place adds
    token_counts: (A, W, V), how often each beam has read each token, when decoding
    tokens, token_repeats: (A, Tq), tokens of the queries, and how often each occurs before; the
        queries are all places of a parallel pass, or the beams at one place
    """

    def __init__(
        self,
        scheme: MoreAnchors,
        memory: Tensor,
        src: Tensor,
        tgt_in: Tensor | None,
        beams: int,
    ) -> None:
        super().__init__(scheme, src)
        self.repeats = repeats_of(src) if scheme.needs_repeats else None
        learned = scheme.learned_places(memory, src)
        self.reached: Tensor | None = learned[0] if learned else None
        self.added: Tensor | None = learned[1] if learned else None
        self.tokens = self.token_repeats = self.token_counts = None
        if scheme.reads_tokens and tgt_in is not None:
            self.tokens, self.token_repeats = tgt_in, repeats_of(tgt_in)
        elif scheme.reads_tokens:
            self.token_counts = src.new_zeros(len(src), beams, scheme.vocabulary_size)

    def advance(self, tokens: Tensor) -> None:
        if self.token_counts is None:
            return
        before = self.token_counts.gather(2, tokens[..., None])
        self.token_counts.scatter_(2, tokens[..., None], before + 1)
        self.tokens, self.token_repeats = tokens, before.squeeze(2)

    def distances(self, queries: range) -> Distances:
        """Distances from each anchor in use; counted distances last."""
        offset, index = 2 * (queries.stop + self.src.shape[1]), self.measure(queries)
        if self.reached is None or self.added is None:
            return Distances(torch.stack(index).add_(offset), offset)
        scheme, t = self.scheme, arange(queries, self.src.device)[:, None]
        exact = t + 1 - self.reached[:, :, None, :]
        exact = exact.expand(-1, len(self.src), self._rows(queries), -1)
        near = exact.clamp(-scheme.reach - 1, scheme.reach + 1)  # beyond, the slope alone goes on
        below = near.detach().floor()
        clipped = scheme.slope * (exact - near).abs()
        extra = (0.01 + self.added).log()[:, :, None, :] - clipped
        index += [*below.long()]
        return CountedDistances(torch.stack(index).add_(offset), offset, near - below, extra)

    def measure(self, queries: range) -> list[Tensor]:
        """Distances from each anchor in use that does not count: (A, Tq, S) each."""
        t = arange(queries, self.src.device)[:, None]
        shape = (len(self.src), self._rows(queries), self.src.shape[1])
        return [self.from_anchor(name, t).expand(shape) for name in self.scheme.ways]

    def _rows(self, queries: range) -> int:
        """Queries of a pass; when decoding, the beams of one place if they differ."""
        return len(queries) if self.token_counts is None else self.token_counts.shape[1]

    def from_anchor(self, name: str, t: Tensor) -> Tensor:
        """Distances from one anchor, for target places t (Tq, 1): (A or 1, Tq, S)."""
        if name == "double":
            return 2 * t - self.since[:, None, :]
        if name == "double_wrap":
            j = torch.arange(self.src.shape[1], device=t.device)
            return 2 * (t - self.symbols[:, None, None] // 2) - j
        if name == "repeat":
            return self.since_same()
        if name == "first":
            assert self.repeats is not None
            return -self.repeats[:, None, :]
        return super().from_anchor(name, t)

    def since_same(self) -> Tensor:
        """Occurrences of a query's token between its own and place j's: (A, Tq, S)."""
        assert self.repeats is not None
        assert self.tokens is not None and self.token_repeats is not None
        same = self.tokens[..., None] == self.src[:, None, :]
        distance = self.token_repeats[..., None] - self.repeats[:, None, :]
        past_all = self.token_repeats[..., None] - same.sum(-1, keepdim=True)
        distance = distance.where(same, self.symbols[:, None, None] + 2)
        return torch.where(self.src[:, None, :] == EOS_ID, past_all, distance)

    def select_sources(self, sources: Tensor) -> None:
        super().select_sources(sources)
        self.repeats = None if self.repeats is None else self.repeats[sources]
        self.reached = None if self.reached is None else self.reached[:, sources]
        self.added = None if self.added is None else self.added[:, sources]
        if self.token_counts is not None:
            self.token_counts = self.token_counts[sources]

    def select_beams(self, parents: Tensor) -> None:
        if self.token_counts is not None:
            index = parents[..., None].expand_as(self.token_counts)
            self.token_counts.copy_(self.token_counts.gather(1, index))


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
