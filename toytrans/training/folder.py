"""Which directory a run is in: the one that the user names, or the next free one below runs/."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from toytrans.config.faults import is_hidden
from toytrans.errors import UserError
from toytrans.files import drafts_in
from toytrans.training.checkpoint import saved_steps
from toytrans.training.run import (
    DATA,
    ENVIRONMENT,
    METRICS,
    RESOLVED,
    Run,
    RunState,
    is_run,
    read_environment,
    state_of,
)
from toytrans.training.writer import RunWriter

RUNS = Path("runs")
"""The folder of runs without --out."""


# To write to ----------------------------------------------------------------------------------


@contextlib.contextmanager
def new_folder(stem: str, out: Path | None) -> Iterator[RunWriter]:
    """Make the folder of a new run and hold its lock. Yields its writer.

    stem: the name of the config. out: the folder that the user named; None = runs/stem, or
    runs/stem-2 and so on, whichever is free. It goes again if the block ends with an error before
    it has described the run.
    Raises UserError if the folder holds anything already.
    """
    while True:
        path = out or RUNS / _next_name(stem)
        check_free(path)
        is_new = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=out is not None)
            break
        except OSError as error:
            if out is not None or not path.is_dir():  # else another training was faster
                raise UserError(
                    f"{path}: cannot be made ({error.filename}: {error.strerror}); name another "
                    "directory"
                ) from None
    try:
        with RunWriter(path).locked() as writer:
            check_free(path)  # another training may have ended here just now
            yield writer
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # it holds something
                path.rmdir()
        raise


def run_to_resume(stem: str, out: Path | None) -> Path | None:
    """The run that --resume goes on with, if there is one: in the folder that the user named, or
    the newest below runs/ that a config of this name made."""
    if out is not None:
        return out if is_run(out) else None
    taken = _taken_names(stem)
    for number in sorted(taken, reverse=True):
        # runs/exp-2 may be the second run of exp.yaml or the first of exp-2.yaml
        path = RUNS / taken[number]
        made_by = read_environment(path).get("config", stem if number == 1 else "")
        if made_by == stem and is_run(path):
            return path
    return None


def check_free(path: Path) -> None:
    """Raise UserError unless a folder for a new run is free: it does not exist, is empty, or holds
    what a training left that was killed before it had described its run."""
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(
            f"{path}: no directory for a run ({error.strerror}); name another --out"
        ) from None
    if is_run(path):
        raise UserError(
            f"{path}: holds a run; resume it with --resume (in Python: resume=True), or name "
            "another --out"
        )
    begun = {METRICS, DATA, ENVIRONMENT, *(draft.name for draft in drafts_in(path))}
    file = path / METRICS
    if names and not (names <= begun and file.is_file() and file.stat().st_size == 0):
        raise UserError(
            f"{path}: not empty and not a run directory, so it is left alone; name another --out"
        )


def _next_name(stem: str) -> str:
    if stem in (".", "..") or not stem.isprintable():
        raise UserError(f"{stem!r} is no name for a run; name its directory with --out")
    taken = _taken_names(stem)
    return f"{stem}-{max(taken) + 1}" if taken else stem


def _taken_names(stem: str) -> dict[int, str]:
    """The names stem, stem-2, ... that are in runs/, by number."""
    pattern = re.compile(re.escape(stem) + "(?:-([2-9]|[1-9][0-9]{1,8}))?")
    names = os.listdir(RUNS) if RUNS.is_dir() else []
    return {int(found[1] or 1): found[0] for found in map(pattern.fullmatch, names) if found}


# To read --------------------------------------------------------------------------------------


def newest_run() -> Path:
    """The newest run under runs/ that has a checkpoint and is no exercise.

    Raises UserError if there is none.
    """
    entries = RUNS.iterdir() if RUNS.is_dir() else ()
    runs = [path for path in entries if is_run(path) and saved_steps(path)]
    for path in sorted(runs, key=lambda run: (run / RESOLVED).stat().st_mtime_ns, reverse=True):
        with contextlib.suppress(UserError):  # the command that opens it raises it again
            if is_hidden(Run.open(path).config.fault):
                continue
        return path
    raise UserError(
        f"{RUNS}: no run here yet; train one, say `toytrans train textbook`, or name a run "
        "directory"
    )


def list_runs(
    folder: Path, follow: Callable[[str], None] = lambda _: None
) -> list[tuple[Path, RunState, float, int]]:
    """The runs in a folder and in the folders below it, the newest first.

    Of each: its path, its state, seconds since it was last written to, and bytes of its files.
    follow: called with the path of each folder that is looked at.
    """
    runs = []
    for root, names, files in os.walk(folder):
        follow(root)
        if METRICS in files or {RESOLVED, DATA} <= set(files):
            names.clear()
            sizes, times = [0], [0.0]
            for inner, _, inside in os.walk(root):
                for name in inside:
                    with contextlib.suppress(OSError):  # a training has just removed it
                        about = os.lstat(os.path.join(inner, name))
                        sizes.append(about.st_size)
                        times.append(about.st_mtime)
            age = max(0.0, time.time() - max(times))
            runs.append((Path(root), state_of(Path(root)), age, sum(sizes)))
    return sorted(runs, key=lambda run: run[2])
