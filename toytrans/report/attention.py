"""Attention maps of some pairs, at every checkpoint of a run."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from toytrans.data.batches import Batch, make_batch
from toytrans.errors import UserError
from toytrans.inspection import heads
from toytrans.inspection.heads import AttentionMaps, few, validation_pairs
from toytrans.tokens import Vocabulary
from toytrans.training.run import Run

MOST_CELLS = 150_000
"""Cells of all maps of a page. Checkpoints are left out where there would be more."""

MEASURED_ON = 200
"""Validation pairs on which the rules of heads are measured."""


@dataclass(frozen=True)
class Maps:
    """What the page shows of attention.

    pairs: source and target as text.
    attentions: names such as "cross 2".
    steps: of the checkpoints, ascending.
    hidden: how many checkpoints are left out.
    rows: one for each pair, attention, head and checkpoint, with flat weights (Tq Tk).
    """

    pairs: list[str]
    attentions: list[str]
    steps: list[int]
    hidden: int
    rows: list[dict[str, Any]]


def of_validation(run: Run) -> AttentionMaps:
    """Two validation pairs, the decoder reading the true target. Raises UserError."""
    valid = validation_pairs(run, MEASURED_ON)
    batch = make_batch(few(valid), run.config.source_bos)
    reports = heads.measure(heads.attended(run, valid))
    basis = f"{len(valid)} validation pairs"
    return AttentionMaps(run, batch, heads.attend(run.model, batch), reports, basis)


def at_every_checkpoint(maps: AttentionMaps) -> Maps:
    """The same maps at every checkpoint of the run."""
    run, batch = maps.run, maps.batch
    labels = {(each.part, each.layer, each.head): each.label for each in maps.heads}
    steps = sorted({run.step, *run.folder.steps})
    cells = sum(each.weights.numel() for each in maps.attentions)
    kept = _spread(steps, MOST_CELLS // max(1, cells))
    rows = []
    for number, step in enumerate(kept):
        attentions = maps.attentions if step == run.step else _at(maps, step)
        rows += list(_rows(attentions, batch, run.vocabulary, number, labels))
    decode = run.vocabulary.decode
    pairs = zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    return Maps(
        [f"{' '.join(decode(src))} → {' '.join(decode(tgt))}" for src, tgt in pairs],
        [_name(each) for each in maps.attentions],
        kept,
        len(steps) - len(kept),
        rows,
    )


def _at(maps: AttentionMaps, step: int) -> list[heads.AttentionWeights]:
    """The weights at another checkpoint; none if a training has just removed it."""
    try:
        model = maps.run.folder.load(str(step), "cpu").model
        shown = {(each.part, each.layer): each.heads for each in maps.attentions}
        return [
            each.only(shown[each.part, each.layer])
            for each in heads.attend(model, maps.batch)
            if (each.part, each.layer) in shown
        ]
    except UserError:
        return []


def _spread(steps: list[int], most: int) -> list[int]:
    """At most so many steps, the last among them."""
    most = max(1, most)
    if len(steps) <= most:
        return steps
    return [steps[-1 - k * (len(steps) - 1) // max(1, most - 1)] for k in reversed(range(most))]


def _name(attention: heads.AttentionWeights) -> str:
    return f"{attention.part} {attention.layer}"


def _rows(
    attentions: list[heads.AttentionWeights],
    batch: Batch,
    vocabulary: Vocabulary,
    checkpoint: int,
    labels: dict[tuple[Any, ...], str],
) -> Iterator[dict[str, Any]]:
    for attention in attentions:
        for pair, axes in enumerate(zip(*heads.axes(attention.part, batch), strict=True)):
            queries, keys = (_tokens(ids, vocabulary) for ids in axes)
            for number, head in enumerate(attention.heads):
                weights = attention.weights[pair, number].flatten().tolist()
                yield {
                    "pair": pair,
                    "attention": _name(attention),
                    "checkpoint": checkpoint,
                    "head": f"head {head}: {labels[attention.part, attention.layer, head]}",
                    "weight": [round(weight, 3) for weight in weights],
                    "query": [query for query in queries for _ in keys],
                    "key": keys * len(queries),
                }


def _tokens(ids: Tensor, vocabulary: Vocabulary) -> list[str]:
    """Place and token, so that equal tokens differ."""
    return [f"{place} {vocabulary.name(i)}" for place, i in enumerate(ids.tolist())]
