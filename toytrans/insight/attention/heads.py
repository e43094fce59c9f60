"""What each attention head does: its weights in a translation, and the simple rule that fits it.

Rules are measured on pairs with their true targets as decoder input.

A rule names one key for each query, by places. The symbols of a sequence have places 1 to n, BOS
has place 0 and EOS has place n + 1. A query counts if its token is a symbol:

    encoder   the symbols of the source; t is the place of the symbol
    decoder   the symbols of tgt_in; t is the place of the symbol
    cross     the symbols of tgt_out; t is the place of the symbol that the decoder predicts

Pads never count. Queries that see only one key do not count either.

    share     the share of the queries whose largest weight is on the key of the rule
    weight    the mean weight on that key
    chance    the share if every query picked one of its visible keys at random

Share and weight are zero for queries whose rule names no visible key. All rules are measured on the
same queries. Two rules may name the same key for some queries: the middle symbol is its own mirror.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toytrans.data.batches import Batch
from toytrans.errors import UserError
from toytrans.evaluation import wilson_interval
from toytrans.insight.capture import Part, capture
from toytrans.model.build import as_transformer
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import BOS_ID, FIRST_SYMBOL_ID

NEAR = ("previous", "next")
BESIDE = ("before mirror", "after mirror")
ENDS = ("first", "end")
RULES: dict[Part, tuple[str, ...]] = {
    "encoder": ("itself", "mirror place", *NEAR, *ENDS),
    "decoder": ("itself", *NEAR, "first"),
    "cross": ("same place", "mirror place", *NEAR, *BESIDE, *ENDS),
}
"""The rules of each part; `named_keys` defines their places. In a decoder, "next" needs a broken
mask."""

NO_RULE = "no rule"
TIED = 1e-4
"""Two weights are tied if they differ by less than this share: the difference may be rounding."""


class Choice(NamedTuple):
    """Which attentions to show. Layers and heads count from 1; None selects all."""

    part: Part | None = None
    layer: int | None = None
    head: int | None = None

    def check(self, model: Seq2Seq) -> None:
        """Raises UserError if the model has no such layer or head."""
        depths = depths_of(model)
        heads = model.config.n_heads
        chosen = {part: depth for part, depth in depths.items() if self.part in (None, part)}
        if not chosen:
            raise UserError(f"part {self.part}: no such part; there are {', '.join(depths)}")
        if self.layer is not None and not 1 <= self.layer <= max(chosen.values()):
            layers = ", ".join(f"{part} {depth}" for part, depth in chosen.items())
            raise UserError(f"layer {self.layer}: no such layer; layers of this model: {layers}")
        if self.head is not None and not 1 <= self.head <= heads:
            raise UserError(f"head {self.head}: no such head; give 1 to {heads}")


ALL = Choice()


def depths_of(model: Seq2Seq) -> dict[Part, int]:
    """How many attentions each part has. Raises UserError."""
    config = as_transformer(model).config
    encoder, decoder = config.n_encoder_layers, config.n_decoder_layers
    return {"encoder": encoder, "decoder": decoder, "cross": decoder}


@dataclass(frozen=True)
class AttentionWeights:
    """The weights of one attention.

    heads: the numbers of the H heads.
    weights: (B, H, Tq, Tk), zero at masked keys.
    visible: (B, Tq, Tk) bool, the keys that its mask leaves visible.
    """

    part: Part
    layer: int
    heads: tuple[int, ...]
    weights: Tensor
    visible: Tensor

    def only(self, heads: tuple[int, ...]) -> "AttentionWeights":
        """The same with some of its heads."""
        rows = [self.heads.index(head) for head in heads]
        return replace(self, heads=heads, weights=self.weights[:, rows])


@dataclass(frozen=True)
class Fit:
    """How well one rule fits one head. low, high: the 95% Wilson interval of the share."""

    rule: str
    share: float
    low: float
    high: float
    weight: float
    chance: float

    @property
    def holds(self) -> bool:
        """Whether the whole interval is above the middle between chance and 1."""
        return self.low > (1 + self.chance) / 2


@dataclass(frozen=True)
class HeadReport:
    """One head, the number of queries that counted, and the fit of every rule, best first."""

    part: Part
    layer: int
    head: int
    queries: int
    fits: tuple[Fit, ...]

    @property
    def best(self) -> Fit:
        return self.fits[0]

    @property
    def label(self) -> str:
        """The best rule if it holds, with all rules that the data cannot tell from it."""
        if not self.best.holds:
            return NO_RULE
        return " or ".join(fit.rule for fit in self.fits if fit.share == self.best.share)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        head = {"part": self.part, "layer": self.layer, "head": self.head, "label": self.label}
        return head | {"queries": self.queries, "rules": [asdict(fit) for fit in self.fits]}


def axes(part: Part, batch: Batch) -> tuple[Tensor, Tensor]:
    """Ids of a part's queries (B, Tq) and keys (B, Tk). Cross queries are what they predict."""
    src, tgt_in, tgt_out = batch
    if part == "encoder":
        return src, src
    return (tgt_in, tgt_in) if part == "decoder" else (tgt_out, src)


# Weights --------------------------------------------------------------------------------------


def attend(model: Seq2Seq, batch: Batch, choice: Choice = ALL) -> list[AttentionWeights]:
    """The weights of every chosen attention, from one forward pass. Raises UserError."""
    return [
        _weights(part, layer, choice.head, call.intermediates().weights, call.context.mask)
        for (part, layer), call in capture(model, batch).items()
        if choice.part in (None, part) and choice.layer in (None, layer)
    ]


