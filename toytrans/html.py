"""Tables in HTML, the same in pages, which have a stylesheet, and in notebooks, which get STYLE."""

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup, escape

from toytrans.errors import printable

NAMES_ROWS = {"mask", "facts", "labelled"}
"""Kinds of tables in which the first cell of a row is its name."""

STYLE = Markup(
    "<style>.open { background: #b7e1c0; color: black } .closed { background: #dddddd; color: black"
    " } .wrong { background: #f2a6a6; color: black } .mask td { text-align: center }</style>"
)
"""What a notebook needs to know of looks; the colours have their own text colour, for dark
themes."""


def table_html(table: Any) -> Markup:
    """A `Table` in HTML, with its title, the lines above its cells and the notes below them. One
    whose cells say something can be read with the arrow keys, so it can have the focus."""
    notes = Markup("").join(Markup("<p>{}</p>").format(printable(note)) for note in table.notes)
    lines = Markup("<br>").join(map(printable, filter(None, (table.heading, *table.above))))
    if not table.rows:
        return (Markup("<p>{}</p>").format(lines) if lines else Markup("")) + notes
    caption = Markup("<caption>{}</caption>").format(lines) if lines else ""
    names_rows = not NAMES_ROWS.isdisjoint(table.kind.split())
    head_cell = Markup('<th scope="col">{}</th>')
    heads = Markup("").join(head_cell.format(printable(name)) for name in table.headings)
    head = Markup("<thead><tr>{}</tr></thead>").format(heads) if any(table.headings) else ""
    rows = Markup("").join(_row_html(row, names_rows) for row in table.rows)
    focus: Markup | str = ""
    if any(getattr(cell, "says", "") for row in table.rows for cell in row):
        focus = Markup(' tabindex="0" aria-label="{}"').format(printable(table.heading))
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
    """A cell; a `Cell` with what it carries."""
    marks = Markup("")
    if hasattr(cell, "look"):
        colour = f"background: {cell.colour}; color: black" if cell.colour else ""
        given = {"class": cell.look, "title": cell.says, "style": colour}
        for name, value in given.items():
            marks += Markup(' {}="{}"').format(name, printable(value)) if value else ""
    return Markup("<td{}>{}</td>").format(marks, _escaped(cell))


def _escaped(cell: Any) -> Markup:
    """The text of a cell, its control characters shown. HTML that is ready stays as it is."""
    return cell if isinstance(cell, Markup) else escape(printable(str(cell)))


def beside_html(title: str, tables: Iterable[Any]) -> Markup:
    """Tables from left to right below a title, in as many rows as they need."""
    gap = "display: flex; flex-wrap: wrap; gap: 24px; align-items: flex-start"
    parts = Markup("").join(map(table_html, tables))
    return Markup('<h3>{}</h3><div style="{}">{}</div>').format(printable(title), gap, parts)
