"""`train --log-to tensorboard`: a copy of a run's records, for TensorBoard to draw.

metrics.jsonl -> RUN/logs/

metrics.jsonl stays the truth: a training that is resumed copies it again, and a copy that fails
ends without ending the training.
"""

import importlib.util
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from toytrans.errors import UserError, how_to_install
from toytrans.training.run import Record, RunFolder

LOGS = "logs"

Event = dict[str, Any]
"""The fields of an event of TensorBoard's."""


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
    file, began = run / LOGS / f"events.out.tfevents.{time.time_ns()}", time.time() - elapsed_s
    failed = False

    def append(events: Iterable[Event]) -> None:
        nonlocal failed
        try:
            if not failed:
                _append(file, events)
        except Exception as error:  # the library may raise anything
            failed = True
            first = next(iter(str(error).splitlines()), "")[:200]
            reason = f"{type(error).__name__}: {first}"
            report(f"--log-to tensorboard: stopped ({reason}); metrics.jsonl is complete")

    def event_of(record: Record) -> Event:
        when = began + float(record.get("elapsed_s") or 0.0)
        return {"wall_time": when, "step": record["step"], "summary": {"value": _values(record)}}

    def so_far() -> Iterator[Event]:
        yield {"wall_time": began, "file_version": "brain.Event:2"}
        # readers forget what older files in this folder hold, from step 0 on
        yield {"wall_time": began, "step": 0, "session_log": {"status": "START"}}
        records = RunFolder.open(run).records
        yield from (event_of(record) for record in records if record["step"] <= step)

    append(so_far())
    return lambda record: append([event_of(record)])


def _append(file: Path, events: Iterable[Event]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event as Message
    from tensorboard.summary.writer.record_writer import RecordWriter

    file.parent.mkdir(exist_ok=True)
    with file.open("ab") as opened:
        for event in events:
            RecordWriter(opened).write(Message(**event).SerializeToString())


def _values(record: Record) -> list[dict[str, Any]]:
    """The numbers of a record but its step: valid_loss as valid/loss, loss as train/loss."""
    return [
        {"tag": tag.replace("train/valid_", "valid/"), "simple_value": value}
        for tag, value in ((f"train/{key}", value) for key, value in record.items())
        if tag != "train/step" and isinstance(value, int | float) and math.isfinite(value)
    ]
