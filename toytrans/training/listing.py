"""The runs in a folder: all of them for `toytrans runs`, and the newest one, which commands take
where none is named."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toytrans.config.faults import is_hidden
from toytrans.errors import UserError
from toytrans.training.checkpoint import saved_steps
from toytrans.training.folder import METRICS, MODEL, RESOLVED, RUNS, is_run, is_saved_model
from toytrans.training.run import Run, RunState, state_of


def newest_run() -> Path:
    """The newest run under runs/ that has a checkpoint and is no exercise.

    Raises UserError if there is none.
    """
    entries = RUNS.iterdir() if RUNS.is_dir() else ()
    runs = [path for path in entries if is_run(path) and saved_steps(path)]
    for path in sorted(runs, key=_written_at, reverse=True):
        with contextlib.suppress(UserError):  # the command that opens it raises it again
            if is_hidden(Run.open(path).config.fault):
                continue
        return path
    raise UserError(
        f"{RUNS}: no run here yet; train one, say `toytrans train textbook`, or name a run "
        "directory"
    )


def _written_at(run: Path) -> int:
    """When a run was described, in nanoseconds."""
    return (run / (MODEL if is_saved_model(run) else RESOLVED)).stat().st_mtime_ns


@dataclass(frozen=True)
class ListedRun:
    """A run as a list shows it.

    age_s: seconds since it was last written to. size: bytes of its files.
    """

    path: Path
    state: RunState
    age_s: float
    size: int


def list_runs(folder: Path, follow: Callable[[str], None] = lambda _: None) -> list[ListedRun]:
    """The runs in a folder and in the folders below it, the newest first.

    follow: called with the path of each folder that is looked at.
    """
    runs = []
    for root, names, files in os.walk(folder):
        follow(root)
        if METRICS in files or is_run(Path(root)):
            names.clear()
            sizes, times = [0], [0.0]
            for inner, _, inside in os.walk(root):
                for name in inside:
                    with contextlib.suppress(OSError):  # a training has just removed it
                        about = os.lstat(os.path.join(inner, name))
                        sizes.append(about.st_size)
                        times.append(about.st_mtime)
            age = max(0.0, time.time() - max(times))
            runs.append(ListedRun(Path(root), state_of(Path(root)), age, sum(sizes)))
    return sorted(runs, key=lambda run: run.age_s)
