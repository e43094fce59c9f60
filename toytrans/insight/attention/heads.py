"""What each attention head does: the weights of a translation, and how well simple rules fit them.

The weights of every attention come from one pass over sources and targets, kept by hooks as in
`panel`. What is shown are a source and what the run says to it by greedy search; what is measured
are validation pairs, their true targets read as in training.

A rule names one key for a query, by places: 1 .. n are the symbols in their order, 0 is BOS and
n + 1 EOS, so a source reads the same with BOS before it and without. Which queries count, and what
a query's place t is:

    encoder   the symbols of the source; t is the place of the symbol
    decoder   the symbols read, so not BOS; t is the place of the symbol read
    cross     the symbols said, so not EOS; t is the place of the symbol that is being said, which
              the decoder says having read symbol t - 1

Pads never count, nor do queries that see a single key, which have no choice.

A rule's *share* is the share of these queries whose largest weight is on the key it names. Its
*weight* is the mean weight there, its confidence; both are zero for queries where it names nothing
that is seen. Its *chance* is the share it would have if every query picked one of the keys it sees
at random. All rules are measured on the same queries. Two rules may name one key for some of them
(the middle symbol is its own mirror): their shares over many pairs tell them apart.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from toytrans.data import open_source
from toytrans.data.batches import Batch, evaluation_batches
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.errors import UserError
from toytrans.evaluation import BATCH_TOKENS, wilson_interval
from toytrans.insight.tables import Pass
from toytrans.model.attention import Attention
from toytrans.model.decoding import greedy
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID
from toytrans.training.run import Run

Part = Literal["encoder", "decoder", "cross"]
PARTS: tuple[Part, ...] = get_args(Part)

NEAR = ("previous", "next")
BESIDE = ("before mirror", "after mirror")
ENDS = ("first", "end")
RULES: dict[Part, tuple[str, ...]] = {
    "encoder": ("itself", "mirror place", *NEAR, *ENDS),
    "decoder": ("itself", *NEAR, "first"),
    "cross": ("same place", "mirror place", *NEAR, *BESIDE, *ENDS),
}
"""The rules of each part. Itself and same place: t; previous and next: t - 1 and t + 1, and in a
decoder only a broken mask opens the next; mirror: n + 1 - t, before and after it n - t and
n + 2 - t; first: the first key, BOS where there is one; end: EOS."""

NO_RULE = "no rule"
TIED = 1e-4
"""A largest weight that exceeds the second by less than this share of it is none: rounding."""


class Choice(NamedTuple):
    """Which attentions are asked for; layers and heads count from 1, None = all."""

    part: Part | None = None
    layer: int | None = None
    head: int | None = None

    def check(self, model: Transformer) -> None:
        """Raises UserError where the model has no such layer or head."""
        encoder, decoder = model.config.n_encoder_layers, model.config.n_decoder_layers
        depths = {"encoder": encoder, "decoder": decoder, "cross": decoder}
        wanted = {part: depth for part, depth in depths.items() if self.part in (None, part)}
        if self.layer is not None and self.layer > max(wanted.values()):
            has = ", ".join(f"{part} {depth}" for part, depth in wanted.items())
            raise UserError(f"--layer {self.layer}: no such layer; layers there are: {has}")
        if self.head is not None and self.head > model.config.n_heads:
            heads = model.config.n_heads
            raise UserError(f"--head {self.head}: no such head; give 1 to {heads}")


ALL = Choice()


@dataclass(frozen=True)
class Seen:
    """What one attention looked at. weights (B, H, Tq, Tk), zero at closed keys; heads: their H
    numbers; visible (B, Tq, Tk) bool: what its mask leaves open."""

    part: Part
    layer: int
    heads: tuple[int, ...]
    weights: Tensor
    visible: Tensor


@dataclass(frozen=True)
class Fit:
    """How well one rule fits one head; low and high: the 95% Wilson interval of the share."""

    rule: str
    share: float
    low: float
    high: float
    weight: float
    chance: float

    @property
    def holds(self) -> bool:
        """Whether the whole interval lies above the middle between chance and always."""
        return self.low > (1 + self.chance) / 2


@dataclass(frozen=True)
class Head:
    """One head, the number of queries that counted, and its part's rules, the best first."""

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
        """The best rule if it holds; all of the best where the data cannot tell them apart."""
        if not self.best.holds:
            return NO_RULE
        return " or ".join(fit.rule for fit in self.fits if fit.share == self.best.share)

    def document(self) -> dict[str, Any]:
        """Everything as plain values."""
        head = {"part": self.part, "layer": self.layer, "head": self.head, "label": self.label}
        return head | {"queries": self.queries, "rules": [asdict(fit) for fit in self.fits]}


