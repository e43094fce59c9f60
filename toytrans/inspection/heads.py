"""What each attention head looks at in a translation, and the simple rule that it follows.

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

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toytrans.data.batches import Batch, evaluation_batches, make_batch
from toytrans.data.open import open_dataset
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.errors import UserError
from toytrans.evaluation import BATCH_TOKENS, wilson_interval
from toytrans.html import Cell, html_beside, html_table
from toytrans.inspection.record import Part, capture
from toytrans.inspection.shown import MOST_CELLS, batch_of_run
from toytrans.inspection.table import CLOSED
from toytrans.model.build import as_transformer
from toytrans.model.decoding import greedy
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID
from toytrans.training.run import Run

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

CANDIDATES = 200
"""Validation pairs among which those to show are chosen."""


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


class Head(NamedTuple):
    """What one head does on a batch. Layers and heads count from 1.

    weights: (B, Tq, Tk), zero at masked keys.
    visible: (B, Tq, Tk) bool, the keys that its mask leaves visible.
    """

    part: Part
    layer: int
    number: int
    weights: Tensor
    visible: Tensor


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

    @property
    def name(self) -> str:
        return f"{self.part} layer {self.layer} head {self.head}"

    @property
    def rule(self) -> str:
        return f"{self.label} {self.best.share:.2f}" if self.best.holds else self.label

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


def attend(model: Seq2Seq, batch: Batch, choice: Choice = ALL) -> list[Head]:
    """Every chosen head, from one forward pass. Raises UserError."""
    found = []
    for (part, layer), call in capture(model, batch).items():
        if choice.part not in (None, part) or choice.layer not in (None, layer):
            continue
        weights, mask = call.intermediates().weights, call.context.mask  # (B, H, Tq, Tk)
        if not bool(weights.isfinite().all()):
            raise UserError(
                f"{part} layer {layer}: the weights are not finite, so the model has diverged; "
                "choose an earlier checkpoint, or train again with a lower train.lr"
            )
        visible = torch.ones_like(weights[:, 0], dtype=torch.bool)
        visible = visible if mask is None else mask[:, 0].expand_as(visible)
        for number, each in enumerate(weights.unbind(1), 1):
            if choice.head in (None, number):
                found.append(Head(part, layer, number, each, visible))
    return found


# Rules ----------------------------------------------------------------------------------------


class Queries(NamedTuple):
    """What one head does at the N queries that count, under R rules.

    hits: (N, R) bool, whether the largest weight is on the named key.
    weights: (N, R), the weight on that key; 0 where there is none.
    chances: (N, R), of a hit if a key were picked at random.
    """

    hits: Tensor
    weights: Tensor
    chances: Tensor


def measure(attended: Iterable[tuple[list[Head], Batch]]) -> list[HeadReport]:
    """Fit the rules to every head, over all queries of some batches."""
    found: dict[tuple[Part, int, int], list[Queries]] = {}
    for heads, batch in attended:
        named = {part: named_keys(part, batch) for part in {head.part for head in heads}}
        for head in heads:
            found.setdefault(head[:3], []).append(_queries(head, *named[head.part]))
    return [_report(*place, parts) for place, parts in found.items()]


def _report(part: Part, layer: int, number: int, parts: list[Queries]) -> HeadReport:
    hits, weights, chances = (torch.cat(each) for each in zip(*parts, strict=True))
    queries, fits = len(hits), []
    sums = (each.sum(0).tolist() for each in (hits, weights, chances))
    for rule, hit, weight, chance in zip(RULES[part], *sums, strict=True):
        share, weight, chance = (each / max(queries, 1) for each in (hit, weight, chance))
        fits.append(Fit(rule, share, *wilson_interval(hit, queries), weight, chance))
    fits.sort(key=lambda fit: (-fit.share, -fit.weight))
    return HeadReport(part, layer, number, queries, tuple(fits))


def _queries(head: Head, named: Tensor, counted: Tensor) -> Queries:
    """Compare a head with the keys that rules name (B, Tq, R). counted: (B, Tq) bool."""
    choices = head.visible.sum(-1, keepdim=True)
    counted = counted & (choices[..., 0] > 1)
    keys = named.clamp(min=0)
    valid = (named >= 0) & head.visible.gather(-1, keys)
    most = head.weights.topk(min(2, head.weights.shape[-1]), -1)
    clear = most.values[..., 0] > most.values[..., -1] * (1 + TIED)
    largest = most.indices[..., 0].where(clear, -1)
    hits = (largest[..., None] == keys) & valid
    weights = head.weights.double().gather(-1, keys) * valid
    chances = valid / choices.clamp(min=1).double()
    return Queries(*(each[counted].cpu() for each in (hits, weights, chances)))


def named_keys(part: Part, batch: Batch) -> tuple[Tensor, Tensor]:
    """The index of the key that each rule names for each query, and the queries that count.

    Shapes: (B, Tq, R), with -1 for no key, and (B, Tq) bool.
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
    return torch.stack(named, -1), queries >= FIRST_SYMBOL_ID


