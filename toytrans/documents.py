"""Documents that a command writes for people or programs and may read again: JSON and CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from toytrans.files import Unreadable, read_whole

Document = TypeVar("Document", bound=BaseModel)

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How text begins that a spreadsheet takes for a formula."""


def read_json(
    path: Path, kind: type[Document], otherwise: str, *, most_bytes: int = 2**24
) -> Document | None:
    """The JSON document in a file; None if there is no such file.

    otherwise: what a file of another shape is, and the remedy: "not a board; move it away".
    Raises Unreadable: the path and `otherwise`, or why the file cannot be read and the remedy.
    """
    try:
        return kind.model_validate_json(read_whole(path, most_bytes))
    except FileNotFoundError:
        return None
    except OSError as error:
        remedy = otherwise.partition("; ")[2]
        raise Unreadable(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (Unreadable, ValidationError):
        raise Unreadable(f"{path}: {otherwise}") from None


def csv_bytes(rows: Iterable[Sequence[Any]]) -> bytes:
    """Rows as CSV; a name in them that is no UTF-8 gets its own bytes again.

    Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # so a return in a cell is quoted too
    for row in rows:
        is_formula = [isinstance(cell, str) and cell.startswith(FORMULA) for cell in row]
        writer.writerow([f"'{c}" if f else c for c, f in zip(row, is_formula, strict=True)])
    return text.getvalue().replace("\r\n", "\n").encode(errors="surrogateescape")
