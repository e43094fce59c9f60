"""The numbers of a board: from its runs, in a results file, beside the published ones."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel

from toytrans.boards.definition import Board, Measure
from toytrans.boards.jobs import Job
from toytrans.evaluation import spans
from toytrans.files import disk_errors, json_text, read_json, write_json
from toytrans.sweeps.results import RESULTS, this_machine

MOST_BYTES = 2**26
"""Of a results file."""


@dataclass(frozen=True)
class Line:
    """One line of a measure: the values of all seeds, or one published number.

    steps: of each training. pairs: that were measured of each. None where it is not known.
    """

    who: str
    values: tuple[float, ...]
    steps: int | None = None
    pairs: int | None = None

    @property
    def mean(self) -> float:
        return fmean(self.values)


@dataclass(frozen=True)
class Block:
    """One measure of one task with its lines, ours first."""

    task: str
    name: str
    measure: Measure
    lines: list[Line]


def blocks(board: Board, jobs: Sequence[Job]) -> list[Block]:
    """The measures of finished jobs beside the published numbers."""
    blocks = []
    for task, entry in board.tasks.items():
        for name, measure in entry.measures.items():
            lines = []
            for variant in ("ours", "control"):
                mine = [job for job in jobs if (job.task, job.variant) == (task, variant)]
                results = [result for job in mine if (result := job.result()) is not None]
                results = [result for result in results if name in result["measures"]]
                if results:
                    values = tuple(_value(result["measures"][name]) for result in results)
                    who = f"toytrans, {mine[0].config.model.positions}"  # what sets the two apart
                    pairs = results[0]["measures"][name].get("examples")
                    lines.append(Line(who, values, results[0].get("steps"), pairs))
            published = [Line(who, (value,)) for who, value in measure.published.items()]
            blocks.append(Block(task, name, measure, lines + published))
    return blocks


def _value(taken: dict[str, Any]) -> float:
    """The value of a metric; JSON has null for NaN."""
    return math.nan if taken["value"] is None else float(taken["value"])


def to_dict(name: str, board: Board, jobs: Sequence[Job]) -> dict[str, Any]:
    """Everything as plain values: definition, configs with their SHA-256, every run's result."""
    tasks: dict[str, Any] = {}
    machine = this_machine()
    for task, entry in board.tasks.items():
        mine = [job for job in jobs if job.task == task]
        tasks[task] = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine,
            "knows": board.knows,
            "notes": list(board.notes),
            "measures": {key: measure.model_dump() for key, measure in entry.measures.items()},
            "configs": {
                job.variant: {key: value for key, value in job.by_names.items() if key != "seed"}
                for job in mine
            },
            "runs": [
                {
                    "variant": job.variant,
                    "seed": job.config.seed,
                    "config_sha256": job.config_sha256,
                }
                | _shortened(job)
                for job in mine
            ],
        }
    return {
        "board": name,
        "title": board.title,
        "source": board.source,
        "tasks": tasks,
    }


def _shortened(job: Job) -> dict[str, Any]:
    """A job's result, with a curve over spans of lengths in place of every length."""
    result = job.result() or {"measures": {}}
    for summary in result["measures"].values():
        summary.pop("asked", None)  # stands in the board
        values = {int(length): value for length, value in summary.pop("by_length", {}).items()}
        summary["curve"] = {
            f"{low}:{high}": round(fmean(values[n] for n in values if low <= n <= high), 4)
            for low, high, _ in spans(values, job.config.data.train_length or (0, 0))
        }
    return result


def write_results(name: str, board: Board, about: dict[str, Any]) -> Path:
    """Write a board's results file. Entries of other tasks stay, and those without a new number.

    about: `to_dict` of the tasks that were asked for. Raises UserError where the disk refuses.
    """
    path = RESULTS / f"{name}.json"
    kept = tasks_kept(name)
    new = {
        task: entry for task, entry in about["tasks"].items() if not _same(entry, kept.get(task))
    }
    tasks = kept | new
    whole = about | {"tasks": {task: tasks[task] for task in board.tasks if task in tasks}}
    with disk_errors(RESULTS, path.name):
        RESULTS.mkdir(exist_ok=True)
        write_json(path, whole)
    return path


def tasks_kept(name: str) -> dict[str, Any]:
    """The tasks of a board's results file, if it exists. Raises UserError for another file."""
    path = RESULTS / f"{name}.json"
    otherwise = "not the results of a board; move it away"
    kept = read_json(path, _Kept, otherwise, most_bytes=MOST_BYTES)
    return kept.tasks if kept else {}


class _Kept(BaseModel):
    """A results file, as far as it is read again."""

    tasks: dict[str, dict[str, Any]]


def _same(entry: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Whether two entries of a task differ at most in date and machine."""
    stamps = {"date": None, "machine": None}
    return before is not None and json_text(entry | stamps) == json_text(before | stamps)