def _weights(
    part: Part, layer: int, head: int | None, weights: Tensor, mask: Tensor | None
) -> AttentionWeights:
    if not bool(weights.isfinite().all()):
        raise UserError(
            f"{part} layer {layer}: the weights are not finite, so the model has diverged; "
            "choose an earlier checkpoint, or train again with a lower train.lr"
        )
    rows, n_heads, queries, keys = weights.shape
    chosen = slice(None) if head is None else slice(head - 1, head)
    visible = weights.new_ones(1, 1, dtype=torch.bool) if mask is None else mask[:, 0]
    heads = tuple(range(1, n_heads + 1))[chosen]
    visible = visible.expand(rows, queries, keys)
    return AttentionWeights(part, layer, heads, weights[:, chosen], visible)


# Rules ----------------------------------------------------------------------------------------


def measure(model: Seq2Seq, batches: Iterable[Batch], choice: Choice = ALL) -> list[HeadReport]:
    """Fit the rules to every chosen head, over all queries of some batches."""
    tallies: dict[tuple[Part, int], Tally] = {}
    for batch in batches:
        for attention in attend(model, batch, choice):
            place, tally = (attention.part, attention.layer), count(attention, batch)
            tallies[place] = tallies[place] + tally if place in tallies else tally
    return [head for tally in tallies.values() for head in tally.result()]


@dataclass(frozen=True)
class Tally:
    """Sums over the queries that counted, for H heads of one attention and R rules.

    right: (H, R), queries whose largest weight is on the named key.
    weight: (H, R), the weight on that key.
    chance: (R,), how many would be right if keys were picked at random.
    """

    part: Part
    layer: int
    heads: tuple[int, ...]
    queries: int
    right: Tensor
    weight: Tensor
    chance: Tensor

    def __add__(self, other: "Tally") -> "Tally":
        return replace(
            self,
            queries=self.queries + other.queries,
            right=self.right + other.right,
            weight=self.weight + other.weight,
            chance=self.chance + other.chance,
        )

    def result(self) -> Iterator[HeadReport]:
        """Sums divided, once."""
        total = max(self.queries, 1)
        columns = zip(self.heads, self.right.tolist(), self.weight.tolist(), strict=True)
        for head, rights, weights in columns:
            rules = zip(RULES[self.part], rights, weights, self.chance.tolist(), strict=True)
            fits = [
                Fit(
                    rule,
                    right / total,
                    *wilson_interval(right, self.queries),
                    weight / total,
                    chance / total,
                )
                for rule, right, weight, chance in rules
            ]
            fits.sort(key=lambda fit: (-fit.share, -fit.weight))
            yield HeadReport(self.part, self.layer, head, self.queries, tuple(fits))


def count(attention: AttentionWeights, batch: Batch) -> Tally:
    """Compare the weights of one attention on a batch with every rule of its part."""
    named, counted = named_keys(attention.part, batch)  # (R, B, Tq), (B, Tq)
    visible, weights = attention.visible, attention.weights
    choices = visible.sum(-1)
    counted = counted & (choices > 1)
    keys = named.clamp(min=0)[..., None]  # (R, B, Tq, 1)
    valid = (named >= 0) & visible.expand(len(named), -1, -1, -1).gather(-1, keys)[..., 0]
    valid &= counted
    most = weights.topk(min(2, weights.shape[-1]), -1)
    clear = most.values[..., 0] > most.values[..., -1] * (1 + TIED)  # (B, H, Tq)
    largest = most.indices[..., 0].where(clear, -1)
    right, summed = [], []
    for key, here in zip(keys, valid[:, :, None], strict=True):  # (B, Tq, 1), (B, 1, Tq)
        right.append(((largest == key[:, None, :, 0]) & here).sum((0, 2)))
        there = weights.double().gather(-1, key[:, None].expand(*largest.shape, 1))[..., 0]
        summed.append((there * here).sum((0, 2)))
    return Tally(
        attention.part,
        attention.layer,
        attention.heads,
        int(counted.sum()),
        torch.stack(right, 1).cpu(),
        torch.stack(summed, 1).cpu(),
        (valid / choices.clamp(min=1).double()).sum((1, 2)).cpu(),
    )


def named_keys(part: Part, batch: Batch) -> tuple[Tensor, Tensor]:
    """The index of the key that each rule names for each query, and the queries that count.

    Shapes: (R, B, Tq), with -1 for no key, and (B, Tq) bool.
    """
    queries, keys = axes(part, batch)
    symbols = (keys >= FIRST_SYMBOL_ID).sum(1, keepdim=True)  # (B, 1)
    bos = (keys[:, :1] == BOS_ID).long()  # (B, 1): the index of place 1
    index = torch.arange(queries.shape[1], device=queries.device)
    t = index + 1 - (0 if part == "cross" else bos)  # (1 or B, Tq)
    last = symbols if part == "decoder" else symbols + 1  # tgt_in has no EOS
    first = 1 - bos  # places first .. last have a key
    mirror = symbols + 1 - t
    places = {
        "itself": t,
        "same place": t.where(t <= symbols, -1),
        "mirror place": mirror.where(t <= symbols, -1),
        "before mirror": mirror - 1,
        "after mirror": mirror + 1,
        "previous": t - 1,
        "next": t + 1,
        "first": first,
        "end": symbols + 1,
    }
    named = []
    for rule in RULES[part]:
        place = places[rule]
        inside = (place >= first) & (place <= last)
        named.append((place - first).where(inside, -1).expand(queries.shape))
    return torch.stack(named), queries >= FIRST_SYMBOL_ID
