"""The runs of a folder: how far each has come, how good it is, how large."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from toytrans.errors import UserError
from toytrans.files import Unreadable, open_regular
from toytrans.training.checkpoint import Progress, read_progress
from toytrans.training.owned import CHECKPOINTS, CONFIG, DATA, LOCK, saved_steps
from toytrans.training.run import read_run

State = Literal["finished", "unfinished", "being written", "damaged"]


@dataclass(frozen=True)
class RunState:
    """How far a run has come.

    step: of the newest checkpoint; None if there is none.
    max_steps: None if the config cannot be read.
    exact_match: the best on validation data; None before the first evaluation.
    fault: planted on purpose, perhaps sealed.
    problem: why the run is damaged.
    """

    state: State
    step: int | None = None
    max_steps: int | None = None
    exact_match: float | None = None
    fault: str | None = None
    problem: str = ""

    def __str__(self) -> str:
        if self.step is None or self.state == "finished":
            return self.state if self.state != "unfinished" else "unfinished, no checkpoint"
        return f"{self.state}, step {self.step:,} of {self.max_steps:,}"


@dataclass(frozen=True)
class ListedRun:
    """A run in a list.

    changed: when it was last written to, in seconds since 1970.
    size: bytes of its files.
    """

    path: Path
    state: RunState
    changed: float
    size: int

    @property
    def age_s(self) -> float:
        """Seconds since it was last written to."""
        return max(0.0, time.time() - self.changed)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        state = self.state
        return {
            "run": str(self.path),
            "state": state.state,
            "step": state.step,
            "max_steps": state.max_steps,
            "exact_match": state.exact_match,
            "fault": state.fault,
            "problem": state.problem,
            "age_s": round(self.age_s),
            "bytes": self.size,
        }


def state_of(path: Path) -> RunState:
    """How far a run has come. Damage is a state, not an error."""
    try:
        config, _ = read_run(path)
        progress = _newest(path)
    except UserError as error:
        if _is_being_written(path):
            return RunState("being written")
        return RunState("damaged", problem=str(error))
    step = progress.step if progress else None
    best = progress.best_exact_match if progress else -1.0
    state: State = "unfinished"
    if _is_being_written(path):
        state = "being written"
    elif progress and progress.is_finished(config.train):
        state = "finished"
    return RunState(
        state,
        step,
        config.train.max_steps,
        best if best >= 0 else None,
        config.fault,
    )


def _is_being_written(path: Path) -> bool:
    """Whether a training holds the lock of a run."""
    if fcntl is None:
        return False
    try:
        with open_regular(path / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, Unreadable):  # no lock file, or a disk without locks
        return False
    return False


def _newest(path: Path) -> Progress | None:
    """The progress of the newest checkpoint. A training may remove one while it is read."""
    for step in reversed(saved_steps(path)):
        try:
            return read_progress(path, step)
        except UserError:
            if step in saved_steps(path):
                raise
    return None


def list_runs(folder: Path, follow: Callable[[str], None] = lambda _: None) -> Iterator[ListedRun]:
    """The runs in a folder and in the folders below it, the newest first.

    follow: called with the path of each folder that is looked at.
    """
    runs = [_listed(path) for path in _run_folders(folder, follow)]
    yield from sorted(runs, key=lambda run: -run.changed)


def _run_folders(folder: Path, follow: Callable[[str], None]) -> Iterator[Path]:
    """Folders that hold a config and its data, or the lock of a training."""
    for root, names, files in os.walk(folder):
        follow(root)
        is_whole = {CONFIG, DATA} <= set(files)
        if is_whole or (LOCK in files and not _is_of_sweep(names, files)):
            names.clear()
            yield Path(root)


def _is_of_sweep(names: Sequence[str], files: Sequence[str]) -> bool:
    """Whether a folder with a lock holds runs, and is none."""
    return bool(names) and not {CONFIG, DATA, CHECKPOINTS} & {*names, *files}


def _listed(path: Path) -> ListedRun:
    sizes, times = [0], [0.0]
    for root, _, files in os.walk(path):
        for name in files:
            try:
                about = os.lstat(os.path.join(root, name))
            except OSError:  # a training has just removed it
                continue
            sizes.append(about.st_size)
            times.append(about.st_mtime)
    return ListedRun(path, state_of(path), max(times), sum(sizes))
