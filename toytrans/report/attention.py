"""Attention maps of some pairs, at every checkpoint of a run."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from toytrans.data.batches import make_batch
from toytrans.errors import UserError
from toytrans.inspection import heads
from toytrans.inspection.heads import AttentionMaps, few, validation_pairs
from toytrans.inspection.record import Part
from toytrans.report.page import Block, Cell, Grid
from toytrans.training.run import Run

MOST_CELLS = 30_000
"""Cells of all maps of a page. Checkpoints are left out where there would be more."""

MEASURED_ON = 200
"""Validation pairs on which the rules of heads are measured."""


class Maps(NamedTuple):
    """What the page shows of attention.

    steps: of the checkpoints, ascending.
    hidden: how many checkpoints are left out.
    blocks: one for each checkpoint, attention and pair, with a map of each head.
    """

    steps: list[int]
    hidden: int
    blocks: list[Block]


def of_validation(run: Run) -> AttentionMaps:
    """Two validation pairs, the decoder reading the true target. Raises UserError."""
    valid = validation_pairs(run, MEASURED_ON)
    batch = make_batch(few(valid), run.config.source_bos)
    reports = heads.measure(heads.attended(run, valid))
    basis = f"{len(valid)} validation pairs"
    return AttentionMaps(run, batch, heads.attend(run.model, batch), reports, basis)


def at_every_checkpoint(maps: AttentionMaps) -> Maps:
    """The same maps at every checkpoint of the run."""
    run = maps.run
    steps = sorted({run.step, *run.folder.steps})
    cells = sum(each.weights.numel() for each in maps.shown)
    kept = _spread(steps, max(1, MOST_CELLS // max(1, cells)))
    blocks: list[Block] = []
    for step in kept:
        shown = maps.shown if step == run.step else _at(maps, step)
        for (part, layer), group in groupby(shown, lambda head: (head.part, head.layer)):
            blocks += _blocks(maps, part, layer, list(group), step)
    return Maps(kept, len(steps) - len(kept), blocks)


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


def _blocks(
    maps: AttentionMaps, part: Part, layer: int, shown: list[heads.Head], step: int
) -> Iterator[Block]:
    """The maps of one attention at one checkpoint, a block for each pair."""
    batch, vocabulary = maps.batch, maps.run.vocabulary
    name = f"{part} {layer}"
    rules = {(each.part, each.layer, each.head): each.label for each in maps.heads}
    for pair, axes in enumerate(zip(*heads.axes(part, batch), strict=True)):
        queries, keys = ([vocabulary.name(i) for i in ids.tolist()] for ids in axes)
        grids = []
        for head in shown:
            weights = head.weights[pair].tolist()
            rows = [
                [query, *(_cell(query, key, value) for key, value in zip(keys, row, strict=True))]
                for query, row in zip(queries, weights, strict=True)
            ]
            rule = f"head {head.number}: {rules[part, layer, head.number]}"
            grids.append(Grid(["", *keys], rows, "mask heat", rule))
        src, tgt = (
            " ".join(vocabulary.decode(ids[pair].tolist())) for ids in (batch.src, batch.tgt_out)
        )
        choice = {"pair": f"{src} \u2192 {tgt}", "attention": name, "checkpoint": f"step {step}"}
        yield Block(grids, f"{name}, step {step}", choice=choice)


def _cell(query: str, key: str, weight: float) -> Cell:
    return Cell("", f"w{round(10 * weight)}", f"query {query}, key {key}: {weight:.3f}")
