"""Attention maps of some pairs, at every checkpoint of a run."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from toytrans.data.batches import make_batch
from toytrans.errors import UserError
from toytrans.inspection import heads
from toytrans.inspection.heads import AttentionMaps, few, validation_pairs
from toytrans.training.run import Run

MOST_CELLS = 150_000
"""Cells of all maps of a page. Checkpoints are left out where there would be more."""

MEASURED_ON = 200
"""Validation pairs on which the rules of heads are measured."""


class Maps(NamedTuple):
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
    steps = sorted({run.step, *run.folder.steps})
    cells = sum(each.weights.numel() for each in maps.shown)
    kept = _spread(steps, max(1, MOST_CELLS // max(1, cells)))
    rows = []
    for number, step in enumerate(kept):
        shown = maps.shown if step == run.step else _at(maps, step)
        rows += [row | {"checkpoint": number} for row in _rows(maps, shown)]
    decode = run.vocabulary.decode
    pairs = zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    return Maps(
        [f"{' '.join(decode(src))} → {' '.join(decode(tgt))}" for src, tgt in pairs],
        list(dict.fromkeys(map(_name, maps.shown))),
        kept,
        len(steps) - len(kept),
        rows,
    )


def _at(maps: AttentionMaps, step: int) -> list[heads.Head]:
    """The weights at another checkpoint; none if a training has just removed it."""
    try:
        model = maps.run.folder.load(str(step), "cpu").model
    except UserError:
        return []
    shown = {each[:3] for each in maps.shown}
    return [each for each in heads.attend(model, maps.batch) if each[:3] in shown]


def _spread(steps: list[int], most: int) -> list[int]:
    """At most so many steps, the last among them."""
    if len(steps) <= most:
        return steps
    return [steps[-1 - k * (len(steps) - 1) // max(1, most - 1)] for k in reversed(range(most))]


def _name(head: heads.Head) -> str:
    return f"{head.part} {head.layer}"


def _rows(maps: AttentionMaps, shown: list[heads.Head]) -> Iterator[dict[str, Any]]:
    """A row for each pair and head. A token has its place before it, so that equal ones differ."""
    token = maps.run.vocabulary.name
    rule = {(each.part, each.layer, each.head): each.label for each in maps.heads}
    for head in shown:
        for pair, axes in enumerate(zip(*heads.axes(head.part, maps.batch), strict=True)):
            queries, keys = (
                [f"{place} {token(i)}" for place, i in enumerate(ids.tolist())] for ids in axes
            )
            yield {
                "pair": pair,
                "attention": _name(head),
                "head": f"head {head.number}: {rule[head[:3]]}",
                "weight": [round(weight, 3) for weight in head.weights[pair].flatten().tolist()],
                "query": [query for query in queries for _ in keys],
                "key": keys * len(queries),
            }
