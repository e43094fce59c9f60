"""The runs in a folder: all of them for `toytrans runs`, and the newest one, which commands take
where none is named."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toytrans.config.faults import is_hidden
from toytrans.errors import UserError
from toytrans.training.checkpoint import saved_steps
from toytrans.training.folder import METRICS, MODEL, RESOLVED, RUNS, is_run, is_saved_model
from toytrans.training.run import Run, RunState, state_of


def newest_run() -> Path:
    """The newest run in runs/ and below, so of sweeps too, that has a checkpoint and is no
    exercise.

    Raises UserError if there is none.
    """
    runs = [path for path in run_folders(RUNS) if is_run(path) and saved_steps(path)]
    for path in sorted(runs, key=_written_at, reverse=True):
        with contextlib.suppress(UserError):  # the command that opens it raises it again
            if is_hidden(Run.open(path).settings.fault):
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
    return sorted(map(_listed, run_folders(folder, follow)), key=lambda run: run.age_s)


def run_folders(folder: Path, follow: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """The run directories in a folder and below it, those among them that are just begun."""
    for root, names, files in os.walk(folder):
        follow(root)
        if METRICS in files or is_run(Path(root)):
            names.clear()
            yield Path(root)


def _listed(path: Path) -> ListedRun:
    sizes, times = [0], [0.0]
    for root, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):  # a training has just removed it
                about = os.lstat(os.path.join(root, name))
                sizes.append(about.st_size)
                times.append(about.st_mtime)
    age = max(0.0, time.time() - max(times))
    return ListedRun(path, state_of(path), age, sum(sizes))
