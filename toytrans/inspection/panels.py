"""Panels: the tables of `inspect-masks`, `trace` and `demo`, and the number formats in them."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from toytrans.table import Cell, Table

if TYPE_CHECKING:
    from torch import Tensor

CLOSED = "·"
"""A masked cell. The command line prints "." where the terminal has no Unicode."""

FEATURES, PLACES = 8, 12
"""How many features, and how many positions, are shown of a large tensor."""

LOOKS = {"1": "open", CLOSED: "closed"} | dict.fromkeys("x!?", "wrong")
LOOKS |= dict.fromkeys("ptbq", "reason")
"""How the marks of masks look."""


def panel(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Iterable[tuple[str, Sequence[str]]],
    shape: str = "",
    legend: str = "",
    notes: Sequence[str] = (),
    *,
    marks: bool = False,
) -> Table:
    """One table of a panel; those of one name, a number mostly, are printed side by side.

    columns, rows: cells as text. A column that starts with "|" summarizes its whole row.
    shape: the shape of the tensor shown, or its shapes before and after broadcasting.
    notes: sentences below the table. A note that starts with "Trap:" names a common mistake.
    marks: the cells are those of a mask.
    """
    made = mark if marks else str
    return Table(
        title,
        ["", *columns] if columns else [],
        [[label, *map(made, cells)] for label, cells in rows] if columns else [],
        notes,
        above=(shape, legend),
        kind="mask" if marks else "labelled data tokens",
        panel=name,
    )


def mark(text: str, says: str = "") -> Cell:
    """A cell of a mask. says: why it is open or closed."""
    return Cell(text, LOOKS.get(text, ""), says)


def mask_cells(mask: "Tensor") -> list[list[str]]:
    """A mask (rows, columns) as cells: "1" where attention is allowed."""
    return [["1" if allowed else CLOSED for allowed in line] for line in mask.tolist()]


def matrix(
    name: str,
    title: str,
    values: "Tensor",
    rows: list[str],
    columns: list[str] | None = None,
    *notes: str,
    summaries: "dict[str, Tensor] | None" = None,
    digits: int = 2,
    first: int = 0,
) -> Table:
    """A table of values (rows, columns). Large tensors are cut, and the shape line says so.

    columns: names of the columns; None names features d1, d2, ..., shown from `first` on.
    summaries: one more number for each row, printed behind a bar.
    """
    height, width = values.shape
    window = slice(first, first + (FEATURES if columns is None else PLACES))
    columns = columns or [f"d{k + 1}" for k in range(width)]
    cells = [numbers(line, digits) for line in values[:PLACES, window]]
    bars: list[str] = []
    for heading, column in (summaries or {}).items():
        texts = [heading, *numbers(column[: len(cells)], digits)]
        for line, text in zip((bars, *cells), texts, strict=True):
            line.append(f"| {text:>{max(map(len, texts))}}")
    table = list(zip(rows, cells, strict=False))
    shape = shape_of(values.shape)
    hidden = {"row": height - len(cells), "column": width - len(columns[window])}
    shape += "".join(f", {count(n, f'more {thing}')}" for thing, n in hidden.items() if n)
    return panel(name, title, [*columns[window], *bars], table, shape, notes=notes)


def number(value: "float | Tensor", digits: int = 2) -> str:
    """A short number. "0" is exactly zero; "0.00" rounds to zero."""
    value = float(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}".replace("-0", "0")
    if abs(value) >= 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def numbers(values: "Tensor", digits: int = 2) -> list[str]:
    """Values (N,) as text."""
    return [number(value, digits) for value in values.tolist()]


def tiny(value: "float | Tensor") -> str:
    """A difference as text. "0" is exactly zero."""
    return f"{float(value):.1e}" if value else "0"


def distance(a: "Tensor", b: "Tensor | float") -> float:
    """The largest absolute difference, computed in fp64."""
    return float((a.double() - b).abs().max())


def shape_of(*shapes: Iterable[int]) -> str:
    """Shapes as text, for example "(2, 5) -> (2, 1, 1, 5)"."""
    return " -> ".join(str(tuple(shape)) for shape in shapes)


def label(name: str) -> str:
    """An identifier as words."""
    return name.replace("_", " ")


def count(amount: int, thing: str) -> str:
    """For example "1 row" and "2 rows"."""
    return f"{amount} {thing}{'' if amount == 1 else 's'}"
