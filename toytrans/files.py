"""Files: bounded reads of what may be hostile, JSON, and the one writer.

No pipe or device is read, and nothing larger than expected. A file is written as a draft beside it,
`.toytrans-HEX.draft`, and then gets its name: a crash leaves the old file or the new one.
"""

import contextlib
import json
import math
import os
import shutil
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from toytrans.errors import UserError


class Unreadable(UserError):
    """A file is refused: a pipe, a device, too large, or not what it should be."""


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file for reading bytes.

    Raises OSError, and Unreadable for a pipe or a device, which may never end.
    """
    at_once = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer would block for ever
    opener = lambda name, flags: os.open(name, flags | at_once)  # noqa: E731
    file = open(path, "rb", opener=opener)  # noqa: SIM115  # the caller's to close
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable(f"{path}: a pipe or a device; save it as a file, and name that")
    return file


def read_whole(path: Path | str, most_bytes: int) -> bytes:
    """The bytes that a file has now. Raises OSError, and Unreadable for a larger one."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        raw = b"" if size > most_bytes else file.read(size + 1)
    if max(size, len(raw)) > most_bytes:
        raise Unreadable(f"{path}: larger than {most_bytes:,} bytes")
    return raw


def read_named(path: Path | str, most_bytes: int, *, kind: str = "file") -> bytes:
    """The bytes of a file that the user named. Raises UserError: one line with the remedy.

    kind: what the user must name instead of a directory.
    """
    try:
        return read_whole(path, most_bytes)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; name a {kind}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{str(path)!r}: not a file name ({error})") from None


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


# Writing ---------------------------------------------------------------------------------------


def write_file(path: Path, raw: bytes, *, replace: bool = True) -> None:
    """Write a file completely or not at all.

    replace: whether a regular file of that name is replaced. Nothing else ever is.
    Raises OSError, and UserError where something is in the way.
    """
    with drafted(path, replace=replace) as draft:
        write_new(draft, raw)


def write_new(path: Path, raw: bytes) -> None:
    """Write a new file and flush it to the disk. Raises OSError, also if the file exists."""
    with path.open("xb") as file:
        _write_out(file, raw)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON with `write_file`."""
    write_file(path, f"{json_text(value, 1)}\n".encode())


@contextlib.contextmanager
def disk_errors(place: Path, what: str) -> Iterator[None]:
    """Turn an OSError into a UserError. what: the file that is written at a place."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{place}: {what} cannot be written ({error.strerror or error})") from None


@contextlib.contextmanager
def drafted(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new path, where the block makes a file or a folder. It is then renamed to `path`.

    If the block fails, nothing is left of it. replace, errors: as in `write_file`.
    """
    check_free(path, replace=replace)
    with discarded(path) as draft:
        yield draft
        _place(draft, path, replace)


_open_drafts: set[Path] = set()
"""What this process is writing."""


@contextlib.contextmanager
def discarded(path: Path) -> Iterator[Path]:
    """Yield a new path beside another one. What the block leaves there is removed."""
    draft = path.with_name(f".toytrans-{os.urandom(8).hex()}.draft")
    _open_drafts.add(draft)
    try:
        yield draft
    finally:
        _remove(draft)


def remove_open_drafts() -> None:
    """Remove what this process is writing, for one that ends at once."""
    for draft in list(_open_drafts):
        _remove(draft)


def _remove(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    with contextlib.suppress(OSError):
        draft.unlink()
    _open_drafts.discard(draft)


def drafts_in(folder: Path) -> list[Path]:
    """The drafts of files that a crash has left in a folder."""
    drafts = folder.glob(f".toytrans-{'[0-9a-f]' * 16}.draft")
    return [path for path in drafts if _kind(path) == "file"]


def check_free(path: Path, *, replace: bool) -> None:
    """Raise UserError if something is in the way of a file. Raises OSError.

    replace: whether a regular file may be replaced.
    """
    kind = _kind(path)
    if kind and not replace:
        raise UserError(f"{path}: exists already; remove it, or name another")
    if kind == "link":
        raise UserError(f"{path}: is a link, and nothing is written through it; remove the link")
    if kind not in ("", "file"):
        raise UserError(f"{path}: is a {kind}, not a file; remove it, or name another")


def _kind(path: Path) -> str:
    """What has a name: a file, link, folder, pipe or device; empty if there is nothing."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    return kinds.get(stat.S_IFMT(mode), "pipe or a device")


def _place(draft: Path, path: Path, replace: bool) -> None:
    """Give a draft its name."""
    if not replace:
        with contextlib.suppress(OSError):  # folders have no hard links, nor have some disks
            os.link(draft, path)  # unlike a rename it replaces nothing
            return
    check_free(path, replace=replace)
    os.replace(draft, path)


def append_line(path: Path, raw: bytes) -> None:
    """Add a line with its end to a file.

    If a crash has cut the last line short, the new one still has a line of its own. Raises OSError,
    and UserError if the path is a link, a pipe or a device.
    """
    with open_to_append(path) as file:
        is_cut = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            is_cut = file.read(1) != b"\n"
        _write_out(file, b"\n" * is_cut + raw)


def open_to_append(path: Path) -> BinaryIO:
    """Open a file to read it and to add to it; it is made if it is not there. Raises OSError, and
    UserError if the path is a link, a pipe or a device."""
    check_free(path, replace=True)
    return path.open("a+b")


def _write_out(file: BinaryIO, raw: bytes) -> None:
    """Write bytes and flush them to the disk."""
    file.write(raw)
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
