"""Tables as lines of text, and in HTML, for notebooks. Colours come with their own text colour, for
dark themes."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


class Cell(NamedTuple):
    """Text, what a pointer over it shows, and the colour behind it."""

    text: str
    hint: str = ""
    colour: str = ""


class Shown(NamedTuple):
    """A table of text. names, numbers, last: the headings of its columns; one without rows is its
    title alone."""

    title: str
    names: Sequence[str] = ()
    numbers: Sequence[str] = ()
    last: str = ""
    rows: Sequence[Sequence[str]] = ()

    @property
    def headings(self) -> list[str]:
        """Those of all columns."""
        return [*self.names, *self.numbers, *[self.last] * bool(self.last)]

    def __str__(self) -> str:
        if not self.rows:
            return self.title
        every = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        lines = ["  " + "  ".join(map(str.rjust, row, widths)) for row in every]
        return "\n".join([self.title, *lines])

    def html(self) -> str:
        """As a notebook shows it."""
        if not self.rows:
            return f"<p>{escape(self.title)}</p>"
        rows = [(row[0], row[1:]) for row in self.rows]
        return html_table(self.title, self.headings[1:], rows)


def html_table(
    title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str | Cell]]]
) -> str:
    """A table with a title above it. rows: label and cells."""
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *columns))
    lines = [
        f"<tr><th>{escape(label)}</th>{''.join(map(_cell, cells))}</tr>" for label, cells in rows
    ]
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<table><caption>{escape(title)}</caption>{body}</table>"


def html_beside(title: str, parts: Iterable[str]) -> str:
    """Parts from left to right below a title, in as many rows as they need."""
    gap = "display: flex; flex-wrap: wrap; gap: 1em; align-items: flex-start"
    return f'<div><b>{escape(title)}</b><div style="{gap}">{"".join(parts)}</div></div>'


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    look = f"background: {cell.colour}; color: black; text-align: center"
    style = f' style="{look}"' if cell.colour else ""
    return f"<td{hint}{style}>{escape(cell.text)}</td>"
