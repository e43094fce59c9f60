"""The folder of a run: which one it is, the lock that keeps other trainings out, its end."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from toytrans.errors import UserError
from toytrans.training.owned import (
    LOCK,
    REPLACED,
    delete_files,
    is_unfinished,
    recover,
    saying_what_failed,
)
from toytrans.training.run import RUNS, is_run, read_environment, read_run


def choose_folder(stem: str, out: Path | None, *, resume: bool, overwrite: bool) -> Path:
    """The folder for the run of a config named `stem`.

    out: the folder that the user named. None = runs/stem, runs/stem-2, and so on.
    resume, overwrite: without `out`, take the newest of these that a config of that name made.
    Raises UserError if something other than a run is in the way.
    """
    if out is not None:
        return _writable(out, resume or overwrite)
    if stem in (".", "..") or not stem.isprintable():
        raise UserError(f"{stem!r} is no name for a run; name its directory with --out")
    names = os.listdir(RUNS) if RUNS.is_dir() else []
    numbers = sorted(filter(None, (_number(name, stem) for name in names)))
    if resume or overwrite:
        for number in reversed(numbers):
            path = RUNS / _name(stem, number)
            if _made_by(path, stem, number):
                return _writable(path, True)
    return RUNS / _name(stem, numbers[-1] + 1 if numbers else 1)


def _made_by(path: Path, stem: str, number: int) -> bool:
    """Whether a folder is the run of a config of that name.

    Raises UserError if the run does not record its config: exp-2 may be the second run of exp.yaml
    or the first run of exp-2.yaml.
    """
    name = read_environment(path).get("config")
    if isinstance(name, str):
        return name == stem
    if number > 1 and is_run(path):
        raise UserError(
            f"{path}: does not say which config it is of, {stem} or {path.name}; name it with --out"
        )
    return number == 1 or is_unfinished(path)


def claim_folder(stem: str, out: Path | None) -> Path:
    """Make the folder of a new run. If another training makes it first, take the next number."""
    refused = None
    while True:
        path = choose_folder(stem, out, resume=False, overwrite=False)
        try:
            path.mkdir(parents=True, exist_ok=out is not None)
        except OSError as error:
            if isinstance(error, FileExistsError) and path != refused:
                refused = path
                continue
            reason = f"{_dead_link(path)}cannot be made ({error.strerror}); name another --out"
            raise UserError(f"{path}: {reason}") from None
        return path


def _dead_link(path: Path) -> str:
    """A sentence if the path contains a dead link, say to a disk that is not mounted."""
    for link in (path, *path.parents):
        if os.path.islink(link) and not os.path.exists(link):
            return f"{link} is a link to {os.readlink(link)}, which is not there; "
    return ""


class InUse(UserError):
    """A run directory that another training is writing to."""


@contextlib.contextmanager
def locked(path: Path, remedy: str = ", or name another --out") -> Iterator[list[str]]:
    """Lock a run directory, which is made if it does not exist.

    remedy: what the error suggests besides waiting.
    Yields sentences for the user, for example if the file system has no locks. Raises UserError if
    another training holds the lock. The system releases the lock when the process ends.
    """
    with saying_what_failed(path, f"{_dead_link(path)}{LOCK}"):
        path.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path / LOCK, flags, 0o666)
    try:
        yield _lock(path, descriptor, remedy)
    finally:
        os.close(descriptor)


def _lock(path: Path, descriptor: int, remedy: str) -> list[str]:
    unguarded = [f"{path}: no file locks here, so let no other training write into it meanwhile"]
    if fcntl is None:
        return unguarded
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink == 0:  # another training has just left the folder
            raise BlockingIOError
    except BlockingIOError:
        raise InUse(
            f"{path}: another training is writing here; wait for its end or stop it{remedy}"
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):  # some network disks
            return unguarded
        raise
    return []


def delete_run(path: Path) -> list[str]:
    """Delete what training wrote into a run directory; returns what is kept there.

    Raises UserError, and deletes nothing, where a training is writing or may be, and in a folder
    that neither holds the lock of a training nor can be read as a run.
    """
    if not (path / LOCK).is_file():
        read_run(path)
    with locked(path, "") as unguarded:
        if unguarded:
            raise UserError(f"{unguarded[0].partition(',')[0]}; so it is left alone")
        return delete_files(path)


def _name(stem: str, number: int) -> str:
    return stem if number == 1 else f"{stem}-{number}"


def _number(name: str, stem: str) -> int:
    """1 for stem, k for stem-k, 0 for other names."""
    rest = name.removeprefix(f"{stem}-")
    if name == stem or rest == name:
        return int(name == stem)
    number = int(rest) if rest.isascii() and rest.isdigit() and len(rest) < 10 else 0
    return number if number > 1 and rest == str(number) else 0


def _writable(out: Path, may_exist: bool) -> Path:
    """The path, if a run may be written there: nothing, an empty folder, or a run if it may exist.

    Raises UserError for anything else.
    """
    if not os.path.exists(out):
        return out
    if not out.is_dir():
        raise UserError(f"{out}: is a file; name a directory for the run")
    if set(os.listdir(out)) <= {LOCK}:
        return out
    if not may_exist:
        raise UserError(
            f"{out}: not empty; go on with --resume, replace it with --overwrite (in Python: "
            "resume=True, overwrite=True)"
        )
    if (out / REPLACED).exists() and (out / LOCK).exists():
        with locked(out):
            recover(out)
    if is_unfinished(out):
        return out
    if not is_run(out):
        raise UserError(f"{out}: not a run directory, so it is left alone; name another --out")
    try:
        read_run(out)
    except UserError as error:
        raise UserError(f"{error}; {out} is left alone: mend it, or name another --out") from None
    return out
