"""Panels on a terminal, in HTML, and one a key press."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby, zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from toytrans.cli.common import printable

if TYPE_CHECKING:
    from toytrans.insight.tables import Panel

CLOSED, GAP = "·", "  "
NARROWEST = 36
"""A block of text that stands beside another is no narrower than this."""

STYLES = {
    "1": "bold",
    CLOSED: "dim",
    "?": "bold red",
    "!": "bold red",
    "x": "bold red",
} | dict.fromkeys("ptbq", "magenta")


def has_unicode() -> bool:
    """Whether standard output takes more than ASCII."""
    encoding = (sys.stdout.encoding or "").lower()
    return encoding.startswith("utf") and os.environ.get("TERM") != "dumb"


def fitting(text: str) -> str:
    """Text as standard output can take it: ASCII where that is all there is."""
    if has_unicode():
        return text
    return text.replace(CLOSED, ".").encode("ascii", "backslashreplace").decode()


def print_panels(
    console: Console, panels: Iterable["Panel"], fit: Callable[[str], str] = fitting
) -> None:
    """Panels of one number side by side where the width allows, else below one another.

    fit: makes text fit to be printed there.
    """
    for group in groups(panels):
        blocks = [_Block(panel, fit) for panel in group]
        for line in _lines_of(blocks, console.width):
            console.print(line, soft_wrap=True)


def groups(panels: Iterable["Panel"]) -> Iterator[list["Panel"]]:
    """Panels that follow each other and have the same number."""
    for _, group in groupby(panels, lambda panel: panel.number):
        yield list(group)


def print_html(panels: Iterable["Panel"], title: str, width: int = 160) -> None:
    """One document on standard output that needs nothing from elsewhere."""
    from html import escape

    from rich.terminal_theme import DEFAULT_TERMINAL_THEME

    console = Console(
        file=StringIO(), record=True, width=width, color_system="truecolor", highlight=False
    )
    print_panels(console, panels, fit=str)
    page = console.export_html(
        theme=DEFAULT_TERMINAL_THEME, code_format=_PAGE.replace("TITLE", escape(title))
    )
    # character references, so that any encoding of standard output will do
    print(page.encode("ascii", "xmlcharrefreplace").decode())


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="UTF-8">
<title>TITLE</title>
<style>
{stylesheet}
body {{ color: {foreground}; background-color: {background}; }}
pre {{ font-family: Menlo, 'DejaVu Sans Mono', Consolas, monospace; }}
</style>
</head>
<body>
<pre><code style="font-family: inherit">{code}</code></pre>
</body>
</html>"""


def step_through(console: Console, panels: Iterable["Panel"]) -> None:
    """One group of panels a key press on a terminal, else all at once.

    q and Ctrl-D leave; so does Ctrl-C, with exit code 130.
    """
    waits = sys.stdin.isatty() and sys.stdout.isatty()
    for number, group in enumerate(groups(panels)):
        if number and waits and not _next_key(console):
            return
        print_panels(console, group)


def _next_key(console: Console) -> bool:
    """Wait for a key; whether to go on."""
    prompt = "any key: the next step; q: leave"
    console.print(f"[dim]{prompt}[/dim]", end="")
    try:
        key = typer.getchar()
    except EOFError:
        key = "q"
    except KeyboardInterrupt:
        print()
        raise typer.Exit(130) from None
    print("\r" + " " * len(prompt) + "\r", end="", flush=True)
    return key not in ("q", "Q", "\x1b")


class _Block:
    """One panel as lines of a certain width."""

    def __init__(self, panel: "Panel", fit: Callable[[str], str]) -> None:
        self.panel, self.fit = panel, fit
        self.title = f"{panel.number} {panel.name}"
        self.columns = [fit(printable(column)) for column in panel.columns]
        self.rows = [
            (fit(printable(label)), [fit(printable(cell)) for cell in cells])
            for label, cells in panel.rows
        ]
        texts = [self.columns, *(cells for _, cells in self.rows)]
        self.widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        self.left = max((cell_len(label) for label, _ in self.rows), default=0) + 2

    @property
    def width(self) -> int:
        """Columns that it takes if nothing is folded."""
        table = self.left + sum(self.widths) + len(self.widths)
        return max(table, cell_len(self.title), cell_len(self.panel.shape) + 2, NARROWEST)

    def head(self, width: int) -> list[Text]:
        """Title, shape and legend, at most `width` wide."""
        title = [self._text(line, "bold") for line in _wrapped(self.title, width + 2)]
        texts = (*_wrapped(self.panel.shape, width), *_wrapped(self.panel.legend, width))
        return title + [self._text(f"  {line}", "dim") for line in texts]

    def body(self, width: int) -> list[Text]:
        """The table, folded, and the sentences, wrapped."""
        lines = list(self._table(width)) if self.columns else []
        for note in self.panel.notes:
            style = "bold" if note.startswith("Trap:") else ""
            lines += [self._text(f"  {line}", style) for line in _wrapped(note, width)]
        return lines

    def _table(self, width: int) -> Iterator[Text]:
        """The table; columns that do not fit go on below."""
        start, count = 0, len(self.columns)
        while start < count:
            stop, used = start + 1, self.left + self.widths[start] + 1
            while stop < count and used + self.widths[stop] < width:
                used += self.widths[stop] + 1
                stop += 1
            if start:
                yield self._text(f"  columns {start} to {stop - 1} of {count}, continued:", "dim")
            part = slice(start, stop)
            yield self._line("", self.columns[part], self.widths[part], marks=False)
            for label, cells in self.rows:
                yield self._line(label, cells[part], self.widths[part], self.panel.marks)
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


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, max(20, width - 2), break_on_hyphens=False)


def _lines_of(blocks: list[_Block], width: int) -> Iterator[Text]:
    """As many blocks beside each other as fit, and an empty line before each row of them."""
    while blocks:
        count, used = 1, blocks[0].width
        while count < len(blocks) and used + len(GAP) + blocks[count].width <= width:
            used += len(GAP) + blocks[count].width
            count += 1
        beside, blocks = blocks[:count], blocks[count:]
        yield Text()
        if count == 1:
            yield from (*beside[0].head(width), *beside[0].body(width))
        else:
            yield from _side_by_side(beside)


def _side_by_side(blocks: list[_Block]) -> Iterator[Text]:
    """Blocks from left to right, their tables at one height."""
    heads = [block.head(block.width) for block in blocks]
    tallest = max(map(len, heads))
    columns = [
        [*head, *[Text()] * (tallest - len(head)), *block.body(block.width)]
        for block, head in zip(blocks, heads, strict=True)
    ]
    for parts in zip_longest(*columns, fillvalue=Text()):
        line = Text()
        for block, part in zip(blocks, parts, strict=True):
            line.append_text(part)
            line.append(" " * (block.width - part.cell_len) + GAP)
        line.rstrip()
        yield line
