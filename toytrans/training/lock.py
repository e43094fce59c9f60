"""An exclusive lock on an open file, which the system releases when the process ends.

Linux has locks of open files (OFD), which can be asked about without taking one. Other systems
have flock. Windows and some network disks have none.
"""

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from toytrans.errors import UserError
from toytrans.files import Unreadable, open_regular, open_to_append

_NONE_HERE = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of a file system without locks."""


@contextlib.contextmanager
def locked(file: Path, refusal: str) -> Iterator[bool]:
    """Hold the lock of a file, which is made if it is not there.

    Yields whether there are locks here. Raises OSError, and UserError if the path is a link, a pipe
    or a device, or with the refusal if another process holds the lock.
    """
    with open_to_append(file) as opened:
        try:
            has_locks = _lock(opened.fileno())
        except BlockingIOError:
            raise UserError(refusal) from None
        yield has_locks


def is_locked(file: Path) -> bool:
    """Whether a process holds the lock of a file. False where that cannot be asked without taking
    the lock."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        with open_regular(file) as opened:
            answer = fcntl.fcntl(opened.fileno(), fcntl.F_OFD_GETLK, _request())
    except (OSError, Unreadable):
        return False
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def _lock(descriptor: int) -> bool:
    """Take the lock; whether there are locks here. Raises BlockingIOError if it is held."""
    try:
        if hasattr(fcntl, "F_OFD_SETLK"):
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request())
        elif fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except PermissionError:  # some systems say so that it is held
        raise BlockingIOError from None
    except OSError as error:
        if error.errno not in _NONE_HERE:
            raise
        return False
    return fcntl is not None


def _request() -> bytes:
    """A `struct flock` that asks for an exclusive lock of the whole file."""
    return struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
