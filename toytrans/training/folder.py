"""The folder of a run: the files in it, where a new one is made, and who holds its lock.

    config.yaml        the config as it was given
    resolved.yaml      the settings that followed: every key with its value
    data.json          vocabulary, training lengths: what a run remembers of its data
    environment.json   versions, device, precision, what else can change numbers
    metrics.jsonl      one record a line, only appended to; the training holds its lock
    checkpoints.json   checkpoints/step-N.safetensors: see checkpoint.py
    snapshots/         weights of a few steps for the live page: see snapshots.py

A folder that no training wrote may hold a model that a live page or `export` has saved, as a run of
one checkpoint:

    config.yaml        the config of the model
    model.safetensors  its weights

`RunWriter` writes them, and `Run` reads them. The lock is that of the open metrics.jsonl, which the
system releases when the process ends, however it ends. Linux has locks of open files (OFD), which
can be asked about without taking one. Other systems have flock; Windows and some network disks have
no locks.
"""

import json
import os
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from toytrans.errors import UserError
from toytrans.files import Unreadable, drafts_in, open_regular, read_whole

CONFIG, RESOLVED = "config.yaml", "resolved.yaml"
DATA, ENVIRONMENT, METRICS = "data.json", "environment.json", "metrics.jsonl"
MODEL = "model.safetensors"

RUNS = Path("runs")
"""The folder of runs without --out."""

MOST_BYTES = 100_000_000
"""Of a run's description: its vocabulary may be as large as a training file."""

Record = dict[str, Any]
"""One line of metrics.jsonl. `step` is always there. A number is None where it was not finite, and
`diverged` then names it; what was not measured is missing."""


# What a folder holds ---------------------------------------------------------------------------


def is_run(path: Path) -> bool:
    """Whether a path is a run directory, of a training or of a model that was saved."""
    return is_trained_run(path) or is_saved_model(path)


def is_trained_run(path: Path) -> bool:
    """Whether a path is the run directory of a training."""
    # os.path and not Path.is_file, which raises an error for a name that is too long
    return os.path.isfile(path / RESOLVED) and os.path.isfile(path / DATA)


def is_saved_model(path: Path) -> bool:
    """Whether a folder holds a model that was saved beside its config, and no training."""
    has_both = os.path.isfile(path / CONFIG) and os.path.isfile(path / MODEL)
    return has_both and not os.path.exists(path / RESOLVED)


def read_environment(path: Path) -> dict[str, Any]:
    """The contents of environment.json; empty if it cannot be read."""
    try:
        environment = json.loads(read_whole(path / ENVIRONMENT, MOST_BYTES))
    except (OSError, UserError, ValueError, RecursionError):
        return {}
    return environment if isinstance(environment, dict) else {}


def check_folder_is_free(path: Path) -> None:
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
    if is_saved_model(path):
        raise UserError(
            f"{path}: holds a saved model, which no training can go on with; name another --out"
        )
    if is_run(path):
        raise UserError(
            f"{path}: holds a run; resume it with --resume (in Python: resume=True), or name "
            "another --out"
        )
    begun = {METRICS, DATA, ENVIRONMENT, *(draft.name for draft in drafts_in(path))}
    if names >= {DATA, ENVIRONMENT}:  # written before the config; else that is a user's
        begun.add(CONFIG)
    file = path / METRICS
    if names and not (names <= begun and file.is_file() and file.stat().st_size == 0):
        raise UserError(
            f"{path}: not empty and not a run directory, so it is left alone; name another --out"
        )


# Which folder it is ----------------------------------------------------------------------------


def next_folder(stem: str) -> Path:
    """The folder of the next run of a config: runs/stem, or runs/stem-2 and so on. Raises UserError
    for a name that no folder can have."""
    if stem in (".", "..") or not stem.isprintable():
        raise UserError(f"{stem!r} is no name for a run; name its directory with --out")
    taken = _taken_names(stem)
    return RUNS / (f"{stem}-{max(taken) + 1}" if taken else stem)


def run_to_resume(stem: str, out: Path | None) -> Path | None:
    """The run that --resume goes on with, if there is one: in the folder that the user named, or
    the newest below runs/ that a config of this name made."""
    if out is not None:
        return out if is_trained_run(out) else None
    taken = _taken_names(stem)
    for number in sorted(taken, reverse=True):
        # runs/exp-2 may be the second run of exp.yaml or the first of exp-2.yaml
        path = RUNS / taken[number]
        made_by = read_environment(path).get("config", stem if number == 1 else "")
        if made_by == stem and is_trained_run(path):
            return path
    return None


def _taken_names(stem: str) -> dict[int, str]:
    """The names stem, stem-2, ... that are in runs/, by number."""
    pattern = re.compile(re.escape(stem) + "(?:-([2-9]|[1-9][0-9]{1,8}))?")
    names = os.listdir(RUNS) if RUNS.is_dir() else []
    return {int(found[1] or 1): found[0] for found in map(pattern.fullmatch, names) if found}


# Its lock --------------------------------------------------------------------------------------


def take_lock(metrics: BinaryIO) -> bool:
    """Take the lock of an open metrics.jsonl. Returns whether there are locks on this system.

    Raises BlockingIOError if another process holds it.
    """
    try:
        if hasattr(fcntl, "F_OFD_SETLK"):
            fcntl.fcntl(metrics, fcntl.F_OFD_SETLK, _request())
        elif fcntl is not None:
            fcntl.flock(metrics, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some systems say the latter
        raise BlockingIOError from None
    except OSError:
        return False
    return fcntl is not None


def is_being_written(path: Path) -> bool:
    """Whether a training holds the lock of a run. False where that cannot be asked without taking
    the lock."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        with open_regular(path / METRICS) as file:
            answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _request())
    except (OSError, Unreadable):
        return False
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def _request() -> bytes:
    """A `struct flock` that asks for an exclusive lock of the whole file."""
    return struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
