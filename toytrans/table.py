"""A table: one class for the terminal, for pages and notebooks, for CSV and JSON, and for pandas.

Whoever has numbers makes a `Table` of them. `cli/terminal.py` draws it on a terminal, and
`toytrans/html.py` in pages and notebooks alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from toytrans.errors import printable

if TYPE_CHECKING:
    import pandas


class TextColumn(NamedTuple):
    """A column of text, which is set left and may be folded; a column of numbers is its heading
    alone."""

    heading: str


class Cell(str):
    """Text that is shown in a way of its own.

    look: its class in a stylesheet, and its style on a terminal: open, closed, wrong, PASS and so
    on. says: what a pointer over it reads out. colour: behind it, where no look has that.
    """

    look: str
    says: str
    colour: str

    def __new__(cls, text: str, look: str = "", says: str = "", colour: str = "") -> "Cell":
        made = super().__new__(cls, text)
        made.look, made.says, made.colour = look, says, colour
        return made


@dataclass(frozen=True, repr=False)
class Table:
    """A table with a title above it and sentences below. One without rows is its sentences.

    rows: a cell for each column: text as it is shown (perhaps a `Cell`), or values for programs.
    above: lines between the title and the cells, of which empty ones are left out; the first is not
    folded. kind: its classes in a stylesheet; in a table of the kinds in `html.NAMES_ROWS` the
    first cell of a row names it. panel: the name of the panel that it belongs to; tables of one
    panel are printed beside each other.
    """

    title: str
    columns: Sequence[str | TextColumn] = ()
    rows: Sequence[Sequence[Any]] = ()
    notes: Sequence[str] = ()
    above: Sequence[str] = ()
    kind: str = "data"
    panel: str = ""

    @property
    def heading(self) -> str:
        """The title, after the name of its panel."""
        return f"{self.panel} {self.title}".strip()

    @property
    def headings(self) -> list[str]:
        """The headings of all columns, each in one line."""
        names = (each.heading if isinstance(each, TextColumn) else each for each in self.columns)
        return [name.replace("\n", " ") for name in names]

    def __str__(self) -> str:
        lines = [*[self.heading] * bool(self.heading), *filter(None, self.above)]
        if self.rows:
            every = [[printable(str(x)) for x in row] for row in (self.headings, *self.rows)]
            widths = [max(map(len, column)) for column in zip(*every, strict=True)]
            lines += ["  " + "  ".join(map(str.rjust, row, widths)) for row in every]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        from toytrans.html import STYLE, table_html

        return STYLE + table_html(self)

    def records(self) -> list[dict[str, Any]]:
        """Each row by its columns, for JSON."""
        return [dict(zip(self.headings, row, strict=True)) for row in self.rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a DataFrame of pandas, which must be installed."""
        import pandas

        return pandas.DataFrame([list(row) for row in self.rows], columns=self.headings)
