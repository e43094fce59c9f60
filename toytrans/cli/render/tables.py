"""Tables on a terminal, and one step per key press."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from textwrap import wrap

import rich.table
import typer
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from toytrans.cli.common import printable
from toytrans.inspection.table import CLOSED, Table

GAP = "  "
NARROWEST = 36
"""The least width of a table that is printed beside another."""

STYLES = {
    "1": "bold",
    CLOSED: "dim",
    ".": "dim",
    "?": "bold red",
    "!": "bold red",
    "x": "bold red",
} | dict.fromkeys("ptbq", "magenta")


def wrapped(text: str, width: int) -> list[str]:
    """Text as lines of at most `width`, but never narrower than 20."""
    return wrap(text, max(20, width), break_on_hyphens=False)


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Print tables of one number side by side if the width allows, else below one another."""
    for _, group in groupby(map(_printable, tables), lambda table: table.number):
        waiting = list(group)
        while waiting:
            ends = accumulate(_width(table) + len(GAP) for table in waiting)
            fit_in = max(1, sum(end - len(GAP) <= console.width for end in ends))
            row, waiting = waiting[:fit_in], waiting[fit_in:]
            console.print()
            if fit_in == 1:
                for line in (*_head(row[0], console.width), *_body(row[0], console.width)):
                    console.print(line, soft_wrap=True)
                continue
            grid = rich.table.Table.grid(padding=(0, len(GAP), 0, 0))
            for lines in (_head, _body):  # bodies begin in one line
                grid.add_row(*(Text("\n").join(lines(table, _width(table))) for table in row))
            console.print(grid, no_wrap=True)


def print_beside(console: Console, blocks: Sequence[Text]) -> None:
    """Print blocks of lines from left to right, in as many rows as they need."""
    widest = max(cell_len(line) for block in blocks for line in block.plain.split("\n"))
    if widest > console.width:
        for block in blocks:
            console.print(block, soft_wrap=True)
    else:
        console.print(Columns(blocks, padding=(0, len(GAP))))


QUIT, BACK = ("q", "Q"), ("b", "B", "\x1b[D", "\x1bOD", "\xe0K")
"""Keys; the left arrow as terminals and as Windows send it."""


def step_through(console: Console, tables: Iterable[Table]) -> None:
    """Print the tables of one number per key press on a terminal, otherwise all at once.

    b and the left arrow go back; q and Ctrl-D quit; Ctrl-C quits with exit code 130.
    """
    waits = sys.stdin.isatty() and sys.stdout.isatty()
    steps = [list(group) for _, group in groupby(tables, lambda table: table.number)]
    step = 0
    while step < len(steps):
        print_tables(console, steps[step])
        step += 1
        if waits and step < len(steps):
            console.print("[dim]any key: next step; b: back; q: quit[/dim]")
            try:
                key = typer.getchar()
            except EOFError:
                return
            if key in QUIT:
                return
            if key in BACK:
                step = max(step - 2, 0)


def _printable(table: Table) -> Table:
    """A table whose texts are each on one line."""
    return replace(
        table,
        name=printable(table.name),
        shape=printable(table.shape),
        legend=printable(table.legend),
        notes=tuple(map(printable, table.notes)),
        columns=list(map(printable, table.columns)),
        rows=[(printable(label), list(map(printable, cells))) for label, cells in table.rows],
    )


def _widths(table: Table) -> tuple[int, list[int]]:
    """The widths of the labels and of each column."""
    lines = [table.columns, *(cells for _, cells in table.rows)]
    left = max((cell_len(label) for label, _ in table.rows), default=0) + 2
    return left, [max(map(cell_len, column)) for column in zip(*lines, strict=True)]


def _width(table: Table) -> int:
    """The width of a table if no column is folded."""
    left, widths = _widths(table)
    columns = left + sum(widths) + len(widths)
    return max(columns, cell_len(_title(table)), cell_len(table.shape) + 2, NARROWEST)


def _title(table: Table) -> str:
    return f"{table.number} {table.name}"


def _head(table: Table, width: int) -> list[Text]:
    """Title, shape and legend, at most `width` wide."""
    below = (*wrapped(table.shape, width - 2), *wrapped(table.legend, width - 2))
    lines = [Text(line, "bold") for line in wrapped(_title(table), width)]
    return lines + [Text(f"  {line}", "dim") for line in below]


def _body(table: Table, width: int) -> Iterator[Text]:
    """The cells, folded, and the notes, wrapped."""
    if table.columns:
        yield from _cells(table, width)
    for note in table.notes:
        style = "bold" if note.startswith("Trap:") else ""
        for line in wrapped(note, width - 2):
            yield Text(f"  {line}", style)


def _cells(table: Table, width: int) -> Iterator[Text]:
    """The rows. Columns that do not fit follow below; summaries stay with the last of them."""
    left, widths = _widths(table)
    count = sum(not column.startswith("|") for column in table.columns)
    room = width - left - sum(wide + 1 for wide in widths[count:])
    start = 0
    while start < count:
        ends = accumulate(wide + 1 for wide in widths[start:count])
        stop = start + max(1, sum(end <= room for end in ends))
        if start:
            yield Text(f"  columns {start} to {stop - 1} of {count}, continued:", "dim")
        part = slice(start, stop if stop < count else None)
        for label, cells in (("", table.columns), *table.rows):
            line = Text(" " * (left - cell_len(label)) + label)
            for cell, wide in zip(cells[part], widths[part], strict=True):
                line.append(" " * (1 + wide - cell_len(cell)))
                is_mark = table.marks and cells is not table.columns
                line.append(cell, STYLES.get(cell, "") if is_mark else "")
            line.rstrip()
            yield line
        start = stop
