"""A table: one class for the terminal, for pages and notebooks, for CSV and JSON, and for pandas.

Whoever has numbers makes a `Table` of them. How it is drawn is the business of whoever shows it:
cli/terminal.py on a terminal, the template of pages in a browser.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas


class TextColumn(NamedTuple):
    """A column of text, which is set left and may be folded; a column of numbers is its heading
    alone."""

    heading: str


@dataclass(frozen=True, repr=False)
class Table:
    """A table with a title above it and sentences below. One without columns is its sentences.

    rows: a cell for each column: text as it is shown, or values for programs.
    """

    title: str
    columns: Sequence[str | TextColumn] = ()
    rows: Sequence[Sequence[Any]] = ()
    notes: Sequence[str] = ()

    @property
    def headings(self) -> list[str]:
        """The headings of all columns, each in one line."""
        names = (each.heading if isinstance(each, TextColumn) else each for each in self.columns)
        return [name.replace("\n", " ") for name in names]

    def __str__(self) -> str:
        lines = [self.title] * bool(self.title)
        if self.rows:
            every = [self.headings, *([str(cell) for cell in row] for row in self.rows)]
            widths = [max(map(len, column)) for column in zip(*every, strict=True)]
            lines += ["  " + "  ".join(map(str.rjust, row, widths)) for row in every]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        heads = "".join(f"<th>{escape(name)}</th>" for name in self.headings)
        lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in self.rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        if not self.rows:
            return f"<p>{escape(self.title)}</p>" * bool(self.title) + notes
        caption = f"<caption>{escape(self.title)}</caption>"
        head = f"<thead><tr>{heads}</tr></thead>"
        return f"<table>{caption}{head}<tbody>{body}</tbody></table>{notes}"

    def records(self) -> list[dict[str, Any]]:
        """Each row by its columns, for JSON."""
        return [dict(zip(self.headings, row, strict=True)) for row in self.rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a DataFrame of pandas, which must be installed."""
        import pandas

        return pandas.DataFrame([list(row) for row in self.rows], columns=self.headings)
