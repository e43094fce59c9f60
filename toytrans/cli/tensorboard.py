"""`toytrans train --log-to tensorboard`: the records of a run, in RUN/logs for TensorBoard to draw.

metrics.jsonl stays the truth. A training that is resumed copies all records again, and TensorBoard
drops what older files say of the same steps. The library may raise anything; a note then says so,
and training goes on without it.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toytrans.cli.terminal import note
from toytrans.training.checkpoint import Progress
from toytrans.training.folder import Record
from toytrans.training.run import Run


@contextmanager
def copied_to_tensorboard(run: Path, progress: Progress) -> Iterator[Callable[[Record], None]]:
    """Copy the records of a run up to its progress. Yields what copies one more."""
    log = TensorBoardLog(run / "logs", began=time.time() - progress.elapsed_s)
    log.add(record for record in Run.open(run).records if record["step"] <= progress.step)

    def add_one(record: Record) -> None:
        log.add([record])

    try:
        yield add_one
    finally:
        log.close()


class TensorBoardLog:
    """A folder of events, which closes at the first error.

    began: when the training would have begun if it had never paused, in seconds since 1970.
    """

    def __init__(self, folder: Path, began: float) -> None:
        self.began = began
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder), purge_step=0, flush_secs=5)
        except Exception as error:
            self._give_up(error)

    def add(self, records: Iterable[Record]) -> None:
        """Add the numbers of records: loss as train/loss, valid_loss as valid/loss."""
        for record in records:
            when = self.began + float(record.get("elapsed_s") or 0.0)
            try:
                for tag, value in _scalars(record):
                    if self.writer is not None:
                        self.writer.add_scalar(tag, value, record["step"], walltime=when)
            except Exception as error:
                self._give_up(error)

    def close(self) -> None:
        """Write out what is left, and close the files."""
        try:
            if self.writer is not None:
                self.writer.close()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.writer = None
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        note(f"--log-to tensorboard: stopped ({reason}); metrics.jsonl is complete")


def _scalars(record: Record) -> Iterator[tuple[str, float]]:
    """The finite numbers of a record, each with its tag."""
    for key, value in record.items():
        if key != "step" and isinstance(value, int | float) and math.isfinite(value):
            yield f"valid/{key[6:]}" if key.startswith("valid_") else f"train/{key}", value
