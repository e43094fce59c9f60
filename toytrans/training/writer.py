"""The one writer of a run: it makes the folder, holds the lock, and writes the description of the
run, its records and its checkpoints. Of several processes only the first has one."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toytrans.config.load import as_yaml
from toytrans.config.schema import Config, Settings
from toytrans.data.pairs import DataFacts
from toytrans.errors import UserError
from toytrans.files import (
    append_line,
    check_free,
    disk_errors,
    json_text,
    open_to_append,
    write_file,
    write_json,
)
from toytrans.training.checkpoint import (
    LIST,
    Progress,
    Tensors,
    save_checkpoint,
    try_to_save,
)
from toytrans.training.folder import (
    CONFIG,
    DATA,
    ENVIRONMENT,
    METRICS,
    RESOLVED,
    Record,
    check_folder_is_free,
    next_folder,
    take_lock,
)
from toytrans.training.provenance import TrainedWith, trained_with


class RunWriter:
    """Writes to a run directory.

    note: a sentence for the user if this system has no locks; else empty.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.note = path, ""
        self._locked: os.stat_result | None = None
        self._trained_with: TrainedWith | None = None
        self._is_described = False

    @contextlib.contextmanager
    def locked(self) -> Iterator["RunWriter"]:
        """Hold the lock of the run, until the block or the process ends. Raises UserError if
        another training holds it."""
        metrics = self.path / METRICS
        with disk_errors(self.path, METRICS):
            file = open_to_append(metrics)
        with file:
            try:
                has_locks = take_lock(file)
            except BlockingIOError:
                raise UserError(
                    f"{self.path}: another training is writing here; wait for its end, or stop it"
                ) from None
            if not has_locks:
                self.note = (
                    f"{self.path}: no file locks here, so let no other training write into it "
                    "meanwhile"
                )
            self._locked = os.fstat(file.fileno())
            yield self

    def describe(
        self, given: Config, settings: Settings, facts: DataFacts, environment: dict[str, Any]
    ) -> None:
        """Write the description of the run, or write it again if the run is resumed.

        Raises UserError, before it writes, if a link or a folder has the name of one of its files.
        """
        self._trained_with = trained_with(settings)
        vocabulary = facts.vocabulary
        data = {
            "symbols": vocabulary.symbols,
            "separators": vocabulary.separators,
            "unknown": vocabulary.unknown,
            "train_length": facts.train_length,
            "target_growth": facts.target_growth,
            "train_sha256": facts.train_sha256,
        }
        with disk_errors(self.path, "the run's description"):
            self.path.mkdir(parents=True, exist_ok=True)
            for name in (DATA, ENVIRONMENT, CONFIG, RESOLVED, LIST):
                check_free(self.path / name, replace=True)
            write_file(self.path / DATA, (json.dumps(data, ensure_ascii=False) + "\n").encode())
            write_json(self.path / ENVIRONMENT, environment)
            write_file(self.path / CONFIG, as_yaml(given, self.path).encode())
            write_file(self.path / RESOLVED, as_yaml(settings, self.path).encode())
        self._is_described = True

    def remove_undescribed(self) -> None:
        """Remove what was written of a new run that was refused before it was described whole."""
        if not self._is_described:
            for name in (CONFIG, ENVIRONMENT, DATA, METRICS):
                with contextlib.suppress(OSError):
                    (self.path / name).unlink()

    def append(self, record: Record) -> None:
        """Add a line to metrics.jsonl. NaN and infinity become null."""
        self._check_still_here()
        with disk_errors(self.path, METRICS):
            append_line(self.path / METRICS, f"{json_text(record)}\n".encode())

    def save(self, progress: Progress, tensors: Tensors, keep: int) -> None:
        """Write a checkpoint, and delete older ones except the newest `keep` and the best.

        Raises UserError if it cannot be written; older checkpoints then stay as they were.
        """
        self._check_still_here()
        save_checkpoint(self.path, progress, tensors, keep, self._trained_with)

    def try_to_save(self, progress: Progress, tensors: Tensors) -> None:
        """Write a checkpoint and remove it. Raises UserError if it cannot be written."""
        self._check_still_here()
        try_to_save(self.path, progress, tensors)

    def _check_still_here(self) -> None:
        """Raise UserError if the folder no longer holds the file that is locked."""
        file, here = self.path / METRICS, None
        with contextlib.suppress(OSError):
            here = os.lstat(file)
        if self._locked and not (here and os.path.samestat(self._locked, here)):
            raise UserError(
                f"{file}: moved or replaced while training; go on with --resume where the run is"
            )


@contextlib.contextmanager
def new_run(stem: str, out: Path | None) -> Iterator[RunWriter]:
    """Make the folder of a new run and hold its lock. Yields its writer.

    stem: the name of the config. out: the folder that the user named; None = runs/stem, or
    runs/stem-2 and so on, whichever is free. It goes again if the block ends before it has
    described the run.
    Raises UserError if the folder holds anything already.
    """
    while True:
        path = out or next_folder(stem)
        check_folder_is_free(path)
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
            check_folder_is_free(path)  # another training may have ended here just now
            try:
                yield writer
            finally:
                writer.remove_undescribed()
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it holds something
                path.rmdir()
