"""Tables whose cells are text, and the number formats in them. Importing this loads no torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CLOSED = "·"
"""A masked cell. The command line prints "." where the terminal has no Unicode."""

FEATURES, PLACES = 8, 12
"""How many features, and how many positions, are shown of a large tensor."""


@dataclass(frozen=True)
class Table:
    """One table to be printed.

    number: tables with the same number are printed side by side.
    columns, rows: cells as text. A column that starts with "|" summarizes its whole row.
    shape: the shape of the tensor shown, or its shapes before and after broadcasting.
    notes: sentences below the table. A note that starts with "Trap:" names a common mistake.
    marks: the cells are those of a mask, which a terminal colours.
    """

    number: str
    name: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]
    shape: str = ""
    legend: str = ""
    notes: tuple[str, ...] = ()
    marks: bool = False


def mask_cells(mask: "Tensor") -> list[list[str]]:
    """A mask (rows, columns) as cells: "1" where attention is allowed."""
    return [["1" if allowed else CLOSED for allowed in line] for line in mask.tolist()]


def matrix(
    number: str,
    name: str,
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
    for title, column in (summaries or {}).items():
        texts = [title, *numbers(column[: len(cells)], digits)]
        for line, text in zip((bars, *cells), texts, strict=True):
            line.append(f"| {text:>{max(map(len, texts))}}")
    table = list(zip(rows, cells, strict=False))
    shape = shape_of(values.shape)
    hidden = {"row": height - len(cells), "column": width - len(columns[window])}
    shape += "".join(f", {count(n, f'more {thing}')}" for thing, n in hidden.items() if n)
    return Table(number, name, [*columns[window], *bars], table, shape, notes=notes)


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
