"""The parts of a page about an inspected batch: its masks, and the tables of `inspect-masks`."""

from collections.abc import Sequence
from typing import Any

from toytrans.inspection.shown import ATTENTIONS, InspectedBatch
from toytrans.inspection.table import CLOSED, Table
from toytrans.report.page import Block, Cell, Grid, Section


def masks(inspected: InspectedBatch) -> Section:
    """The three masks of every pair of a batch: a cell says its query, its key, and why it is
    closed."""
    blocks = []
    for pair in range(len(inspected.batch.src)):
        grids = [_tokens(inspected, pair)]
        for name, title in ATTENTIONS.items():
            queries, keys = inspected.tokens(name, pair)
            rows = [
                [query, *(_marked_cell(*cell) for cell in line)]
                for query, line in zip(queries, inspected.cells(name, pair), strict=True)
            ]
            grids.append(Grid(["", *keys], rows, "mask", title))
        blocks.append(Block(grids, f"Pair {pair + 1}"))
    text = (
        "Queries down, keys across. Point at a cell, or move with the arrow keys, to read why it "
        "is open or closed. Below each label stands whether the loss counts it: 1 counts, a pad "
        f"({CLOSED}) is ignored. Model: {inspected.weights}."
    )
    return Section("masks", "Masks", text=text, blocks=blocks)


def _tokens(inspected: InspectedBatch, pair: int) -> Grid:
    """The tokens of a pair, and the labels that the loss counts."""
    rows: list[list[Any]] = []
    for name, ids in inspected.batch.named().items():
        rows.append([name, *inspected.names(ids[pair])])
    rows.append(["loss", *map(_marked_cell, inspected.loss_marks(pair))])
    width = max(map(len, rows))
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    return Grid(["", *map(str, range(width - 1))], rows, "mask", "Batch")


def tables(name: str, title: str, given: Sequence[Table]) -> Section:
    """Tables of `inspect-masks` and `trace`."""
    blocks = []
    for each in given:
        made = _marked_cell if each.marks else str
        rows = [[label, *map(made, cells)] for label, cells in each.rows]
        kind = "mask" if each.marks else "labelled data tokens"
        grids = [Grid(["", *each.columns], rows, kind)] if each.columns else []
        above = list(filter(None, (each.shape, each.legend)))
        blocks.append(Block(grids, f"{each.number} {each.name}", above, each.notes))
    return Section(name, title, blocks=blocks)


def _marked_cell(mark: str, says: str = "") -> Cell:
    """A cell of a mask."""
    looks = {"1": "open", CLOSED: "closed", "x": "wrong", "!": "wrong", "?": "wrong"}
    return Cell(mark, looks.get(mark, "reason"), says)
