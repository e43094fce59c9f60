"""Tables in HTML, for notebooks. Colours come with their own text colour, for dark themes."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


class Cell(NamedTuple):
    """Text, what a pointer over it shows, and the colour behind it."""

    text: str
    hint: str = ""
    colour: str = ""


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
