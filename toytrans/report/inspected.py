"""The parts of a page about an inspected batch: its masks, and the tables of `inspect-masks`."""

from collections.abc import Sequence

from toytrans.html import beside_html, table_html
from toytrans.inspection.panels import CLOSED, mark
from toytrans.inspection.shown import ATTENTIONS, InspectedBatch
from toytrans.report.page import Section
from toytrans.table import Table


def masks(inspected: InspectedBatch) -> Section:
    """The three masks of every pair of a batch: a cell says its query, its key, and why it is
    closed."""
    blocks = []
    for pair in range(len(inspected.batch.src)):
        maps = [inspected.table(name, pair) for name in ATTENTIONS]
        blocks.append(beside_html(f"Pair {pair + 1}", [_tokens(inspected, pair), *maps]))
    text = (
        "Queries down, keys across. Point at a cell, or move with the arrow keys, to read why it "
        "is open or closed. Below each label stands whether the loss counts it: 1 counts, a pad "
        f"({CLOSED}) is ignored. Model: {inspected.weights}."
    )
    return Section("masks", "Masks", text, blocks=blocks)


def _tokens(inspected: InspectedBatch, pair: int) -> Table:
    """The tokens of a pair, and the labels that the loss counts."""
    rows = [[name, *inspected.names(ids[pair])] for name, ids in inspected.batch.named().items()]
    rows.append(["loss", *map(mark, inspected.loss_marks(pair))])
    width = max(map(len, rows))
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    return Table("Batch", ["", *map(str, range(width - 1))], rows, kind="mask")


def tables(name: str, title: str, given: Sequence[Table]) -> Section:
    """Tables of `inspect-masks` and `trace`."""
    return Section(name, title, blocks=list(map(table_html, given)))
