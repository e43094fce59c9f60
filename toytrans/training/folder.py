"""The folder of a run: which one it is, made and locked.

No run is ever replaced. An existing run is resumed, or another folder is taken.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from toytrans.errors import UserError
from toytrans.files import disk_errors, drafts_in, open_to_append
from toytrans.training.run import (
    DATA,
    ENVIRONMENT,
    METRICS,
    RUNS,
    is_run,
    lock,
    read_environment,
)


def choose_folder(stem: str, out: Path | None, *, resume: bool) -> Path:
    """The folder for the run of a config named `stem`. Nothing is written.

    out: the folder that the user named; None = runs/stem, runs/stem-2, and so on, or the newest of
    these that a config of that name made, to resume it.
    Raises UserError unless the folder is free, or holds a run and that is resumed.
    """
    path = _default_folder(stem, resume) if out is None else out
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        return path
    except OSError as error:
        raise UserError(
            f"{path}: no directory for a run ({error.strerror}); name another --out"
        ) from None
    if is_run(path):
        if resume:
            return path
        raise UserError(
            f"{path}: holds a run; resume it with --resume (in Python: resume=True), or name "
            "another --out"
        )
    # a training that is killed before its run is described leaves no record
    begun = {METRICS, DATA, ENVIRONMENT, *(draft.name for draft in drafts_in(path))}
    file = path / METRICS
    if names and not (names <= begun and file.is_file() and file.stat().st_size == 0):
        raise UserError(
            f"{path}: not empty and not a run directory, so it is left alone; name another --out"
        )
    return path


def _default_folder(stem: str, resume: bool) -> Path:
    if stem in (".", "..") or not stem.isprintable():
        raise UserError(f"{stem!r} is no name for a run; name its directory with --out")
    names = os.listdir(RUNS) if RUNS.is_dir() else []
    pattern = re.compile(re.escape(stem) + "(?:-([2-9]|[1-9][0-9]{1,8}))?")
    numbers = sorted(int(found[1] or 1) for found in map(pattern.fullmatch, names) if found)
    for number in reversed(numbers) if resume else ():
        # runs/exp-2 may be the second run of exp.yaml or the first of exp-2.yaml
        path = _numbered(stem, number)
        if read_environment(path).get("config", stem if number == 1 else "") == stem:
            return path
    return _numbered(stem, numbers[-1] + 1 if numbers else 1)


def _numbered(stem: str, number: int) -> Path:
    return RUNS / (stem if number == 1 else f"{stem}-{number}")


@contextlib.contextmanager
def new_folder(stem: str, out: Path | None) -> Iterator[tuple[Path, str]]:
    """Make the folder of a new run and hold its lock. Yields it and a sentence for the user.

    Without `out`, the next number is taken if another training is faster. Raises UserError.
    """
    while True:
        path = choose_folder(stem, out, resume=False)
        try:
            path.mkdir(parents=True, exist_ok=out is not None)
            break
        except OSError as error:
            if out is not None or not path.is_dir():
                raise UserError(
                    f"{path}: cannot be made ({error.filename}: {error.strerror}); name another "
                    "directory"
                ) from None
    with locked_folder(path) as remark:
        choose_folder(stem, path, resume=False)  # another training may have ended here just now
        yield path, remark


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[str]:
    """Hold the lock of a run's folder. Yields a sentence for the user, empty if all is well.

    Raises UserError if another training holds it.
    """
    with disk_errors(path, METRICS):
        file = open_to_append(path / METRICS)
    with file:
        try:
            has_locks = lock(file)
        except BlockingIOError:
            raise UserError(
                f"{path}: another training is writing here; wait for its end, or stop it"
            ) from None
        remark = f"{path}: no file locks here, so let no other training write into it meanwhile"
        yield "" if has_locks else remark
