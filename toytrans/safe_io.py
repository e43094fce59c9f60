"""Read files that may be hostile: no pipes, no devices, nothing larger than expected. And JSON."""

import csv
import io
import json
import math
import os
import stat
from collections.abc import Iterable, Sequence
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toytrans.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel

Shape = TypeVar("Shape", bound="BaseModel")


class Unreadable(UserError):
    """A file is refused: a pipe, a device, too large, or not what it should be."""


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file for reading bytes.

    Raises OSError, and Unreadable for a pipe or a device, which may never end.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  # the caller's to close
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable(f"{path}: a pipe or a device; save it as a file, and name that")
    return file


def read_whole(path: Path | str, most_bytes: int) -> bytes:
    """The bytes of a file. Raises OSError, and Unreadable for a larger one."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        raw = b"" if size > most_bytes else file.read(most_bytes + 1)
    if max(size, len(raw)) > most_bytes:
        raise Unreadable(f"{path}: larger than {most_bytes:,} bytes")
    return raw


def read_named(path: Path | str, most_bytes: int, *, name: str = "", kind: str = "file") -> bytes:
    """The bytes of a file that the user named. Raises UserError: one line with the remedy.

    name: how errors call the file, if not by its path.
    kind: what the user must name instead of a directory.
    """
    name = name or str(path)
    try:
        return read_whole(path, most_bytes)
    except FileNotFoundError:
        raise UserError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{name}: is a directory; name a {kind}") from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{name!r}: not a file name ({error})") from None


def read_json(
    path: Path, shape: type[Shape], otherwise: str, *, most_bytes: int = 2**24
) -> Shape | None:
    """The JSON document in a file; None if there is no such file.

    otherwise: what a file of another shape is, and the remedy: "not a board; move it away".
    Raises Unreadable: the path and `otherwise`, or why the file cannot be read and the remedy.
    """
    from pydantic import ValidationError  # a help page does not wait for it

    try:
        return shape.model_validate_json(read_whole(path, most_bytes))
    except FileNotFoundError:
        return None
    except OSError as error:
        remedy = otherwise.partition("; ")[2]
        raise Unreadable(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (Unreadable, ValidationError):
        raise Unreadable(f"{path}: {otherwise}") from None


def _open_at_once(path: str, flags: int) -> int:
    """Open without blocking: a pipe without a writer would block for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV. Text that a spreadsheet would take for a formula begins with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # so a return in a cell is quoted too
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().replace("\r\n", "\n")


def _cell(value: Any) -> Any:
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{value}" if is_formula else value


def to_bytes(text: str) -> bytes:
    """Text for a file. Names of files that are no UTF-8 get their own bytes again."""
    return text.encode(errors="surrogateescape")


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON. NaN and infinity become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
