"""Copies of a run's records for other programs: TensorBoard, Weights & Biases, MLflow.

    metrics.jsonl -> a thread for each logger -> RUN/logs/NAME/

metrics.jsonl stays the truth. A logger may fail or hang: training goes on without it. Each log
bears the run's id and remembers its last step, so that a resumed run goes on in it, and one that
replaces the run begins another. No logger connects to a network.
"""

import contextlib
import importlib.util
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from toytrans.config.names import LoggerName
from toytrans.config.schema import Config
from toytrans.errors import UserError, did_you_mean, how_to_install
from toytrans.files import read_whole, write_file
from toytrans.training.run import Record, RunFolder

LOGS = "logs"

SECONDS_BEFORE_NOTICE, SECONDS_TO_END = 2.0, 60.0
"""The end of a training waits so long for a logger before it says so, and in all."""


class LoggedRun(NamedTuple):
    """What a logger knows of a run. folder: where its files go; began: seconds since 1970."""

    path: Path
    id: str
    config: Config
    folder: Path
    began: float

    def values(self) -> dict[str, Any]:
        """The config by dotted keys."""
        return dict(_flat("", self.config.model_dump(mode="json")))

    def time_of(self, record: Record) -> float:
        """When a record was made, in seconds since 1970, pauses left out."""
        return self.began + float(record.get("elapsed_s") or 0.0)


Log = Callable[[Record], None]


def _numbers(record: Record) -> dict[str, float]:
    """The numbers of a record but its step: valid_loss as valid/loss, loss as train/loss."""
    kept = ((_tag(key), value) for key, value in record.items() if key != "step")
    return {k: float(v) for k, v in kept if isinstance(v, int | float) and math.isfinite(v)}


def _tag(key: str) -> str:
    name = key.removeprefix("valid_")
    return f"train/{key}" if name == key else f"valid/{name}"


def _flat(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


# The loggers -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _tensorboard(run: LoggedRun) -> Iterator[Log]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(run.folder / run.id) as writer:

        def log(record: Record) -> None:
            for name, value in _numbers(record).items():
                writer.add_scalar(name, value, record["step"], walltime=run.time_of(record))
            writer.flush()

        yield log


@contextlib.contextmanager
def _wandb(run: LoggedRun) -> Iterator[Log]:
    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    import wandb

    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        save_code=False,
        disable_job_creation=True,
        x_disable_stats=True,
        x_disable_meta=True,
    )
    log_to = wandb.init(
        mode="offline",
        project="toytrans",
        id=run.id,
        name=run.path.name,
        dir=run.folder.parent,  # it adds "wandb"
        config=run.values(),
        settings=settings,
    )
    try:
        yield lambda record: log_to.log(_numbers(record), step=record["step"])
    finally:
        log_to.finish()


@contextlib.contextmanager
def _mlflow(run: LoggedRun) -> Iterator[Log]:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # MLflow 3 asks for a database otherwise
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=run.folder.resolve().as_uri())
    experiment = client.get_experiment_by_name("toytrans")
    number = experiment.experiment_id if experiment else client.create_experiment("toytrans")
    known = client.search_runs([number], f"tags.toytrans_id = '{run.id}'")
    if known:
        log_to = known[0].info.run_id
    else:
        tags = {"toytrans_id": run.id}
        log_to = client.create_run(number, tags=tags, run_name=run.path.name).info.run_id
        params = [Param(key, str(value)) for key, value in run.values().items()]
        client.log_batch(log_to, params=params)

    def log(record: Record) -> None:
        at, step = int(run.time_of(record) * 1000), record["step"]
        client.log_batch(log_to, [Metric(*each, at, step) for each in _numbers(record).items()])

    client.update_run(log_to, status="RUNNING")
    yield log
    client.set_terminated(log_to)


OPEN: dict[LoggerName, Callable[[LoggedRun], AbstractContextManager[Log]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


# Feeding them ----------------------------------------------------------------------------------


def usable(names: Sequence[str]) -> list[LoggerName]:
    """The loggers of these names. Raises UserError where there is none, or its library is
    missing."""
    chosen: list[LoggerName] = []
    for name in dict.fromkeys(names):
        logger = next((logger for logger in OPEN if logger == name), None)
        if logger is None:
            raise UserError(f"--log-to {name}: no such logger; {did_you_mean(name, list(OPEN))}")
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name is none
            package = "mlflow-skinny" if name == "mlflow" else name
            raise UserError(f"--log-to {name}: {name} is not installed; {how_to_install(package)}")
        chosen.append(logger)
    return chosen


@contextlib.contextmanager
def open_loggers(
    names: Sequence[LoggerName],
    path: Path,
    config: Config,
    elapsed_s: float,
    report: Callable[[str], None],
) -> Iterator[Log]:
    """Loggers for a run that has trained for some seconds. Yields what gives them a record.

    report: gets one sentence about each logger that fails.
    """
    run = RunFolder.open(path) if names else None
    id, began = str(run.id) if run else "", time.time() - elapsed_s
    history = run.records if run else []
    workers = [
        _Worker(name, LoggedRun(path, id, config, path / LOGS / name, began), history)
        for name in names
    ]
    for worker in workers:
        worker.start()

    def log(record: Record) -> None:
        for worker in workers:
            worker.records.put(record)
        _report(workers, report)

    try:
        yield log
    finally:
        _end(workers, report)
        _report(workers, report)


def _end(workers: "list[_Worker]", report: Callable[[str], None]) -> None:
    """Let all loggers end, but wait for none for long."""
    for worker in workers:
        worker.records.put(None)
    began = time.monotonic()
    for seconds in (SECONDS_BEFORE_NOTICE, SECONDS_TO_END):
        for worker in workers:
            worker.join(max(0.0, began + seconds - time.monotonic()))
        late = [worker for worker in workers if worker.is_alive()]
        if late and seconds < SECONDS_TO_END:
            report(f"waiting for {', '.join(worker.name for worker in late)}")
    for worker in late:
        worker.problem = f"has not ended after {SECONDS_TO_END:.0f} s"


def _report(workers: "list[_Worker]", report: Callable[[str], None]) -> None:
    """Report the loggers that have failed, and take them out."""
    for worker in [worker for worker in workers if worker.problem]:
        report(f"--log-to {worker.name}: {worker.problem}; metrics.jsonl is complete")
        workers.remove(worker)


class _Worker(threading.Thread):
    """Gives records to one logger. A library may be slow to import, and slow on a slow disk."""

    def __init__(self, name: LoggerName, run: LoggedRun, history: list[Record]) -> None:
        super().__init__(name=name, daemon=True)
        self.logger, self.logged, self.history = name, run, history
        self.records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self.problem = ""
        """Why the logger has stopped."""

    def run(self) -> None:
        try:
            self._feed()
        except Exception as error:  # a library may raise anything
            first = next(iter(str(error).splitlines()), "")[:200]
            self.problem = f"stopped ({type(error).__name__}: {first})"

    def _feed(self) -> None:
        folder = self.logged.folder
        if folder.is_symlink() or folder.parent.is_symlink():
            raise UserError(f"{folder}: a link, and nothing is written through it")
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / f"{self.logged.id}.step"
        last = int(read_whole(mark, 100)) if mark.exists() else -1
        with OPEN[self.logger](self.logged) as log:
            for record in chain(self.history, iter(self.records.get, None)):
                if record["step"] > last:
                    log(record)
                    last = record["step"]
                    write_file(mark, str(last).encode())
