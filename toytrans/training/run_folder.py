"""The folder of a run: which one it is, and the lock that keeps other trainings out."""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from toytrans.errors import UserError
from toytrans.files import check_free, drafts_in
from toytrans.training.owned import DATA, ENVIRONMENT, LOCK, saying_what_failed
from toytrans.training.run import RUNS, is_run, read_environment

TRIES, SECONDS_BETWEEN_TRIES = 10, 0.02
"""How often a lock is asked for: a command that lists runs may hold it for a moment."""


def choose_folder(stem: str, out: Path | None, *, resume: bool) -> Path:
    """The folder for the run of a config named `stem`. Nothing is written.

    out: the folder that the user named; None = runs/stem, runs/stem-2, and so on, or the newest of
    these that a config of that name made, to resume it.
    Raises UserError if the folder holds something else than is asked for.
    """
    path = _default_folder(stem, resume) if out is None else out
    check_folder(path, resume=resume)
    return path


def _default_folder(stem: str, resume: bool) -> Path:
    if stem in (".", "..") or not stem.isprintable():
        raise UserError(f"{stem!r} is no name for a run; name its directory with --out")
    names = os.listdir(RUNS) if RUNS.is_dir() else []
    numbers = sorted(filter(None, (_number(name, stem) for name in names)))
    for number in reversed(numbers) if resume else ():
        # runs/exp-2 may be the second run of exp.yaml or the first of exp-2.yaml
        made_by = read_environment(RUNS / _name(stem, number)).get("config")
        if made_by == stem or (made_by is None and number == 1):
            return RUNS / _name(stem, number)
    return RUNS / _name(stem, numbers[-1] + 1 if numbers else 1)


def check_folder(path: Path, *, resume: bool) -> None:
    """Raise UserError unless a folder is free for a run, or holds one and that is resumed."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(
            f"{path}: no directory for a run ({error.strerror}); name another --out"
        ) from None
    if set(names) <= {LOCK}:
        return
    holds_run = is_run(path) or _is_begun(path)
    if holds_run and not resume:
        raise UserError(
            f"{path}: holds a run; go on with --resume (in Python: resume=True), or name another "
            "--out"
        )
    if not holds_run:
        kind = "not a run directory" if resume else "not empty"
        raise UserError(f"{path}: {kind}, so it is left alone; name another --out")


def _is_begun(path: Path) -> bool:
    """Whether a training was killed here before it wrote its config."""
    written = {LOCK, DATA, ENVIRONMENT, *(draft.name for draft in drafts_in(path))}
    return (path / LOCK).is_file() and written >= {*os.listdir(path)}


@contextlib.contextmanager
def held(
    stem: str, out: Path | None, *, resume: bool, remedy: str
) -> Iterator[tuple[Path, list[str]]]:
    """The folder of a run, locked, and sentences for the user; arguments as in `choose_folder`.

    Without `out`, a new run takes the next number if another training is faster. Raises UserError.
    """
    refused = None
    with contextlib.ExitStack() as lock:
        while True:
            path = choose_folder(stem, out, resume=resume)
            try:
                notes = lock.enter_context(locked(path, remedy))
                check_folder(path, resume=resume)  # another training may have ended here just now
                break
            except UserError:
                lock.close()
                if out is not None or path == refused:
                    raise
                refused = path
        yield path, notes


class InUse(UserError):
    """A run directory that another training is writing to."""


@contextlib.contextmanager
def locked(path: Path, remedy: str = ", or name another --out") -> Iterator[list[str]]:
    """Lock a run directory, which is made if it does not exist.

    remedy: what the error suggests besides waiting.
    Yields sentences for the user, for example if the file system has no locks. Raises UserError if
    another training holds the lock. The system releases the lock when the process ends. A directory
    in which nothing was written is left as it was.
    """
    made = not os.path.lexists(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{_dead_link(path)}cannot be made ({error.strerror}); name another directory"
        raise UserError(f"{path}: {reason}") from None
    with saying_what_failed(path, LOCK):
        check_free(path / LOCK, replace=True)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path / LOCK, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        notes = _lock(path, descriptor, remedy)
        try:
            yield notes
        finally:
            with contextlib.suppress(OSError):
                if os.listdir(path) == [LOCK]:
                    (path / LOCK).unlink()
                    if made:
                        path.rmdir()
    finally:
        os.close(descriptor)


def _dead_link(path: Path) -> str:
    """A sentence if the path contains a dead link, say to a disk that is not mounted."""
    for link in (path, *path.parents):
        if os.path.islink(link) and not os.path.exists(link):
            return f"{link} is a link to {os.readlink(link)}, which is not there; "
    return ""


def _lock(path: Path, descriptor: int, remedy: str) -> list[str]:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UserError(f"{path / LOCK}: a pipe or a device, not a file; remove it")
    unguarded = [f"{path}: no file locks here, so let no other training write into it meanwhile"]
    if fcntl is None:
        return unguarded
    try:
        if any(_took(descriptor) for _ in range(TRIES)):
            return []
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):  # some network disks
            return unguarded
        raise
    raise InUse(f"{path}: another training is writing here; wait for its end or stop it{remedy}")


def _took(descriptor: int) -> bool:
    """Take the lock if it is free; whether that is done and its file still in the directory."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(SECONDS_BETWEEN_TRIES)
        return False
    return os.fstat(descriptor).st_nlink > 0


def _name(stem: str, number: int) -> str:
    return stem if number == 1 else f"{stem}-{number}"


def _number(name: str, stem: str) -> int:
    """1 for stem, k for stem-k, 0 for other names."""
    rest = name.removeprefix(f"{stem}-")
    if name == stem or rest == name:
        return int(name == stem)
    number = int(rest) if rest.isascii() and rest.isdigit() and len(rest) < 10 else 0
    return number if number > 1 and rest == str(number) else 0
