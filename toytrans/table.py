"""A table: one class for the terminal, for pages and notebooks, for CSV and JSON, and for pandas.

Whoever has numbers makes a `Table` of them. `cli/terminal.py` draws it on a terminal, and
`table_html` in pages and notebooks alike. A page has a stylesheet of its own, and a notebook gets
`STYLE`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape

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
    above: lines between the title and the cells. kind: its classes in a stylesheet; in a table of
    the kinds in NAMES_ROWS the first cell of a row names the row. panel: the name of the panel that
    it belongs to; tables of one panel are printed beside each other.
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
        lines = [*[self.heading] * bool(self.heading), *self.above]
        if self.rows:
            every = [self.headings, *([printable(str(x)) for x in row] for row in self.rows)]
            widths = [max(map(len, column)) for column in zip(*every, strict=True)]
            lines += ["  " + "  ".join(map(str.rjust, row, widths)) for row in every]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        return STYLE + table_html(self)

    def records(self) -> list[dict[str, Any]]:
        """Each row by its columns, for JSON."""
        return [dict(zip(self.headings, row, strict=True)) for row in self.rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a DataFrame of pandas, which must be installed."""
        import pandas

        return pandas.DataFrame([list(row) for row in self.rows], columns=self.headings)


# In pages and notebooks --------------------------------------------------------------------------

NAMES_ROWS = {"mask", "facts", "labelled"}
"""Kinds of tables in which the first cell of a row is its name."""

STYLE = Markup(
    "<style>.open { background: #b7e1c0; color: black } .closed { background: #dddddd; color: black"
    " } .wrong { background: #f2a6a6; color: black } .mask td { text-align: center }</style>"
)
"""What a notebook needs to know of looks; the colours have their own text colour, for dark
themes."""


def table_html(table: Table) -> Markup:
    """A table in HTML, with its title, the lines above its cells and the notes below them. One
    whose cells say something can be read with the arrow keys, so it can have the focus."""
    notes = Markup("").join(Markup("<p>{}</p>").format(printable(note)) for note in table.notes)
    lines = Markup("<br>").join(map(printable, filter(None, (table.heading, *table.above))))
    if not table.rows:
        return (Markup("<p>{}</p>").format(lines) if lines else Markup("")) + notes
    caption = Markup("<caption>{}</caption>").format(lines) if lines else ""
    names_rows = not NAMES_ROWS.isdisjoint(table.kind.split())
    heads = Markup("").join(Markup('<th scope="col">{}</th>').format(h) for h in table.headings)
    head = Markup("<thead><tr>{}</tr></thead>").format(heads) if any(table.headings) else ""
    rows = Markup("").join(_row_html(row, names_rows) for row in table.rows)
    focus: Markup | str = ""
    if any(isinstance(cell, Cell) and cell.says for row in table.rows for cell in row):
        focus = Markup(' tabindex="0" aria-label="{}"').format(table.heading)
    return (
        Markup('<div class="scroll"><table class="{}"{}>').format(table.kind, focus)
        + caption
        + head
        + Markup("<tbody>{}</tbody></table></div>").format(rows)
        + notes
    )


def _row_html(row: Sequence[Any], is_named: bool) -> Markup:
    """A row of a table. is_named: whether its first cell is its name."""
    cells = list(map(_cell_html, row))
    if is_named:
        cells[0] = Markup('<th scope="row">{}</th>').format(_escaped(row[0]))
    return Markup("<tr>{}</tr>\n").format(Markup("").join(cells))


def _cell_html(cell: Any) -> Markup:
    marks = Markup("")
    if isinstance(cell, Cell):
        colour = f"background: {cell.colour}; color: black" if cell.colour else ""
        given = {"class": cell.look, "title": cell.says, "style": colour}
        for name, value in given.items():
            marks += Markup(' {}="{}"').format(name, printable(value)) if value else ""
    return Markup("<td{}>{}</td>").format(marks, _escaped(cell))


def _escaped(cell: Any) -> Markup:
    """The text of a cell, its control characters shown. HTML that is ready stays as it is."""
    return cell if isinstance(cell, Markup) else escape(printable(str(cell)))


def beside_html(title: str, tables: Iterable[Table]) -> Markup:
    """Tables from left to right below a title, in as many rows as they need."""
    gap = "display: flex; flex-wrap: wrap; gap: 24px; align-items: flex-start"
    parts = Markup("").join(map(table_html, tables))
    return Markup('<h3>{}</h3><div style="{}">{}</div>').format(printable(title), gap, parts)
