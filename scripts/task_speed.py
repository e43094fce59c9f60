"""How fast is a Python task, and how long do steps wait for its pairs?

    python scripts/task_speed.py [--steps 200] [--config configs/reverse_sinusoidal.yaml]

The same training with the built-in task, with a Python function that does the same, and with
functions that take 100 us and 1 ms a pair. Slow ones run with and without worker processes.
"""

import argparse
import contextlib
import math
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import toytrans
import toytrans.data.ahead
from toytrans.config_file import load_config
from toytrans.data import open_source
from toytrans.data.batches import training_batches
from toytrans.training import trainer

TASKS = """
import time

def fast(source: list[int]) -> list[int]:
    return source[::-1]

def slow_100us(source: list[int]) -> list[int]:
    return busy(source, 1e-4)

def slow_1ms(source: list[int]) -> list[int]:
    return busy(source, 1e-3)

def busy(source, seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return source[::-1]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--config", type=Path, default=Path("configs/reverse_sinusoidal.yaml"))
    arguments = parser.parse_args()
    config = arguments.config.resolve()
    table = Table("task", "workers", "pairs a second", "time waited", "ms a step")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("tasks.py").write_text(TASKS, encoding="utf-8")
        for task in ("reverse", "tasks.py:fast", "tasks.py:slow_100us", "tasks.py:slow_1ms"):
            for workers in (False, True) if "slow" in task else (False,):
                waited, step = measure(config, task, arguments.steps, workers)
                row = (task, "yes" if workers else "no", f"{pairs_a_second(config, task):,.0f}")
                table.add_row(*row, f"{waited:.1%}", f"{1000 * step:.0f}")
    Console().print(table)


def pairs_a_second(path: Path, task: str) -> float:
    """How fast one process draws training pairs."""
    config = load_config(path, [f"data.task={task}"])
    source = open_source(config)
    count = 1_000 if "slow" in task else 20_000
    begun = time.perf_counter()
    source.pairs("train", torch.arange(count))
    return count / (time.perf_counter() - begun)


def measure(path: Path, task: str, steps: int, workers: bool) -> tuple[float, float]:
    """The share of training that waits for pairs, and the seconds of a step."""
    toytrans.data.ahead.PATIENCE = 0.1 if workers else math.inf
    waits: list[tuple[float, float]] = []

    def timed(*arguments: Any) -> Generator[Any]:
        with contextlib.closing(training_batches(*arguments)) as batches:
            while True:
                asked = time.perf_counter()
                batch = next(batches)
                waits.append((asked, time.perf_counter()))
                yield batch

    trainer.training_batches = timed
    changes = {"data.task": task, "train.max_steps": steps + 1, "train.eval_every": steps + 1}
    toytrans.train(path, changes=changes)
    seconds = waits[-1][0] - waits[0][0]
    return sum(got - asked for asked, got in waits[:-1]) / seconds, seconds / steps


if __name__ == "__main__":
    main()
