"""Write files so that a crash leaves the old file or the new one, never half of one."""

import contextlib
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from toytrans.errors import UserError
from toytrans.safe_io import Unreadable, json_text
from toytrans.training.failpoint import failpoint


def draft_of(path: Path) -> Path:
    """The temporary path under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.draft")


def write_file(path: Path, raw: bytes) -> None:
    """Write a file completely or not at all.

    A link with the name of the file, or of its draft, is replaced. Its target stays as it is.
    """
    draft = draft_of(path)
    draft.unlink(missing_ok=True)
    try:
        with draft.open("xb") as file:  # exclusive: follows no link
            write_out(file, raw, path.name)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    draft.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON with `write_file`."""
    write_file(path, f"{json_text(value, 1)}\n".encode())


def append_line(path: Path, raw: bytes) -> None:
    """Add a line to a file. Raises UserError if the path is a link, a pipe or a device."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path.is_symlink():
        raise UserError(f"{path}: is a link, and nothing is written through it; remove the link")
    with open(os.open(path, flags, 0o666), "ab") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Unreadable(f"{path}: a pipe or a device, not a file; remove it")
        write_out(file, raw, "record")


def write_out(file: BinaryIO, raw: bytes, name: str) -> None:
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
