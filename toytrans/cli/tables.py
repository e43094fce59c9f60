"""Matrices on a terminal: tables beside each other, panels, a pager, and one step per key press."""

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

import typer
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from toytrans.cli.terminal import printable
from toytrans.errors import UserError, did_you_mean
from toytrans.inspection.table import CLOSED, Table
from toytrans.tokens import SPECIALS

GAP = "  "
NARROWEST = 36
"""The least width of a table that is printed beside another."""

STYLES = {"1": "bold", CLOSED: "dim", ".": "dim"}
STYLES |= dict.fromkeys("?!x", "bold red") | dict.fromkeys("ptbq", "magenta")
"""Of the marks in the cells of masks."""

QUIT, BACK = ("q", "Q"), ("b", "B", "\x1b[D", "\x1bOD", "\xe0K")
"""Keys; the left arrow as terminals and as Windows send it."""

MARKS = ("_", "^", "$")
"""PAD, BOS and EOS on the axes of a map, unless a symbol is one of these."""

LONGEST = 8
"""Letters of a token on an axis."""

# Tables ---------------------------------------------------------------------------------------


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Print tables of one number side by side if the width allows, else below one another."""
    for _, group in groupby(tables, lambda table: table.number):
        waiting = [part for table in group for part in _parts(table, console.width)]
        while waiting:
            ends = accumulate(_width(table) + len(GAP) for table in waiting)
            fit = max(1, sum(end - len(GAP) <= console.width for end in ends))
            row, waiting = waiting[:fit], waiting[fit:]
            grid = Grid.grid()
            for table in row:
                grid.add_column(width=_width(table) if fit > 1 else console.width)
                grid.add_column(width=len(GAP) if table is not row[-1] else 0)
            for part in (_head, _cells, _notes):  # bodies begin in one line
                grid.add_row(*(cell for table in row for cell in (part(table), "")))
            console.print()
            console.print(grid)


def _parts(table: Table, width: int) -> Iterator[Table]:
    """The table, or several with some of its columns, of a width at most."""
    left, *widths = _widths(table) or [0]
    start, stop = 0, 0
    while stop < len(widths):
        start, ends = stop, accumulate(wide + 1 for wide in widths[stop:])
        stop += max(1, sum(left + 2 + end <= width for end in ends))
        rows = [(label, cells[start:stop]) for label, cells in table.rows]
        part = replace(table, columns=table.columns[start:stop], rows=rows)
        if start:
            name = f"columns {start} to {stop - 1} of {len(widths)}, continued"
            part = replace(part, name=name, shape="", legend="")
        yield part if stop == len(widths) else replace(part, notes=())
    if not widths:
        yield table


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


def _title(table: Table) -> str:
    return printable(f"{table.number} {table.name}")


def _lines(table: Table) -> list[list[str]]:
    """The headings and the rows, each with its label first."""
    lines = [["", *table.columns], *([label, *cells] for label, cells in table.rows)]
    return [list(map(printable, line)) for line in lines] if table.columns else []


def _widths(table: Table) -> list[int]:
    """The widths of the labels and of all columns."""
    return [max(map(cell_len, column)) for column in zip(*_lines(table), strict=True)]


def _width(table: Table) -> int:
    matrix = sum(width + 1 for width in _widths(table)) + 1
    return max(matrix, cell_len(_title(table)), cell_len(table.shape) + 2, NARROWEST)


def _head(table: Table) -> Group:
    """Title, shape and legend."""
    below = [printable(text) for text in (table.shape, table.legend) if text]
    return Group(Text(_title(table), "bold"), *(_indented(Text(text, "dim")) for text in below))


def _cells(table: Table) -> RenderableType:
    grid, lines = Grid.grid(), _lines(table)
    for _ in lines and lines[0]:
        grid.add_column(justify="right", no_wrap=True)
    for number, (label, *cells) in enumerate(lines):
        styles = STYLES if table.marks and number else {}
        shown = (Text.assemble(" ", (cell, styles.get(cell, ""))) for cell in cells)
        grid.add_row(Text(label), *shown)
    return _indented(grid)


def _notes(table: Table) -> Group:
    styles = ("bold" if note.startswith("Trap:") else "" for note in table.notes)
    notes = map(Text, map(printable, table.notes), styles)
    return Group(*map(_indented, notes))


def _indented(what: RenderableType) -> Padding:
    return Padding(what, (0, 0, 0, 2))


# Panels ---------------------------------------------------------------------------------------


def print_panels(
    console: Console, tables: Iterable[Table], panel: str | None, one_screen: Sequence[Table] = ()
) -> None:
    """Print the tables that are asked for, in a pager where they are longer than the terminal.

    panel: a number, a part of a title, or all. one_screen: printed where no panel is asked for,
    with a line that names the panels. Raises UserError for an unknown panel.
    """
    tables = list(tables)
    if panel is None and one_screen:
        print_tables(console, one_screen)
        print_names(console, tables)
        return
    with paged(console):
        print_tables(console, tables if panel in (None, "all") else _chosen(tables, panel))


def print_names(console: Console, tables: Iterable[Table]) -> None:
    """Print the names of the panels, and how to ask for them."""
    text = f"Panels: {', '.join(_names(tables))}. --panel NAME shows one, --panel all every one."
    console.print(Text(), Text(text, "dim"), sep="\n")


def _chosen(tables: list[Table], panel: str) -> list[Table]:
    """The tables of a number, or whose title has a text in it; the name of a run does not count."""
    titles = [_title(table).partition(", weights of ")[0].casefold() for table in tables]
    chosen = [table for table in tables if table.number == panel] or [
        table for table, title in zip(tables, titles, strict=True) if panel.casefold() in title
    ]
    if not chosen:
        raise UserError(f"--panel {panel}: no such panel; {did_you_mean(panel, _names(tables))}")
    return chosen


def _names(tables: Iterable[Table]) -> list[str]:
    """Each number with the start of its first title."""
    names: dict[str, str] = {}
    for table in tables:
        names.setdefault(table.number, re.split("[,:]", _title(table))[0])
    return list(names.values())


@contextlib.contextmanager
def paged(console: Console) -> Iterator[None]:
    """Send what is printed through the pager, if a person can use it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    # short output stays on the screen, colours are kept, the last line names keys
    os.environ.setdefault("LESS", "FRXPsspace shows more, q quits")
    with console.pager(styles=True):
        yield


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


def print_beside(console: Console, blocks: Sequence[Text]) -> None:
    """Print blocks of lines from left to right, in as many rows as they need."""
    widest = max(cell_len(line) for block in blocks for line in block.plain.split("\n"))
    if widest > console.width:
        console.print(*blocks, sep="\n", soft_wrap=True)
    else:
        console.print(Columns(blocks, padding=(0, len(GAP))))
