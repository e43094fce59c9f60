"""Tables on a terminal, in HTML, and one step per key press."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    "?": "bold red",
    "!": "bold red",
    "x": "bold red",
} | dict.fromkeys("ptbq", "magenta")


def has_unicode() -> bool:
    """Whether standard output accepts more than ASCII."""
    encoding = (sys.stdout.encoding or "").lower()
    return encoding.startswith("utf") and os.environ.get("TERM") != "dumb"


def fitting(text: str) -> str:
    """Text that standard output accepts; escaped if that is only ASCII."""
    if has_unicode():
        return text
    return text.replace(CLOSED, ".").encode("ascii", "backslashreplace").decode()


def wrapped(text: str, width: int) -> list[str]:
    """Text as lines of at most `width`, but never narrower than 20."""
    return wrap(text, max(20, width), break_on_hyphens=False)


def print_tables(
    console: Console, tables: Iterable[Table], fit: Callable[[str], str] = fitting
) -> None:
    """Print tables of one number side by side if the width allows, else below one another.

    fit: converts text to what the console accepts.
    """
    for _, group in groupby(tables, lambda table: table.number):
        blocks = [_Block(table, fit) for table in group]
        while blocks:
            ends = accumulate(block.width + len(GAP) for block in blocks)
            fit_in = max(1, sum(end - len(GAP) <= console.width for end in ends))
            row, blocks = blocks[:fit_in], blocks[fit_in:]
            console.print()
            if len(row) == 1:
                for line in (*row[0].head(console.width), *row[0].body(console.width)):
                    console.print(line, soft_wrap=True)
                continue
            grid = rich.table.Table.grid(padding=(0, len(GAP), 0, 0))
            grid.add_row(*(Text("\n").join(block.head(block.width)) for block in row))
            grid.add_row(*(Text("\n").join(block.body(block.width)) for block in row))
            console.print(grid, no_wrap=True)


def print_beside(console: Console, blocks: Sequence[Text]) -> None:
    """Print blocks of lines from left to right, in as many rows as they need."""
    widest = max(cell_len(line) for block in blocks for line in block.plain.split("\n"))
    if widest > console.width:
        for block in blocks:
            console.print(block, soft_wrap=True)
    else:
        console.print(Columns(blocks, padding=(0, len(GAP))))


def step_through(console: Console, tables: Iterable[Table]) -> None:
    """Print the tables of one number per key press on a terminal, otherwise all at once.

    b and the left arrow go back; q and Ctrl-D quit; Ctrl-C quits with exit code 130.
    """
    steps = [list(group) for _, group in groupby(tables, lambda table: table.number)]
    waits = sys.stdin.isatty() and sys.stdout.isatty()
    step = 0
    while step < len(steps):
        print_tables(console, steps[step])
        step += 1
        if waits and step < len(steps):
            key = _next_key(console)
            if key in QUIT:
                return
            if key in BACK:
                step = max(step - 2, 0)


QUIT = ("q", "Q", "\x1b")
BACK = ("b", "B", "\x1b[D", "\x1bOD", "\xe0K", "\x00K")
"""Keys; the left arrow as terminals and as Windows send it."""


def _next_key(console: Console) -> str:
    """Wait for a key; q at the end of the input."""
    prompt = "any key: next step; b: back; q: quit"
    console.print(f"[dim]{prompt}[/dim]", end="")
    try:
        key = typer.getchar()
    except EOFError:
        key = "q"
    except KeyboardInterrupt:
        print()
        raise typer.Exit(130) from None
    print("\r" + " " * len(prompt) + "\r", end="", flush=True)
    return key


class _Block:
    """One table as lines of text."""

    def __init__(self, table: Table, fit: Callable[[str], str]) -> None:
        self.table, self.fit = table, fit
        self.title = f"{table.number} {table.name}"
        self.columns = [fit(printable(column)) for column in table.columns]
        self.rows = [
            (fit(printable(label)), [fit(printable(cell)) for cell in cells])
            for label, cells in table.rows
        ]
        texts = [self.columns, *(cells for _, cells in self.rows)]
        self.widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        self.left = max((cell_len(label) for label, _ in self.rows), default=0) + 2

    @property
    def width(self) -> int:
        """The width of the table if no column is folded."""
        columns = self.left + sum(self.widths) + len(self.widths)
        return max(columns, cell_len(self.title), cell_len(self.table.shape) + 2, NARROWEST)

    def head(self, width: int) -> list[Text]:
        """Title, shape and legend, at most `width` wide."""
        title = [self._text(line, "bold") for line in wrapped(self.title, width)]
        below = (*wrapped(self.table.shape, width - 2), *wrapped(self.table.legend, width - 2))
        return title + [self._text(f"  {line}", "dim") for line in below]

    def body(self, width: int) -> list[Text]:
        """The cells, folded, and the notes, wrapped."""
        lines = list(self._cells(width)) if self.columns else []
        for note in self.table.notes:
            style = "bold" if note.startswith("Trap:") else ""
            lines += [self._text(f"  {line}", style) for line in wrapped(note, width - 2)]
        return lines

    def _cells(self, width: int) -> Iterator[Text]:
        """The rows. Columns that do not fit follow below; summaries stay with the last of them."""
        count = sum(not column.startswith("|") for column in self.columns)
        summaries = sum(self.widths[count:]) + len(self.widths[count:])
        start, room = 0, width - self.left - summaries
        while start < count:
            stop, used = start + 1, self.widths[start] + 1
            while stop < count and used + self.widths[stop] < room:
                used += self.widths[stop] + 1
                stop += 1
            if start:
                yield self._text(f"  columns {start} to {stop - 1} of {count}, continued:", "dim")
            part = slice(start, stop if stop < count else None)
            yield self._line("", self.columns[part], self.widths[part], marks=False)
            for label, cells in self.rows:
                yield self._line(label, cells[part], self.widths[part], self.table.marks)
            start = stop

    def _line(self, label: str, cells: Sequence[str], widths: Sequence[int], marks: bool) -> Text:
        line = Text(" " * (self.left - cell_len(label)) + label)
        for cell, width in zip(cells, widths, strict=True):
            line.append(" " * (1 + width - cell_len(cell)))
            line.append(cell, style=_style(cell) if marks else "")
        line.rstrip()
        return line

    def _text(self, text: str, style: str = "") -> Text:
        return Text(self.fit(printable(text)), style=style)


def _style(cell: str) -> str:
    return STYLES.get(CLOSED if cell == "." else cell, "")
