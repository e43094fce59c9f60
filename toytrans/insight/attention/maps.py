"""Maps of attention: sources, their greedy translations, every head's weights and what it does."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toytrans.data.batches import Batch, evaluation_batches, make_batch
from toytrans.data.open import open_dataset
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.evaluation import BATCH_TOKENS
from toytrans.html import Cell, html_beside, html_table
from toytrans.insight.attention.heads import (
    ALL,
    AttentionWeights,
    Choice,
    HeadReport,
    attend,
    axes,
    measure,
)
from toytrans.insight.inspected import batch_of_run
from toytrans.insight.tables import CLOSED
from toytrans.model.decoding import greedy
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, SPECIALS
from toytrans.training.run import Run

CANDIDATES = 200
"""Validation pairs among which those to show are chosen."""

MOST_CELLS = 20_000
"""Cells of all maps in a notebook; more are left out."""


@dataclass(frozen=True, repr=False)
class AttentionMaps:
    """A run's translations of a batch, their attention weights, and what each head does.

    basis: the pairs on which the rules were measured, in words.
    """

    run: Run
    batch: Batch
    attentions: list[AttentionWeights]
    heads: list[HeadReport]
    basis: str

    def maps(self) -> Iterator[tuple[HeadReport, AttentionWeights, Tensor]]:
        """Each head, its attention, and its weights (B, Tq, Tk)."""
        by_place = {(each.part, each.layer): each for each in self.attentions}
        for head in self.heads:
            attention = by_place[head.part, head.layer]
            yield head, attention, attention.weights[:, attention.heads.index(head.head)]

    def largest_on_a_pad(self) -> float | None:
        """The largest weight that a real query puts on a pad; None in a batch without pads."""
        largest = []
        for head, _, weights in self.maps():
            queries, keys = axes(head.part, self.batch)
            cells = (queries != PAD_ID)[:, :, None] & (keys == PAD_ID)[:, None]
            largest += [float(weights[cells].max())] if bool(cells.any()) else []
        return max(largest, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; ids and weights include pads."""
        return {
            "run": str(self.run.path),
            "checkpoint": self.run.step,
            **{name: ids.tolist() for name, ids in self.batch.named().items()},
            "fault": self.run.config.fault,
            "measured_on": self.basis,
            "heads": [head.to_dict() | {"weights": w.tolist()} for head, _, w in self.maps()],
        }

    def __repr__(self) -> str:
        lines = [f"attention of {self.run.title}; rules measured on {self.basis}"]
        lines += [f"  {_name(head)}: {_rule(head)}" for head in self.heads]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        columns = ("rule", "share", "weight", "chance")
        rows = [
            (_name(head), [head.label, *(f"{x:.2f}" for x in (fit.share, fit.weight, fit.chance))])
            for head in self.heads
            for fit in [head.best]
        ]
        title = f"Attention of {self.run.title}; rules measured on {self.basis}"
        table, cells = html_table(title, columns, rows), sum(w.numel() for *_, w in self.maps())
        if cells > MOST_CELLS:
            left_out = f"{cells:,} weights are not shown; choose a part, a layer or a head"
            return html_beside(left_out, [table])
        return table + "".join(map(self._pair_html, range(len(self.batch.src))))

    def _pair_html(self, row: int) -> str:
        """The maps of one pair: queries down, keys across."""
        maps = [
            _map_html(head, *self._tokens(head, row), weights[row], attention.visible[row])
            for head, attention, weights in self.maps()
        ]
        return html_beside(f"pair {row + 1}: queries down, keys across", maps)

    def _tokens(self, head: HeadReport, row: int) -> tuple[list[str], list[str]]:
        """Queries and keys of one pair as text."""
        name, (queries, keys) = self.run.vocabulary.name, axes(head.part, self.batch)
        return [name(i) for i in queries[row].tolist()], [name(i) for i in keys[row].tolist()]


def _name(head: HeadReport) -> str:
    return f"{head.part} layer {head.layer} head {head.head}"


def _rule(head: HeadReport) -> str:
    return f"{head.label} {head.best.share:.2f}" if head.best.holds else head.label


def _map_html(
    head: HeadReport, queries: list[str], keys: list[str], weights: Tensor, visible: Tensor
) -> str:
    """One head on one pair: weights and visible (Tq, Tk). Rows of pads are left out."""
    rows = []
    lines = zip(queries, weights.tolist(), visible.tolist(), strict=True)
    for query, values, allowed in lines:
        cells = [
            Cell(f"{value:.2f}", f"{query} -> {key}: {value:.4f}", _shade(value))
            if seen
            else Cell(CLOSED, f"{query} -> {key}: masked")
            for key, value, seen in zip(keys, values, allowed, strict=True)
        ]
        rows += [(query, cells)] if query != SPECIALS[PAD_ID] else []
    return html_table(f"{_name(head)}: {_rule(head)}", keys, rows)


def _shade(weight: float) -> str:
    """Blue for 1, white for 0."""
    light = round(255 - 180 * weight)
    return f"rgb({light}, {light}, 255)"


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
    attentions = attend(run.model, batch, choice)
    measured = _followed(batches_of(run, valid), len(valid), follow) if valid else [batch]
    reports = measure(run.model, measured, choice)
    basis = f"the {shown} shown ({len(batch.src)})"
    basis = f"{len(valid)} validation pairs" if valid else basis
    return AttentionMaps(run, batch, attentions, reports, basis)


def _followed(
    batches: Iterable[Batch], total: int, follow: Callable[[str], None] | None
) -> Iterator[Batch]:
    done = 0
    for batch in batches:
        if follow is not None:
            follow(f"measuring heads, {done} of {total} pairs")
        yield batch
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


def batches_of(run: Run, pairs: Pairs) -> Iterator[Batch]:
    """Pairs in batches of similar length."""
    source_bos, longest = run.config.source_bos, run.model.config.max_length
    for batch, _ in evaluation_batches(pairs, BATCH_TOKENS, source_bos, longest):
        yield batch


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
