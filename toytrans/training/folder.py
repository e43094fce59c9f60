"""The folder of a run: which one it is, made and locked.

No run is ever replaced. An existing run is resumed, or another folder is taken.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from toytrans.errors import UserError
from toytrans.files import disk_errors, drafts_in
from toytrans.training.lock import locked
from toytrans.training.run import (
    DATA,
    ENVIRONMENT,
    METRICS,
    RUNS,
    is_run,
    read_environment,
)


def choose_folder(stem: str, out: Path | None, *, resume: bool) -> Path:
    """The folder for the run of a config named `stem`. Nothing is written.

    out: the folder that the user named; None = runs/stem, runs/stem-2, and so on, or the newest of
    these that a config of that name made, to resume it.
    Raises UserError if the folder holds something else than is asked for.
    """
    path = _default_folder(stem, resume) if out is None else out
    check_folder(path, resume=resume)
    return path


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
    if not names or _is_begun(path, names):
        return
    if not is_run(path):
        kind = "not a run directory" if resume else "not empty"
        raise UserError(f"{path}: {kind}, so it is left alone; name another --out")
    if not resume:
        raise UserError(
            f"{path}: holds a run; resume it with --resume (in Python: resume=True), or name "
            "another --out"
        )


def _is_begun(path: Path, names: list[str]) -> bool:
    """Whether a training was killed here before its run was described: no record is lost."""
    metrics = path / METRICS
    ours = {METRICS, DATA, ENVIRONMENT, *(draft.name for draft in drafts_in(path))}
    return set(names) <= ours and metrics.is_file() and metrics.stat().st_size == 0


def _default_folder(stem: str, resume: bool) -> Path:
    if stem in (".", "..") or not stem.isprintable():
        raise UserError(f"{stem!r} is no name for a run; name its directory with --out")
    names = os.listdir(RUNS) if RUNS.is_dir() else []
    pattern = re.compile(re.escape(stem) + "(?:-([2-9]|[1-9][0-9]{1,8}))?")
    numbers = sorted(int(found[1] or 1) for found in map(pattern.fullmatch, names) if found)
    for number in reversed(numbers) if resume else ():
        # runs/exp-2 may be the second run of exp.yaml or the first of exp-2.yaml
        made_by = read_environment(RUNS / _name(stem, number)).get("config")
        if made_by == stem or (made_by is None and number == 1):
            return RUNS / _name(stem, number)
    return RUNS / _name(stem, numbers[-1] + 1 if numbers else 1)


def _name(stem: str, number: int) -> str:
    return stem if number == 1 else f"{stem}-{number}"


@contextlib.contextmanager
def new_folder(stem: str, out: Path | None) -> Iterator[tuple[Path, str]]:
    """Make the folder of a new run and hold its lock. Yields it and a sentence for the user.

    Without `out`, the next number is taken if another training is faster. Raises UserError.
    """
    path = choose_folder(stem, out, resume=False)
    while not _made(path, may_exist=out is not None):
        path = choose_folder(stem, out, resume=False)
    with locked_folder(path) as remark:
        check_folder(path, resume=False)  # another training may have ended here just now
        yield path, remark


def _made(path: Path, *, may_exist: bool) -> bool:
    """Make a folder; whether that is done, or it may exist. Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            if may_exist and not path.is_dir():
                raise
            return may_exist
    except OSError as error:
        reason = f"{_dead_link(path)}cannot be made ({error.strerror})"
        raise UserError(f"{path}: {reason}; name another directory") from None
    return True


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[str]:
    """Hold the lock of a run's folder. Yields a sentence for the user, empty if all is well.

    Raises UserError if another training holds it.
    """
    refusal = f"{path}: another training is writing here; wait for its end, or stop it"
    without = f"{path}: no file locks here, so let no other training write into it meanwhile"
    with contextlib.ExitStack() as lock:
        with disk_errors(path, METRICS):
            has_locks = lock.enter_context(locked(path / METRICS, refusal))
        yield "" if has_locks else without


def _dead_link(path: Path) -> str:
    """A sentence if the path contains a dead link, say to a disk that is not mounted."""
    for link in (path, *path.parents):
        if os.path.islink(link) and not os.path.exists(link):
            return f"{link} is a link to {os.readlink(link)}, which is not there; "
    return ""
