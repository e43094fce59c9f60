"""Tables on a terminal, in HTML, and one step per key press."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from textwrap import wrap
from typing import TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from toytrans.cli.common import printable
from toytrans.inspection.table import CLOSED, Table

GAP = "  "
NARROWEST = 36
"""The least width of a table that is printed beside another."""

Item = TypeVar("Item")

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
        for row in beside(blocks, [block.width for block in blocks], console.width):
            console.print(Text(), soft_wrap=True)
            for line in _lines(row, console.width):
                console.print(line, soft_wrap=True)


def beside(items: list[Item], widths: list[int], width: int) -> Iterator[list[Item]]:
    """Items in rows, each row as many as fit side by side; an item that is too wide gets one."""
    start = 0
    while start < len(items):
        stop, used = start + 1, widths[start]
        while stop < len(items) and used + len(GAP) + widths[stop] <= width:
            used += len(GAP) + widths[stop]
            stop += 1
        yield items[start:stop]
        start = stop


def side_by_side(columns: list[list[Text]], widths: list[int]) -> Iterator[Text]:
    """Columns of lines from left to right, each padded to its width."""
    for parts in zip_longest(*columns, fillvalue=Text()):
        line = Text()
        for part, width in zip(parts, widths, strict=True):
            line.append_text(part)
            line.append(" " * (width - part.cell_len) + GAP)
        line.rstrip()
        yield line


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


def _lines(blocks: list[_Block], width: int) -> Iterator[Text]:
    """One table in the full width, or several side by side with their cells at one height."""
    if len(blocks) == 1:
        yield from (*blocks[0].head(width), *blocks[0].body(width))
        return
    widths = [block.width for block in blocks]
    heads = [block.head(block.width) for block in blocks]
    tallest = max(map(len, heads))
    columns = [
        [*head, *[Text()] * (tallest - len(head)), *block.body(block.width)]
        for block, head in zip(blocks, heads, strict=True)
    ]
    yield from side_by_side(columns, widths)
