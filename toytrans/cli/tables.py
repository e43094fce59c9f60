"""Matrices on a terminal: tables beside each other, panels, a pager, and one step per key press."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from textwrap import wrap

import typer
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console
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
        waiting = list(group)
        while waiting:
            ends = accumulate(_width(table) + len(GAP) for table in waiting)
            fit_in = max(1, sum(end - len(GAP) <= console.width for end in ends))
            row, waiting = waiting[:fit_in], waiting[fit_in:]
            console.print()
            if fit_in == 1:
                lines = [*_head(row[0], console.width), *_body(row[0], console.width)]
                console.print(*lines, sep="\n", soft_wrap=True)
                continue
            grid = Grid.grid(padding=(0, len(GAP), 0, 0))
            for part in (_head, _body):  # bodies begin in one line
                grid.add_row(*(Text("\n").join(part(table, _width(table))) for table in row))
            console.print(grid, no_wrap=True)


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


def _texts(table: Table) -> tuple[list[list[str]], list[int]]:
    """The headings and the rows, each with its label first, and the widths of all columns."""
    lines = [["", *table.columns], *([label, *cells] for label, cells in table.rows)]
    lines = [list(map(printable, line)) for line in lines]
    return lines, [max(map(cell_len, column)) for column in zip(*lines, strict=True)]


def _title(table: Table) -> str:
    return printable(f"{table.number} {table.name}")


def _width(table: Table) -> int:
    """The width of a table if no column is folded."""
    _, widths = _texts(table)
    columns = sum(width + 1 for width in widths) + 1
    return max(columns, cell_len(_title(table)), cell_len(table.shape) + 2, NARROWEST)


def _wrapped(text: str, width: int) -> list[str]:
    """Text as lines of at most `width`, but never narrower than 20."""
    return wrap(printable(text), max(20, width), break_on_hyphens=False)


def _head(table: Table, width: int) -> list[Text]:
    """Title, shape and legend, at most `width` wide."""
    lines = [Text(line, "bold") for line in _wrapped(_title(table), width)]
    below = (*_wrapped(table.shape, width - 2), *_wrapped(table.legend, width - 2))
    return lines + [Text(f"  {line}", "dim") for line in below]


def _body(table: Table, width: int) -> Iterator[Text]:
    """The rows, and the notes, wrapped. Columns that do not fit follow below; summaries stay with
    the last of them."""
    lines, (left, *widths) = _texts(table)
    count = sum(not column.startswith("|") for column in table.columns)
    room = width - left - 2 - sum(wide + 1 for wide in widths[count:])
    start = 0
    while start < count:
        ends = accumulate(wide + 1 for wide in widths[start:count])
        stop = start + max(1, sum(end <= room for end in ends))
        if start:
            yield Text(f"  columns {start} to {stop - 1} of {count}, continued:", "dim")
        part = slice(start, stop if stop < count else None)
        for number, (label, *cells) in enumerate(lines):
            line = Text(" " * (left + 2 - cell_len(label)) + label)
            for cell, wide in zip(cells[part], widths[part], strict=True):
                line.append(" " * (1 + wide - cell_len(cell)))
                line.append(cell, STYLES.get(cell, "") if table.marks and number else "")
            line.rstrip()
            yield line
        start = stop
    for note in table.notes:
        style = "bold" if note.startswith("Trap:") else ""
        yield from (Text(f"  {line}", style) for line in _wrapped(note, width - 2))


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
    """The tables of a number, or of a name in the list, or whose title has a text in it.

    The name of the run in a title is not searched.
    """
    titles = [table.name.partition(", weights of ")[0].casefold() for table in tables]
    chosen = [table for table in tables if panel in (table.number, _label(table))]
    wanted = panel.casefold()
    chosen = chosen or [t for t, title in zip(tables, titles, strict=True) if wanted in title]
    if not chosen:
        raise UserError(f"--panel {panel}: no such panel; {did_you_mean(panel, _names(tables))}")
    return chosen


def _names(tables: Iterable[Table]) -> list[str]:
    """Each number with the start of its first title."""
    names: dict[str, str] = {}
    for table in tables:
        names.setdefault(table.number, _label(table))
    return list(names.values())


def _label(table: Table) -> str:
    return f"{table.number} {table.name.partition(',')[0].partition(':')[0]}"


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
