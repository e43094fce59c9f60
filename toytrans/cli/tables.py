"""Matrices on a terminal: tables beside each other, panels, and one step per key press."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

import typer
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from toytrans.cli.terminal import drawn_cell, output, plain, printable
from toytrans.errors import UserError, did_you_mean
from toytrans.table import Table
from toytrans.tokens import SPECIALS

GAP = "  "
NARROWEST = 36
"""The least width of a table that is printed beside another."""

QUIT, BACK = ("q", "Q"), ("b", "B", "\x1b[D", "\x1bOD", "\xe0K")
"""Keys; the left arrow as terminals and as Windows send it."""

MARKS = ("_", "^", "$")
"""PAD, BOS and EOS on the axes of a map, unless a symbol is one of these."""

LONGEST = 8
"""Letters of a token on an axis."""

# Tables ---------------------------------------------------------------------------------------


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables of one panel side by side if the width allows, else below one another."""
    console = output()
    for _, group in groupby(tables, lambda table: table.panel):
        waiting = [part for table in group for part in _parts(table, console.width)]
        while waiting:
            ends = accumulate(_width(table) + len(GAP) for table in waiting)
            fit = max(1, sum(end - len(GAP) <= console.width for end in ends))
            row, waiting = waiting[:fit], waiting[fit:]
            grid = Grid.grid()
            for table in row:
                grid.add_column(width=_width(table) if fit > 1 else console.width)
                grid.add_column(width=len(GAP) if table is not row[-1] else 0)
            for parts in zip(*map(_drawn, row), strict=True):  # all cells begin in one line
                grid.add_row(*(cell for part in parts for cell in (part, "")))
            console.print()
            console.print(grid)


def _parts(table: Table, width: int) -> Iterator[Table]:
    """The table, or several with some of its columns, of a width at most."""
    left, *widths = _widths(table) or [0]
    start, stop = 0, 0
    while stop < len(widths):
        start, ends = stop, accumulate(wide + 1 for wide in widths[stop:])
        stop += max(1, sum(left + 2 + end <= width for end in ends))
        rows = [[row[0], *row[start + 1 : stop + 1]] for row in table.rows]
        part = replace(table, columns=["", *table.headings[start + 1 : stop + 1]], rows=rows)
        if start:
            title = f"columns {start} to {stop - 1} of {len(widths)}, continued"
            part = replace(part, title=title, above=())
        yield part if stop == len(widths) else replace(part, notes=())
    if not widths:
        yield table


def _widths(table: Table) -> list[int]:
    """The widths of the labels and of all columns."""
    columns = zip(table.headings, *table.rows, strict=True) if table.columns else ()
    return [max(cell_len(printable(cell)) for cell in column) for column in columns]


def _width(table: Table) -> int:
    cells = sum(width + 1 for width in _widths(table)) + 1
    shape = cell_len(table.above[0]) + 2 if table.above else 0
    return max(cells, cell_len(printable(table.heading)), shape, NARROWEST)


def _drawn(table: Table) -> tuple[RenderableType, RenderableType, RenderableType]:
    """What stands above the cells, the cells, and the notes."""
    above = [plain(text, "dim") for text in table.above if text]
    notes = [plain(note, "bold" * note.startswith("Trap:")) for note in table.notes]
    cells = Grid(box=None, padding=(0, 0, 0, 1), header_style="")
    for column in table.headings:
        cells.add_column(plain(column), justify="right", no_wrap=True)
    for row in table.rows:
        cells.add_row(*map(drawn_cell, row))
    head = plain(table.heading, "bold"), Padding(Group(*above), (0, 0, 0, 2))
    return Group(*head), Padding(cells, (0, 0, 0, 1)), Padding(Group(*notes), (0, 0, 0, 2))


def step_through(tables: Iterable[Table]) -> None:
    """Print the tables of one panel per key press on a terminal, otherwise all at once.

    b and the left arrow go back; q and Ctrl-D quit; Ctrl-C quits with exit code 130.
    """
    waits = sys.stdin.isatty() and sys.stdout.isatty()
    steps = [list(group) for _, group in groupby(tables, lambda table: table.panel)]
    step = 0
    while step < len(steps):
        print_tables(steps[step])
        step += 1
        if waits and step < len(steps):
            output().print("[dim]any key: next step; b: back; q: quit[/dim]")
            try:
                key = typer.getchar()
            except EOFError:
                return
            if key in QUIT:
                return
            if key in BACK:
                step = max(step - 2, 0)


# Panels ---------------------------------------------------------------------------------------


def print_panels(tables: Iterable[Table], panel: str) -> None:
    """Print the tables of a panel, or whose title has a text in it, apart from the name of a run;
    or all. Raises UserError for an unknown panel."""
    tables = list(tables)
    titles = [table.heading.partition(", weights of ")[0].casefold() for table in tables]
    chosen = [table for table in tables if panel in ("all", table.panel)] or [
        table for table, title in zip(tables, titles, strict=True) if panel.casefold() in title
    ]
    if not chosen:
        raise UserError(f"--panel {panel}: no such panel; {did_you_mean(panel, _names(tables))}")
    print_tables(chosen)


def print_names(tables: Iterable[Table], *more: str) -> None:
    """Print the names of the panels, and how to ask for them. more: panels that are no tables."""
    names = ", ".join([*_names(tables), *more])
    text = f"Panels: {names}. --panel NAME shows one, --panel all every one."
    output().print(Text(), Text(text, "dim"), sep="\n")


def _names(tables: Iterable[Table]) -> list[str]:
    """Each panel with the start of its first title."""
    names: dict[str, str] = {}
    for table in tables:
        names.setdefault(table.panel, re.split("[,:]", printable(table.heading))[0])
    return list(names.values())


# Maps: one or two columns a cell --------------------------------------------------------------


def axis_names(symbols: Sequence[str]) -> list[str]:
    """The names of all ids on an axis. A long one lacks its middle: names mostly differ at an
    end."""
    half = LONGEST // 2
    names = list(map(printable, symbols))
    cut = [x if len(x) <= LONGEST else f"{x[:half]}~{x[1 - half :]}" for x in names]
    return [*(SPECIALS if set(MARKS) & set(symbols) else MARKS), *cut]


def map_of(
    titles: Sequence[Text],
    queries: Sequence[str],
    keys: Sequence[str],
    cells: Sequence[Sequence[tuple[str, str]]],
    width: int,
) -> Text:
    """A line for each query, and the keys upright above. cells: text of that width, and style."""
    left, tallest = max(map(cell_len, queries)) + 1, max(map(len, keys))
    lines = list(titles)
    for letters in zip(*(key.rjust(tallest) for key in keys), strict=True):
        heads = (letter + " " * (width - cell_len(letter)) for letter in letters)
        lines.append(Text(" " * left + "".join(heads)))
    for query, row in zip(queries, cells, strict=True):
        lines.append(Text.assemble(" " * (left - 1 - cell_len(query)), query, " ", *row))
    return Text("\n", no_wrap=True).join(lines)


def print_beside(blocks: Sequence[Text]) -> None:
    """Print blocks of lines from left to right, in as many rows as they need."""
    console = output()
    widest = max(cell_len(line) for block in blocks for line in block.plain.split("\n"))
    if widest > console.width:
        console.print(*blocks, sep="\n", soft_wrap=True)
    else:
        console.print(Columns(blocks, padding=(0, len(GAP))))