# Pairs ----------------------------------------------------------------------------------------


def validation_pairs(run: Run, count: int) -> Pairs:
    """At most `count` pairs, spread evenly over the run's validation data. Raises UserError."""
    source = open_source(run.config, run.facts)
    size = source.size("valid")
    assert size is not None, "valid is never endless"
    chosen = min(count, size)
    return source.pairs("valid", torch.arange(chosen) * size // chosen)


def batches_of(run: Run, pairs: Pairs) -> Iterator[Batch]:
    """Pairs in batches of like length."""
    source_bos, longest = run.config.source_bos, run.model.longest
    for batch, _ in evaluation_batches(pairs, BATCH_TOKENS, source_bos, longest):
        yield batch


def sources_of(run: Run, sequences: list[str]) -> Pairs:
    """Sequences such as "5 7 9", without targets. Raises UnseenSymbol."""
    rows = [run.vocabulary.encode(sequence.split()) for sequence in sequences]
    return Pairs(*pad_rows(rows), *pad_rows([[]] * len(rows)))


def few(pairs: Pairs, lengths: tuple[int, ...] = (6, 4)) -> Pairs:
    """For each length the first pair whose source comes nearest to it, none of them twice."""
    rows = [int((pairs.src_length - length).abs().argmin()) for length in lengths]
    return pairs.take(torch.tensor(list(dict.fromkeys(rows))))


def axes(part: Part, batch: Batch) -> tuple[Tensor, Tensor]:
    """Ids of a part's queries (B, Tq) and keys (B, Tk); of cross queries those that they say."""
    src, tgt_in, tgt_out = batch
    if part == "encoder":
        return src, src
    return (tgt_in, tgt_in) if part == "decoder" else (tgt_out, src)


@torch.no_grad()
def translated(model: Transformer, src: Tensor, growth: int) -> Batch:
    """Source ids (B, S) with what greedy search says to them; a row of tgt_out without EOS was
    cut off at the limit (see `decoding`)."""
    said = greedy(model, src, growth).tokens
    start = said.new_full((len(said), 1), BOS_ID)
    read = torch.cat((start, said[:, :-1].masked_fill(said[:, :-1] == EOS_ID, PAD_ID)), 1)
    return Batch(src, read.masked_fill(said == PAD_ID, PAD_ID), said)


# Weights --------------------------------------------------------------------------------------


@torch.no_grad()
def attend(model: Transformer, batch: Batch, choice: Choice = ALL) -> list[Seen]:
    """The weights of every attention that is asked for, in one pass of the model over a batch."""
    modules: dict[Part, list[Attention]] = {
        "encoder": [layer.self_attention for layer in model.encoder_stack()],
        "decoder": [layer.self_attention for layer in model.decoder_stack()],
        "cross": [layer.cross_attention for layer in model.decoder_stack()],
    }
    passes: dict[Part, list[Pass]] = {part: [] for part in PARTS if choice.part in (None, part)}

    def keeping(part: Part) -> Callable[..., None]:
        def keep(module: Attention, args: Any, kwargs: Any) -> None:
            given = inspect.signature(Attention.forward).bind(module, *args, **kwargs).arguments
            # shared layers pass here once a layer
            passes[part].append(Pass(module, given["x"], given["sight"], given.get("memory")))

        return keep

    hooks = [
        module.register_forward_pre_hook(keeping(part), with_kwargs=True)
        for part in passes
        for module in dict.fromkeys(modules[part])
    ]
    try:
        model(batch.src, batch.tgt_in)
    finally:
        for hook in hooks:
            hook.remove()
    return [
        _seen(part, layer, choice.head, one)
        for part, found in passes.items()
        for layer, one in enumerate(found, 1)
        if choice.layer in (None, layer)
    ]


def _seen(part: Part, layer: int, head: int | None, one: Pass) -> Seen:
    weights = one.intermediates().weights
    if not bool(weights.isfinite().all()):
        raise UserError(
            f"{part} layer {layer}: weights that are no numbers, so the model has diverged; "
            "choose an earlier --checkpoint, or train again with a lower train.lr"
        )
    rows, n_heads, queries, keys = weights.shape
    chosen = slice(None) if head is None else slice(head - 1, head)
    mask = one.sight.mask
    visible = weights.new_ones(1, 1, dtype=torch.bool) if mask is None else mask[:, 0]
    heads = tuple(range(1, n_heads + 1))[chosen]
    return Seen(part, layer, heads, weights[:, chosen], visible.expand(rows, queries, keys))


# Rules ----------------------------------------------------------------------------------------


def measure(model: Transformer, batches: Iterable[Batch], choice: Choice = ALL) -> list[Head]:
    """Fit the rules to every head that is asked for, over all queries of some batches."""
    tallies: dict[tuple[Part, int], Tally] = {}
    for batch in batches:
        for seen in attend(model, batch, choice):
            place, tally = (seen.part, seen.layer), count(seen, batch)
            tallies[place] = tallies[place] + tally if place in tallies else tally
    return [head for tally in tallies.values() for head in tally.result()]


@dataclass(frozen=True)
class Tally:
    """Sums over the queries that counted, for H heads of one attention and R rules.

    right (H, R): queries whose largest weight is on the named key; weight (H, R) there, summed;
    chance (R,): of keys picked at random, the number that would be right. All on the host.
    """

    part: Part
    layer: int
    heads: tuple[int, ...]
    queries: int
    right: Tensor
    weight: Tensor
    chance: Tensor

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.part,
            self.layer,
            self.heads,
            self.queries + other.queries,
            self.right + other.right,
            self.weight + other.weight,
            self.chance + other.chance,
        )

    def result(self) -> Iterator[Head]:
        """Sums divided, once."""
        total, chances = max(self.queries, 1), self.chance.tolist()
        columns = zip(self.heads, self.right.tolist(), self.weight.tolist(), strict=True)
        for head, rights, weights in columns:
            fits = [
                Fit(rule, right / total, *wilson_interval(right, self.queries), weight / total, by)
                for rule, right, weight, by in zip(
                    RULES[self.part], rights, weights, (c / total for c in chances), strict=True
                )
            ]
            fits.sort(key=lambda fit: (-fit.share, -fit.weight))
            yield Head(self.part, self.layer, head, self.queries, tuple(fits))


