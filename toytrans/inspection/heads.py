"""What each attention head looks at in a translation, and the simple rule that it follows.

Rules are measured on pairs with their true targets as decoder input. A rule names one key for each
query, by places. The symbols of a sequence have places 1 to n, BOS has place 0 and EOS has place
n + 1. A query counts if its token is a symbol of the source (encoder), of tgt_in (decoder), or of
tgt_out (cross: the symbol that the decoder predicts), and if it sees more than one key.

    share     the share of the queries whose largest weight is on the key of the rule
    weight    the mean weight on that key
    chance    the share if every query picked one of its visible keys at random

Share and weight are zero for queries whose rule names no visible key. All rules are measured on the
same queries. Two rules may name the same key for some queries: the middle symbol is its own mirror.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

from toytrans.data.batches import Batch, evaluation_batches, make_batch
from toytrans.data.open import open_dataset
from toytrans.data.pairs import Pairs
from toytrans.errors import UserError
from toytrans.evaluation import BATCH_TOKENS
from toytrans.html import STYLE, beside_html
from toytrans.inspection.panels import CLOSED
from toytrans.inspection.record import Part, capture
from toytrans.inspection.shown import batch_of_run, translated
from toytrans.model.seq2seq import Seq2Seq
from toytrans.scores import wilson_interval
from toytrans.table import Cell, Table
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID
from toytrans.training.run import Run

RULES: dict[Part, tuple[str, ...]] = {
    "encoder": ("itself", "mirror place", "previous", "next", "first", "end"),
    "decoder": ("itself", "previous", "next", "first"),
    "cross": (
        *("same place", "mirror place", "previous", "next"),
        *("before mirror", "after mirror", "first", "end"),
    ),
}
"""The rules of each part; `named_keys` defines their places. In a decoder, "next" needs a broken
mask."""

NO_RULE = "no rule"
TIED = 1e-4
"""Two weights are tied if they differ by less than this share: the difference may be rounding."""

CANDIDATES = 200
"""Validation pairs on which rules are measured, and among which those to show are chosen."""


class Choice(NamedTuple):
    """Which attentions to show. Layers and heads count from 1; None selects all."""

    part: Part | None = None
    layer: int | None = None
    head: int | None = None


ALL = Choice()


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
        """The rule that fits the head best."""
        return self.fits[0]

    @property
    def label(self) -> str:
        """The best rule if it holds, with all rules that the data cannot tell from it."""
        if not self.best.holds:
            return NO_RULE
        return " or ".join(fit.rule for fit in self.fits if fit.share == self.best.share)

    @property
    def title(self) -> str:
        """The head, its label, and the share if the rule holds."""
        share = f" {self.best.share:.2f}" if self.best.holds else ""
        return f"{self.part} layer {self.layer} head {self.head}: {self.label}{share}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        head = {"part": self.part, "layer": self.layer, "head": self.head, "label": self.label}
        return head | {"queries": self.queries, "rules": [asdict(fit) for fit in self.fits]}


def axes(part: Part, batch: Batch) -> tuple[Tensor, Tensor]:
    """Ids of a part's queries (B, Tq) and keys (B, Tk). Cross queries are what they predict."""
    if part == "encoder":
        return batch.src, batch.src
    if part == "decoder":
        return batch.tgt_in, batch.tgt_in
    return batch.tgt_out, batch.src


def attend(model: Seq2Seq, batch: Batch, choice: Choice = ALL) -> list[Head]:
    """Every chosen head, from one forward pass. Raises UserError, also if there is none."""
    found, calls = [], capture(model, batch)
    for (part, layer), call in calls.items():
        if choice.part not in (None, part) or choice.layer not in (None, layer):
            continue
        weights, mask = call.intermediates().weights, call.context.mask  # (B, H, Tq, Tk)
        visible = torch.ones_like(weights[:, 0]).bool()
        visible = visible if mask is None else mask[:, 0].expand_as(visible)
        for number, each in enumerate(weights.unbind(1), 1):
            if choice.head in (None, number):
                found.append(Head(part, layer, number, each, visible))
    if not found:
        wanted = ", ".join(f"{k} {v}" for k, v in choice._asdict().items() if v is not None)
        depths = ", ".join(f"{part} {depth}" for part, depth in dict(calls.keys()).items())
        heads = model.settings.n_heads
        raise UserError(f"{wanted}: no such layer or head; layers: {depths}; heads: 1 to {heads}")
    return found


# Rules ----------------------------------------------------------------------------------------


def measure(attended: Iterable[tuple[list[Head], Batch]]) -> list[HeadReport]:
    """Fit the rules to every head, over all queries of some batches."""
    sums: dict[tuple[Part, int, int], Tensor] = {}
    for heads, batch in attended:
        named = {part: named_keys(part, batch) for part in {head.part for head in heads}}
        for head in heads:
            found = _sums(head, *named[head.part])
            sums[head[:3]] = sums[head[:3]] + found if head[:3] in sums else found
    reports = []
    for (part, layer, number), found in sums.items():
        queries, fits = int(found[0, 0]), []
        for rule, (_, hits, weight, chance) in zip(RULES[part], found.T.tolist(), strict=True):
            share, weight, chance = (each / max(queries, 1) for each in (hits, weight, chance))
            interval = wilson_interval(int(hits), queries)
            fits.append(Fit(rule, share, *interval, weight, chance))
        fits.sort(key=lambda fit: (-fit.share, -fit.weight))
        reports.append(HeadReport(part, layer, number, queries, tuple(fits)))
    return reports


