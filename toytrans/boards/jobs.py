"""The trainings of a board: one process each, as many at once as there are cores.

    Job -> runs/boards/NAME/TASK-VARIANT-SEED-HASH/ -> result.json

A job with its result is done. An interrupted job continues from its last checkpoint, or with the
first missing measure. The hash is of the config and the contents of its files: a changed config is
trained anew. A changed measure is only measured anew. A result that cannot be read is refused, not
overwritten; if it is removed, the trained model is measured again.
"""

import contextlib
import hashlib
import math
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from toytrans.boards.definition import SEEDS, Board, Measure, Variant, config_of
from toytrans.config import Config
from toytrans.config_file import save_config
from toytrans.data import open_source
from toytrans.data.files import sha256_of
from toytrans.data.pairs import all_pairs
from toytrans.errors import UserError
from toytrans.evaluation import evaluate
from toytrans.model.initialisation import count_parameters
from toytrans.safe_io import read_json
from toytrans.training import devices
from toytrans.training.checkpoint import Count
from toytrans.training.machine import usable_cores
from toytrans.training.owned import saying_what_failed
from toytrans.training.run import RUNS, read_records
from toytrans.training.session import Request, open_session
from toytrans.training.signals import exit_if_signalled
from toytrans.training.trainer import Trainer
from toytrans.training.writing import write_json

RESULT = "result.json"

QUICK_PAIRS = 50
"""Pairs of a measure under --quick, at most."""


@dataclass(frozen=True)
class Job:
    """One training and what is measured of it."""

    task: str
    variant: Variant
    config: Config
    measures: dict[str, Measure]
    folder: Path
    """of the board's runs"""

    @cached_property
    def config_by_names(self) -> Config:
        """The config with its files by their names, whatever folder they lie in."""
        files = self.config.data.files
        if files is None:
            return self.config
        names = {part: Path(path).name for part, path in self._files().items()}
        data = self.config.data.model_copy(update={"files": files.model_copy(update=names)})
        return self.config.model_copy(update={"data": data})

    def _files(self) -> dict[str, str]:
        """Paths of the files that the config names."""
        named = self.config.data.files
        paths = {part: getattr(named, part, None) for part in ("train", "valid", "test")}
        return {part: path for part, path in paths.items() if isinstance(path, str)}

    @cached_property
    def config_sha256(self) -> str:
        return hashlib.sha256(save_config(self.config_by_names).encode()).hexdigest()

    @cached_property
    def path(self) -> Path:
        """The run directory, named by the hash of the config and of what is in its files."""
        digest = self.config_sha256
        for path in self._files().values():
            digest = hashlib.sha256(f"{digest} {sha256_of(path)}".encode()).hexdigest()
        return self.folder / f"{self.task}-{self.variant}-{self.config.seed}-{digest[:8]}"

    def so_far(self) -> dict[str, Any] | None:
        """The result of the training, with the measures that are still asked for; None before its
        end. Raises UserError for a file that no training writes."""
        result = _read_result(self.path / RESULT)
        if result is not None:
            taken = result["measures"]
            result["measures"] = {
                name: taken[name]
                for name, measure in self.measures.items()
                if name in taken and taken[name]["asked"] == _asked(measure)
            }
        return result

    def result(self) -> dict[str, Any] | None:
        """The result, if every measure has been taken."""
        result = self.so_far()
        return result if result and len(result["measures"]) == len(self.measures) else None

    def share_done(self) -> float:
        """Proportion that is done: training counts half, the measures the other half."""
        if (result := self.so_far()) is not None:
            return 0.5 + 0.5 * len(result["measures"]) / len(self.measures)
        records = read_records(self.path)
        return 0.5 * int(records[-1]["step"]) / self.config.train.max_steps if records else 0.0


