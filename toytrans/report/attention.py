"""Attention maps of some pairs, at every checkpoint of a run."""

from collections.abc import Iterator
from itertools import groupby

from toytrans.errors import UserError
from toytrans.inspection import heads
from toytrans.inspection.heads import AttentionMaps
from toytrans.report.page import Block, Cell, Grid

MOST_CELLS = 30_000
"""Cells of all maps of a page. Checkpoints are left out where there would be more."""


def steps_of(maps: AttentionMaps) -> tuple[list[int], int]:
    """The checkpoints whose maps are shown, ascending, and how many are left out."""
    steps = sorted({maps.run.step, *maps.run.steps})
    cells = sum(each.weights.numel() for each in maps.shown)
    most = min(len(steps), max(1, MOST_CELLS // max(1, cells)))
    gaps = max(1, most - 1)
    kept = [steps[-1 - k * (len(steps) - 1) // gaps] for k in reversed(range(most))]
    return kept, len(steps) - most


def at_step(maps: AttentionMaps, step: int) -> Iterator[Block]:
    """The same maps at a checkpoint of the run, a block for each attention and pair; none if a
    training has just removed it."""
    batch, vocabulary, shown = maps.batch, maps.run.vocabulary, maps.shown
    if step != maps.run.step:
        try:
            model = maps.run.load(str(step), "cpu").model
        except UserError:
            return
        wanted = {each[:3] for each in shown}
        shown = [each for each in heads.attend(model, batch) if each[:3] in wanted]
    rules = {(each.part, each.layer, each.head): each.label for each in maps.heads}
    pairs = [
        " \u2192 ".join(
            " ".join(vocabulary.decode(ids[pair].tolist())) for ids in (batch.src, batch.tgt_out)
        )
        for pair in range(len(batch.src))
    ]
    for (part, layer), group in groupby(shown, lambda head: (head.part, head.layer)):
        name, of_layer = f"{part} {layer}", list(group)
        for pair, axes in enumerate(zip(*heads.axes(part, batch), strict=True)):
            queries, keys = ([vocabulary.name(i) for i in ids.tolist()] for ids in axes)
            grids = []
            for head in of_layer:
                rows = [
                    [query, *(_cell(query, *each) for each in zip(keys, row, strict=True))]
                    for query, row in zip(queries, head.weights[pair].tolist(), strict=True)
                ]
                rule = f"head {head.number}: {rules[part, layer, head.number]}"
                grids.append(Grid(["", *keys], rows, "mask heat", rule))
            choice = {"pair": pairs[pair], "attention": name, "checkpoint": f"step {step}"}
            yield Block(grids, f"{name}, step {step}", choice=choice)


def _cell(query: str, key: str, weight: float) -> Cell:
    return Cell("", f"w{round(10 * weight)}", f"query {query}, key {key}: {weight:.3f}")
