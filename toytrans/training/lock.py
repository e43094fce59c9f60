"""The lock of a training: that of its open metrics.jsonl, which the system releases when the
process ends, however it ends. Linux has locks of open files (OFD), which can be asked about without
taking one. Other systems have flock; Windows and some network disks have no locks."""

import os
import struct
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from toytrans.files import Unreadable, open_regular


def take_lock(file: BinaryIO) -> bool:
    """Take the lock of an open file. Returns whether there are locks on this system.

    Raises BlockingIOError if another process holds it.
    """
    try:
        if hasattr(fcntl, "F_OFD_SETLK"):
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _request())
        elif fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some systems say the latter
        raise BlockingIOError from None
    except OSError:
        return False
    return fcntl is not None


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file. False where that cannot be asked without taking
    the lock."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        with open_regular(path) as file:
            answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _request())
    except (OSError, Unreadable):
        return False
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def _request() -> bytes:
    """A `struct flock` that asks for an exclusive lock of the whole file."""
    return struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