class _Plain(BaseModel):
    """Known keys have types; other keys hold plain values."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, str | Count | float | None]


class _Taken(_Plain):
    """A measure, as `_measured` makes it. None: the number was not finite."""

    asked: dict[str, Any]
    value: float | None
    loss: float | None
    exact_match: float
    forced_exact_match: float
    token_accuracy: float
    free_token_accuracy: float
    by_length: dict[Annotated[str, Field(pattern=r"^[0-9]{1,6}$")], float] = {}


class _Result(_Plain):
    """result.json, as `train_and_measure` makes it."""

    train_s: float = 0.0
    measures: dict[str, _Taken]


def _read_result(path: Path) -> dict[str, Any] | None:
    """The contents of result.json, if it exists. Raises UserError."""
    otherwise = "not what a training writes; remove it, and the trained model is measured again"
    result = read_json(path, _Result, otherwise)
    return result.model_dump(exclude_unset=True) if result else None


def _asked(measure: Measure) -> dict[str, Any]:
    """The keys of a measure that its number depends on, as JSON."""
    return measure.model_dump(mode="json", include={"lengths", "pairs", "decode", "metric"})


def jobs_of(name: str, board: Board, *, quick: bool, files: Path | None) -> list[Job]:
    """All trainings of a board, seed by seed. Raises UserError where files are missing."""
    folder = RUNS / "boards" / (f"{name}-quick" if quick else name)
    variants: tuple[Variant, ...] = ("ours", "control")
    every = [
        Job(
            task,
            variant,
            config_of(board, task, variant, seed, quick=quick, files=files),
            {
                key: _measure(measure, variant, quick)
                for key, measure in entry.measures.items()
                if variant == "ours" or measure.control != 0
            },
            folder,
        )
        for seed in (SEEDS[:1] if quick else SEEDS)
        for task, entry in board.tasks.items()
        for variant in variants
    ]
    return [job for job in every if job.measures]


def _measure(measure: Measure, variant: Variant, quick: bool) -> Measure:
    """A measure with fewer pairs if it is quick. A control decodes nothing unless its metric needs
    that: its outputs often do not end."""
    needs = measure.decode is None or measure.metric == "free_token_accuracy"
    decode = measure.decode if variant == "ours" or needs else 0
    pairs = measure.pairs or (1000 if measure.lengths else None)
    if variant == "control":
        pairs = measure.control or pairs
    if quick:
        pairs = min(pairs or QUICK_PAIRS, QUICK_PAIRS)
    return measure.model_copy(update={"pairs": pairs, "decode": decode})


def workers_for(jobs: Sequence[Job]) -> int:
    """Processes at once: one a core, or one where a GPU computes."""
    on_cpu = all(devices.choose_device(job.config.device).type == "cpu" for job in jobs[:1])
    return min(len(jobs), usable_cores() if on_cpu else 1)


def run_jobs(jobs: Sequence[Job]) -> Generator[list[Job]]:
    """Run the jobs without a result; yields those that are running, about once a second.

    Closed early, it lets every training save. Raises UserError if a job fails.
    """
    waiting = [job for job in jobs if job.result() is None]
    context = multiprocessing.get_context("spawn")
    complaints, complain = context.Pipe(duplex=False)
    running: dict[SpawnProcess, Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers_for(jobs):
                process = context.Process(target=_work, args=(waiting[0], complain))
                with _terminal_signals_blocked():
                    process.start()
                running[process] = waiting.pop(0)
            wait([process.sentinel for process in running], timeout=1.0)
            for process in [process for process in running if not process.is_alive()]:
                job = running.pop(process)
                if process.exitcode:
                    _complain(job, process.exitcode, complaints)
            yield list(running.values())
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()


def _complain(job: Job, code: int, complaints: Connection) -> None:
    """Raise the error of a process that has ended without a result."""
    if complaints.poll():
        raise UserError(complaints.recv())
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        raise UserError(
            f"{job.path}: its process was killed by signal {number} (out of memory?); "
            "the same command goes on where it stopped"
        )
    raise RuntimeError(f"{job.path}: exit code {code}")


@contextlib.contextmanager
def _terminal_signals_blocked() -> Iterator[None]:
    """Processes that are started here ignore signals of the terminal: the parent decides."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # whose start would let SIGINT through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(job: Job, complain: Connection) -> None:
    """The program of one process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        train_and_measure(job)
    except UserError as error:
        complain.send(str(error))
        sys.exit(2)


def _end_with_parent() -> None:
    """Save and end as soon as the parent process is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)


def train_and_measure(job: Job) -> None:
    """Train a job on one core, or resume it, and write its result after every measure.

    On SIGTERM the training saves. A running measure is lost, the measures before it are kept.
    The model of the last step is measured: nothing is chosen.
    """
    torch.set_num_threads(1)
    devices.tune_process()
    began = time.process_time()
    request = Request(
        job.path.name, job.config, lambda _: job.config, job.path, resume=True, remedy=""
    )
    with open_session(request, lambda _: None, patient=True) as session:
        trainer, signals = session.trainer, session.signals
        for _ in trainer.train():
            pass
        signals.act = lambda: exit_if_signalled(signals.received)
        exit_if_signalled(signals.received)
        result = job.so_far() or {
            "steps": trainer.progress.step,
            "stop_reason": trainer.stop_reason,
            "target_tokens": trainer.progress.target_tokens,
            "parameters": count_parameters(trainer.model),
            "train_s": trainer.progress.elapsed_s,
            "cpu_s": None if session.resumed else time.process_time() - began,
            "precision": trainer.precision,
            "measures": {},
        }
        for name, measure in job.measures.items():
            if name not in result["measures"]:
                result["measures"][name] = _measured(trainer, measure, result["measures"])
                with saying_what_failed(job.path, RESULT):
                    write_json(job.path / RESULT, result)


def _measured(trainer: Trainer, measure: Measure, taken: dict[str, Any]) -> dict[str, Any]:
    """The summary of an evaluation with `asked`, the keys of the measure, and `value`, its metric.
    A measure of the same pairs that was taken before is used again."""
    asked = _asked(measure)
    same = [one for one in taken.values() if one["asked"] | {"metric": measure.metric} == asked]
    summary = same[0] if same else _evaluated(trainer, measure)
    return summary | {"asked": asked, "value": _value(measure, summary)}


def _value(measure: Measure, summary: dict[str, Any]) -> float:
    if measure.metric == "perplexity":
        return math.exp(min(summary["loss"], 700.0))
    if measure.metric == "exact_match" and measure.decode is not None:
        return float(summary["forced_exact_match"])
    return float(summary[measure.metric])


def _evaluated(trainer: Trainer, measure: Measure) -> dict[str, Any]:
    """The summary of an evaluation, and the teacher-forced exact match of each length."""
    asked: dict[str, Any] = {"test_examples": measure.pairs}
    if measure.lengths is not None:
        asked["test_length"] = measure.lengths
    data = trainer.config.data.model_copy(update=asked)
    config = trainer.config.model_copy(update={"data": data})
    source = open_source(config)
    report = evaluate(
        trainer.model,
        all_pairs(source, "test"),
        trainer.source.facts,
        source_bos=config.source_bos,
        decode=measure.decode,
        side="src" if config.data.task else "tgt",
    )
    curve = {n: counts.summary()["forced_exact_match"] for n, counts in report.by_length.items()}
    return report.total().summary() | {"by_length": curve}