def count(seen: Seen, batch: Batch) -> Tally:
    """Hold the weights of one attention on a batch against every rule of its part."""
    named, counted = named_keys(seen.part, batch)  # (R, B, Tq), (B, Tq)
    choices = seen.visible.sum(-1)
    counted = counted & (choices > 1)
    keys = named.clamp(min=0)[..., None]  # (R, B, Tq, 1)
    valid = (named >= 0) & seen.visible.expand(len(named), -1, -1, -1).gather(-1, keys)[..., 0]
    valid &= counted
    most = seen.weights.topk(min(2, seen.weights.shape[-1]), -1)
    clear = most.values[..., 0] > most.values[..., -1] * (1 + TIED)  # (B, H, Tq)
    largest = most.indices[..., 0].where(clear, -1)
    rights, weights = [], []
    for key, here in zip(keys, valid[:, :, None], strict=True):  # (B, Tq, 1), (B, 1, Tq)
        rights.append(((largest == key[:, None, :, 0]) & here).sum((0, 2)))
        there = seen.weights.double().gather(-1, key[:, None].expand(*largest.shape, 1))[..., 0]
        weights.append((there * here).sum((0, 2)))
    return Tally(
        seen.part,
        seen.layer,
        seen.heads,
        int(counted.sum()),
        torch.stack(rights, 1).cpu(),
        torch.stack(weights, 1).cpu(),
        (valid / choices.clamp(min=1).double()).sum((1, 2)).cpu(),
    )


def named_keys(part: Part, batch: Batch) -> tuple[Tensor, Tensor]:
    """The key that each rule of a part names for each query, (R, B, Tq), -1 for none; and the
    queries that count, (B, Tq) bool, as the head of this file has them."""
    queries, keys = axes(part, batch)
    symbols = (keys >= FIRST_SYMBOL_ID).sum(1, keepdim=True)  # (B, 1)
    bos = (keys[:, :1] == BOS_ID).long()  # (B, 1): the index of place 1
    there = torch.arange(queries.shape[1], device=queries.device)
    t = there + 1 - (0 if part == "cross" else bos)  # (1 or B, Tq)
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