# Translations ---------------------------------------------------------------------------------


class HeadMap(NamedTuple):
    """One head on one pair. weights: a line for each query but pads; None where masked."""

    head: HeadReport
    queries: list[str]
    keys: list[str]
    weights: list[list[float | None]]


@dataclass(frozen=True, repr=False)
class AttentionMaps:
    """A run's translations of a batch, their attention weights, and what each head does.

    heads: what is said of each of `shown`, in the same order.
    basis: the pairs on which the rules were measured, in words.
    """

    run: Run
    batch: Batch
    shown: list[Head]
    heads: list[HeadReport]
    basis: str

    def of_pair(self, row: int, name: Callable[[int], str]) -> Iterator[HeadMap]:
        """Each head on one pair, with tokens named by `name`."""
        for report, head in zip(self.heads, self.shown, strict=True):
            queries, keys = (ids[row].tolist() for ids in axes(head.part, self.batch))
            closed = head.weights[row].masked_fill(~head.visible[row], torch.nan).tolist()
            cells = [
                [None if math.isnan(weight) else weight for weight in line]
                for query, line in zip(queries, closed, strict=True)
                if query != PAD_ID
            ]
            names = [name(query) for query in queries if query != PAD_ID]
            yield HeadMap(report, names, [*map(name, keys)], cells)

    def text(self, row: int) -> str:
        """A source and its translation."""
        src, tgt_out = self.batch.src[row].tolist(), self.batch.tgt_out[row].tolist()
        decode = self.run.vocabulary.decode  # it stops at EOS and leaves BOS out
        text = "  ->  ".join(" ".join(decode(ids)) for ids in (src, tgt_out))
        return text if EOS_ID in tgt_out else f"{text}  (cut off: it did not end)"

    def largest_on_a_pad(self) -> float | None:
        """The largest weight that a real query puts on a pad; None in a batch without pads."""
        largest = []
        for head in self.shown:
            queries, keys = axes(head.part, self.batch)
            cells = (queries != PAD_ID)[:, :, None] & (keys == PAD_ID)[:, None]
            largest += [float(head.weights[cells].max())] if bool(cells.any()) else []
        return max(largest, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; ids and weights include pads."""
        return {
            "run": str(self.run.path),
            "checkpoint": self.run.step,
            **{name: ids.tolist() for name, ids in self.batch.named().items()},
            "fault": self.run.config.fault,
            "measured_on": self.basis,
            "heads": [
                report.to_dict() | {"weights": head.weights.tolist()}
                for report, head in zip(self.heads, self.shown, strict=True)
            ],
        }

    def __repr__(self) -> str:
        lines = [f"attention of {self.run.title}; rules measured on {self.basis}"]
        lines += [f"  {head.name}: {head.rule}" for head in self.heads]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            (head.name, [head.label, *(f"{x:.2f}" for x in (best.share, best.weight, best.chance))])
            for head in self.heads
            for best in [head.best]
        ]
        title = f"Attention of {self.run.title}; rules measured on {self.basis}"
        table = html_table(title, ("rule", "share", "weight", "chance"), rows)
        cells = sum(head.weights.numel() for head in self.shown)
        if cells > MOST_CELLS:
            left_out = f"{cells:,} weights are not shown; choose a part, a layer or a head"
            return html_beside(left_out, [table])
        return table + "".join(
            html_beside(
                f"pair {row + 1}: queries down, keys across",
                map(_map_html, self.of_pair(row, self.run.vocabulary.name)),
            )
            for row in range(len(self.batch.src))
        )


def _map_html(shown: HeadMap) -> str:
    rows = [
        (
            query,
            [
                _cell(f"{query} -> {key}", *each)
                for key, *each in zip(shown.keys, line, strict=True)
            ],
        )
        for query, line in zip(shown.queries, shown.weights, strict=True)
    ]
    return html_table(f"{shown.head.name}: {shown.head.rule}", shown.keys, rows)


def _cell(hint: str, weight: float | None) -> Cell:
    """Blue for 1, white for 0."""
    if weight is None:
        return Cell(CLOSED, f"{hint}: masked")
    light = round(255 - 180 * weight)
    return Cell(f"{weight:.2f}", f"{hint}: {weight:.4f}", f"rgb({light}, {light}, 255)")


def maps_of(
    run: Run,
    sequences: Sequence[str],
    targets: Sequence[str] | None = None,
    choice: Choice = ALL,
    sample: int = CANDIDATES,
    most: int | None = None,
    follow: Callable[[str], None] | None = None,
) -> AttentionMaps:
    """The attention in translations of some sequences, or of a few validation pairs. Raises
    UserError.

    targets: decoder inputs in place of the translations. sample: validation pairs on which the
    rules are measured; 0 = the pairs shown. most: pairs that are shown. follow: called with what
    is being done.
    """
    choice.check(run.model)
    valid = validation_pairs(run, sample) if sample else None
    if targets is not None:
        batch, shown = batch_of_run(run, sequences, targets).batch, "pairs"
    else:
        src = _sources(run, sequences, valid)[:most]
        batch, shown = translated(run.model, src, run.facts.target_growth), "translations"
    heads = attend(run.model, batch, choice)
    if valid is None:
        basis = f"the {shown} shown ({len(batch.src)})"
        return AttentionMaps(run, batch, heads, measure([(heads, batch)]), basis)
    reports = measure(attended(run, valid, choice, follow))
    return AttentionMaps(run, batch, heads, reports, f"{len(valid)} validation pairs")


def attended(
    run: Run,
    pairs: Pairs,
    choice: Choice = ALL,
    follow: Callable[[str], None] | None = None,
) -> Iterator[tuple[list[Head], Batch]]:
    """Pairs in batches of similar length, each with the chosen heads."""
    done, longest = 0, run.model.config.max_length
    for batch, _ in evaluation_batches(pairs, BATCH_TOKENS, run.config.source_bos, longest):
        if follow is not None:
            follow(f"measuring heads, {done} of {len(pairs)} pairs")
        yield attend(run.model, batch, choice), batch
        done += len(batch.src)


def _sources(run: Run, sequences: Sequence[str], valid: Pairs | None) -> Tensor:
    """Ids (B, S) of sequences, or of a few validation pairs. Raises UnseenSymbol."""
    if sequences:
        rows = [run.vocabulary.encode(sequence.split()) for sequence in sequences]
        shown = Pairs(*pad_rows(rows), *pad_rows([[]] * len(rows)))
    else:
        shown = few(validation_pairs(run, CANDIDATES) if valid is None else valid)
    return make_batch(shown, run.config.source_bos).src


def validation_pairs(run: Run, count: int) -> Pairs:
    """At most `count` pairs, spread evenly over the run's validation data. Raises UserError."""
    dataset = open_dataset(run.config, run.facts)
    size = dataset.size("valid")
    assert size is not None, "valid is never endless"
    chosen = min(count, size)
    return dataset.pairs("valid", torch.arange(chosen) * size // chosen)


def few(pairs: Pairs, lengths: tuple[int, ...] = (6, 4)) -> Pairs:
    """For each length the first pair whose source is nearest to it, without repetition."""
    rows = [int((pairs.src_length - length).abs().argmin()) for length in lengths]
    return pairs.take(torch.tensor(list(dict.fromkeys(rows))))


@torch.no_grad()
def translated(model: Seq2Seq, src: Tensor, target_growth: int) -> Batch:
    """Source ids (B, S) with their greedy translations.

    A row of tgt_out without EOS was cut off at the limit of decoding.
    """
    tgt_out = greedy(model, src, target_growth).tokens
    start = tgt_out.new_full((len(tgt_out), 1), BOS_ID)
    tgt_in = torch.cat((start, tgt_out[:, :-1].masked_fill(tgt_out[:, :-1] == EOS_ID, PAD_ID)), 1)
    return Batch(src, tgt_in.masked_fill(tgt_out == PAD_ID, PAD_ID), tgt_out)
