"""A board's numbers: gathered from its runs, written to a file, put beside what is published."""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from toytrans import __version__
from toytrans.boards.definition import Board, Measure, Variant
from toytrans.boards.jobs import Job
from toytrans.training.checkpoint import saying_what_failed, write_file

RESULTS = Path("results")
"""Where results files go."""


@dataclass(frozen=True)
class Line:
    """Who reached what in one measure: every seed's value, or one published number."""

    who: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)


@dataclass(frozen=True)
class Block:
    """One measure of one task, and the lines under it: ours first."""

    task: str
    name: str
    measure: Measure
    lines: list[Line]


def blocks(board: Board, jobs: Sequence[Job]) -> list[Block]:
    """What the jobs that are done have measured, beside the published numbers."""
    found = []
    for task, entry in board.tasks.items():
        for name, measure in entry.measures.items():
            lines = []
            for variant in ("ours", "control"):
                values = _values(jobs, task, variant, name)
                if values:
                    lines.append(Line(_who(board, variant), values))
            published = [Line(who, (value,)) for who, value in measure.published.items()]
            found.append(Block(task, name, measure, lines + published))
    return found


def _who(board: Board, variant: Variant) -> str:
    """Ours and the control by their positions, which is what sets them apart."""
    layers = (board.config, board.control) if variant == "control" else (board.config,)
    named = [layer["model"]["positions"] for layer in layers if "positions" in layer["model"]]
    return f"toytrans, {named[-1] if named else 'anchored'}"


def _values(jobs: Sequence[Job], task: str, variant: Variant, measure: str) -> tuple[float, ...]:
    results = (job.result() for job in jobs if (job.task, job.variant) == (task, variant))
    return tuple(result["measures"][measure]["value"] for result in results if result is not None)


def document(name: str, board: Board, jobs: Sequence[Job]) -> dict[str, Any]:
    """Everything as plain values: definition, configs with their SHA-256, every run's result."""
    tasks: dict[str, Any] = {}
    for task, entry in board.tasks.items():
        mine = [job for job in jobs if job.task == task]
        tasks[task] = {
            "measures": {key: measure.model_dump() for key, measure in entry.measures.items()},
            "runs": [
                {
                    "variant": job.variant,
                    "seed": job.config.seed,
                    "config_sha256": job.config_sha256,
                    "config": job.config.model_dump(mode="json"),
                }
                | (job.result() or {})
                for job in mine
            ],
        }
    return {
        "board": name,
        "title": board.title,
        "source": board.source,
        "knows": board.knows,
        "notes": list(board.notes),
        "date": time.strftime("%Y-%m-%d"),
        "machine": _machine(),
        "tasks": tasks,
    }


def _machine() -> dict[str, Any]:
    return {
        "toytrans": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def write_results(name: str, about: dict[str, Any]) -> Path:
    """Write a board's results file. Raises UserError where the disk refuses."""
    path = RESULTS / f"{name}.json"
    with saying_what_failed(RESULTS, path.name):
        RESULTS.mkdir(exist_ok=True)
        write_file(path, (json.dumps(about, indent=1) + "\n").encode())
    return path