def _sums(head: Head, named: Tensor, counted: Tensor) -> Tensor:
    """(4, R): for each rule the queries that count, the hits, and the sums of weights and chances.

    named: (B, Tq, R), the keys that rules name. counted: (B, Tq) bool.
    """
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
    found = torch.stack((torch.ones_like(weights), hits, weights, chances))
    return found[:, counted].sum(1).cpu()


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
    mirror, named = symbols + 1 - t, []
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
            real = [i for i, query in enumerate(queries) if query != PAD_ID]
            lines = zip(head.weights[row, real].tolist(), head.visible[row, real], strict=True)
            cells = [
                [x if seen else None for x, seen in zip(line, open_, strict=True)]
                for line, open_ in lines
            ]
            yield HeadMap(report, [name(queries[i]) for i in real], [*map(name, keys)], cells)

    def text(self, row: int) -> str:
        """A source and its translation."""
        src, tgt_out = self.batch.src[row].tolist(), self.batch.tgt_out[row].tolist()
        decode = self.run.vocabulary.decode  # it stops at EOS and leaves BOS out
        text = "  ->  ".join(" ".join(decode(ids)) for ids in (src, tgt_out))
        return text if EOS_ID in tgt_out else f"{text}  (cut off: it did not end)"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; ids and weights include pads."""
        return {
            "run": str(self.run.path),
            "step": self.run.step,
            "checkpoint": self.run.which_step,
            **{name: ids.tolist() for name, ids in self.batch.named().items()},
            "fault": self.run.settings.fault,
            "measured_on": self.basis,
            "heads": [
                report.to_dict() | {"weights": head.weights.tolist()}
                for report, head in zip(self.heads, self.shown, strict=True)
            ],
        }

    def __repr__(self) -> str:
        title = f"attention of {self.run.title}; rules measured on {self.basis}"
        return "\n  ".join([title, *(head.title for head in self.heads)])

    def _repr_html_(self) -> str:
        """The weights of each head below its rule: blue for 1, white for 0."""
        title, name = f"{self.run.title}; rules measured on {self.basis}", self.run.vocabulary.name
        return STYLE + Markup("").join(
            beside_html(
                f"Attention of {title}; pair {row + 1}: queries down, keys across",
                map(_table_of_head, self.of_pair(row, name)),
            )
            for row in range(len(self.batch.src))
        )


def _table_of_head(shown: HeadMap) -> Table:
    rows: list[list[str]] = []
    for query, line in zip(shown.queries, shown.weights, strict=True):
        cells = [query]
        for key, weight in zip(shown.keys, line, strict=True):
            if weight is None:
                cells.append(Cell(CLOSED, says=f"{query} -> {key}: masked"))
                continue
            light = round(255 - 180 * weight)
            says = f"{query} -> {key}: {weight:.4f}"
            colour = f"rgb({light}, {light}, 255)"
            cells.append(Cell(f"{weight:.2f}", says=says, colour=colour))
        rows.append(cells)
    return Table(shown.head.title, ["", *shown.keys], rows, kind="mask")


def maps_of(
    run: Run,
    sequences: Sequence[str] = (),
    targets: Sequence[str] | None = None,
    choice: Choice = ALL,
) -> AttentionMaps:
    """The attention in translations of some sequences, or of a few validation pairs; the rules are
    measured on validation pairs. Raises UserError.

    targets: decoder inputs in place of the translations.
    """
    valid = validation_pairs(run, CANDIDATES)
    if sequences:
        batch = batch_of_run(run, sequences, targets or ()).batch
    else:
        src = make_batch(few(valid), run.settings.model.source_bos).src
        batch = translated(run.model, src, run.facts.target_growth)
    return _maps(run, batch, choice, valid)


def maps_of_batch(run: Run, batch: Batch, choice: Choice = ALL) -> AttentionMaps:
    """The same for a batch that is there already."""
    return _maps(run, batch, choice, validation_pairs(run, CANDIDATES))


def _maps(run: Run, batch: Batch, choice: Choice, valid: Pairs) -> AttentionMaps:
    heads = attend(run.model, batch, choice)
    longest = run.model.settings.max_length
    batches = evaluation_batches(valid, BATCH_TOKENS, run.settings.model.source_bos, longest)
    reports = measure((attend(run.model, each, choice), each) for each, _ in batches)
    return AttentionMaps(run, batch, heads, reports, f"{len(valid)} validation pairs")


def validation_pairs(run: Run, count: int) -> Pairs:
    """At most `count` pairs, spread evenly over the run's validation data. Raises UserError."""
    dataset = open_dataset(run.settings, run.facts)
    size = dataset.size("valid")
    assert size is not None, "valid is never endless"
    chosen = min(count, size)
    return dataset.pairs("valid", torch.arange(chosen) * size // chosen)


def few(pairs: Pairs, lengths: tuple[int, ...] = (6, 4)) -> Pairs:
    """For each length the first pair whose source is nearest to it, without repetition."""
    rows = [int((pairs.src_length - length).abs().argmin()) for length in lengths]
    return pairs.take(torch.tensor(list(dict.fromkeys(rows))))
