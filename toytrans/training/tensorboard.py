"""`train --log-to tensorboard`: a copy of a run's records in RUN/logs/, for TensorBoard to draw.

metrics.jsonl stays the truth: a training that is resumed copies it again, and a copy that fails
ends without ending the training.
"""

import importlib.util
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toytrans.errors import UserError, how_to_install
from toytrans.training.run import Record, RunFolder


def check_tensorboard() -> None:
    """Raise UserError where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            f"--log-to tensorboard: it is not installed; {how_to_install('tensorboard')}"
        )


def copy_to_tensorboard(
    run: Path, step: int, elapsed_s: float, report: Callable[[str], None]
) -> Callable[[Record], None]:
    """Copy the records of a run that has come to a step in some seconds. Returns what copies one
    more.

    report: gets one sentence if copying fails; nothing is copied after that.
    """
    began, failed = time.time() - elapsed_s, False
    file = run / "logs" / f"events.out.tfevents.{time.time_ns()}"

    def append(*events: dict[str, Any]) -> None:
        nonlocal failed
        try:
            if not failed:
                _append(file, events)
        except Exception as error:  # the library may raise anything
            failed = True
            reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            report(f"--log-to tensorboard: stopped ({reason}); metrics.jsonl is complete")

    def event_of(record: Record) -> dict[str, Any]:
        """The numbers of a record: loss as train/loss, valid_loss as valid/loss."""
        values = [
            {"tag": f"train/{key}".replace("train/valid_", "valid/"), "simple_value": value}
            for key, value in record.items()
            if key != "step" and isinstance(value, int | float) and math.isfinite(value)
        ]
        when = began + float(record.get("elapsed_s") or 0.0)
        return {"wall_time": when, "step": record["step"], "summary": {"value": values}}

    # at a START, readers forget what older files in this folder hold, from its step on
    start = {"wall_time": began, "step": 0, "session_log": {"status": "START"}}
    before = [record for record in RunFolder.open(run).records if record["step"] <= step]
    version = {"wall_time": began, "file_version": "brain.Event:2"}
    append(version, start, *map(event_of, before))
    return lambda record: append(event_of(record))


def _append(file: Path, events: tuple[dict[str, Any], ...]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    file.parent.mkdir(exist_ok=True)
    with file.open("ab") as opened:
        for event in events:
            RecordWriter(opened).write(Event(**event).SerializeToString())
