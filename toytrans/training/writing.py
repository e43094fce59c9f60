"""The one writer of files: a crash leaves the old file or the new one, never half of one.

A file is written as a draft beside it, `.toytrans-HEX.draft`, and then gets its name.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from toytrans.errors import UserError
from toytrans.safe_io import Unreadable, json_text
from toytrans.training.failpoint import failpoint

_DIGITS = 16


def write_file(path: Path, raw: bytes, *, replace: bool = True) -> None:
    """Write a file completely or not at all.

    replace: whether a regular file of that name is replaced. Nothing else ever is.
    Raises OSError, and UserError where something is in the way.
    """
    with drafted(path, replace=replace) as draft, draft.open("xb") as file:
        _write_out(file, raw, path.name)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON with `write_file`."""
    write_file(path, f"{json_text(value, 1)}\n".encode())


@contextlib.contextmanager
def drafted(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new path, where the block makes a file or a folder. It is then renamed to `path`.

    If the block fails, nothing is left of it. replace, errors: as in `write_file`.
    """
    check_free(path, replace=replace)
    draft = path.with_name(f".toytrans-{os.urandom(_DIGITS // 2).hex()}.draft")
    try:
        yield draft
        _place(draft, path, replace)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def drafts_in(folder: Path) -> list[Path]:
    """The drafts of files that a crash has left in a folder."""
    drafts = folder.glob(f".toytrans-{'[0-9a-f]' * _DIGITS}.draft")
    return [path for path in drafts if _kind(path) == "file"]


def check_free(path: Path, *, replace: bool, remedy: str = "remove it, or name another") -> None:
    """Raise UserError if something is in the way of a file. Raises OSError.

    replace: whether a regular file may be replaced.
    """
    kind = _kind(path)
    if kind and not replace:
        raise UserError(f"{path}: exists already; {remedy}")
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
    """Add a line to a file. Raises UserError if the path is a link, a pipe or a device."""
    check_free(path, replace=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags, 0o666), "ab") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Unreadable(f"{path}: a pipe or a device, not a file; remove it")
        _write_out(file, raw, "record")


def _write_out(file: BinaryIO, raw: bytes, name: str) -> None:
    """Write bytes and flush them to the disk. name: the failpoint after half of them."""
    half = len(raw) // 2
    file.write(memoryview(raw)[:half])
    file.flush()
    failpoint(f"half-{name}")
    file.write(memoryview(raw)[half:])
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
