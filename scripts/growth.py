"""How time and memory of a training step grow: measured, put into numbers, drawn.

    python scripts/bench.py --growth [PICTURE]

A step is forward, loss, backward, clip and AdamW on a batch of random sequences without pads, on
the CPU, at every width in the precision that `auto` chooses for wide models. From one base point
(4,080 tokens of length 20, d_model 64, 2+2 layers) each axis changes one thing:

    tokens   rows x (S + T), in more rows of length 20
    length   S = T at 8,192 tokens, in fewer rows. The square of the length in each row's attention
             is then slope 1
    width    d_model, with d_ff 4 d_model and heads of width 16
    depth    encoder layers, and as many decoder layers

Each point runs in a fresh process, so that the peak of its memory is its own. Memory is that peak
less what the process held before it made batch and model, libraries in use included.
"""

import math
import os
import statistics
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from toytrans.config.schema import ModelConfig, TrainConfig
from toytrans.data.batches import make_batch
from toytrans.data.pairs import Pairs
from toytrans.model.initialisation import count_parameters
from toytrans.model.transformer import Transformer
from toytrans.tokens import FIRST_SYMBOL_ID, Vocabulary
from toytrans.training.devices import NARROW, choose_precision, tune_process
from toytrans.training.optimizer import AdamW
from toytrans.training.step import Update

Row = dict[str, Any]
"""axis, value, tokens, step_ms, memory_mib, parameters."""


class Point(NamedTuple):
    """What one process measures: rows of a source and a target, and the model's sizes."""

    rows: int = 102
    length: int = 20
    width: int = 64
    depth: int = 2


POINTS = {
    "tokens": {40 * rows: Point(rows) for rows in (26, 51, 102, 205, 410, 819)},
    "length": {2**n: Point(rows=2 ** (12 - n), length=2**n) for n in range(4, 11)},
    "width": {2**n: Point(width=2**n) for n in range(5, 10)},
    "depth": {n: Point(depth=n) for n in (1, 2, 4, 8)},
}
LABELS = {
    "tokens": "tokens in a batch",
    "length": "length, at 8,192 tokens",
    "width": "width, d_model",
    "depth": "layers each side",
}
GUIDES = {"tokens": (1,), "length": (1,), "width": (1, 2), "depth": (1,)}

REPEATS = 3
HEAD_WIDTH = 16
VOCABULARY = Vocabulary(tuple(map(str, range(100))))
TIMED_SECONDS = 1.0


def measure_growth(quick: bool = False) -> list[Row]:
    """A row for every point of every axis: medians over `REPEATS` rounds through all of them.

    quick: two points an axis, one round. A script that calls this must guard its main, and what
    it imports at its top is imported again for every point.
    """
    axes = {axis: dict([*of.items()][:3:2]) if quick else of for axis, of in POINTS.items()}
    found: defaultdict[Point, list[Row]] = defaultdict(list)
    with patch.dict(os.environ, GOMP_SPINCOUNT="2000"):  # as the CLI; read when torch is loaded
        for _ in range(1 if quick else REPEATS):
            for point in dict.fromkeys(at for points in axes.values() for at in points.values()):
                # an executor each: one whose process is killed raises, and does not hang
                with ProcessPoolExecutor(1, get_context("spawn")) as process:
                    found[point].append(process.submit(_measure, point).result())
    return [
        {"axis": axis, "value": value}
        | {key: statistics.median(row[key] for row in found[at]) for key in found[at][0]}
        for axis, points in axes.items()
        for value, at in points.items()
    ]


def _measure(point: Point) -> Row:
    """One point, in a process that has done nothing else."""
    tune_process()
    torch.manual_seed(0)
    # what libraries load when they are first used belongs to none of the points
    _Training(Point(rows=8, length=8, width=HEAD_WIDTH, depth=1)).step()
    before = _resident_mib("VmRSS")
    training = _Training(point)
    for _ in range(2):
        training.step()
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < TIMED_SECONDS:
        seconds.append(training.step())
    return {
        "tokens": training.batch.padded_tokens,
        "step_ms": 1000 * statistics.median(seconds),
        "memory_mib": _resident_mib("VmHWM") - before,
        "parameters": count_parameters(training.model),
    }


class _Training:
    """A model, its optimiser and its only batch."""

    def __init__(self, point: Point) -> None:
        shape = (2, point.rows, point.length - 1)  # EOS follows
        src, tgt = torch.randint(FIRST_SYMBOL_ID, len(VOCABULARY), shape)
        lengths = torch.full((point.rows,), point.length - 1)
        self.batch = make_batch(Pairs(src, lengths, tgt, lengths), source_bos=False)
        config = ModelConfig(
            d_model=point.width,
            n_heads=point.width // HEAD_WIDTH,
            n_encoder_layers=point.depth,
            n_decoder_layers=point.depth,
            d_ff=4 * point.width,
            norm="pre",
        )
        self.model = Transformer(config, VOCABULARY).train()
        self.optimizer = AdamW(self.model, 0.0)
        self.device = torch.device("cpu")
        self.precision = choose_precision("auto", self.device, NARROW + 1)  # one for all

    def step(self) -> float:
        """Seconds of one step."""
        began = time.perf_counter()
        given = (self.model, self.optimizer, self.device, TrainConfig(), self.precision)
        Update(*given)([self.batch], lr=1e-4)
        return time.perf_counter() - began


def _resident_mib(field: str) -> float:
    """Memory of this process in MiB: VmRSS now, VmHWM at its peak. Without /proc the peak for both.

    Not getrusage on Linux: its peak starts with that of the process that started this one.
    """
    if sys.platform != "linux":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS: bytes
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def exponents(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Slopes of time and of memory in log-log: least squares over the upper half of each axis."""
    slopes = {}
    for axis, points in _by_axis(rows).items():
        upper = points[_first_fitted(points) :]
        keys = ("value", "step_ms", "memory_mib")
        x, *quantities = ([math.log(row[key]) for row in upper] for key in keys)
        of_time, of_memory = (statistics.linear_regression(x, y).slope for y in quantities)
        slopes[axis] = (of_time, of_memory)
    return slopes


def _by_axis(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each axis."""
    return {
        axis: [row for row in rows if row["axis"] == axis]
        for axis in dict.fromkeys(row["axis"] for row in rows)
    }


def _first_fitted(points: list[Row]) -> int:
    """Where the upper half begins; it holds two points at least."""
    return min(len(points) // 2, len(points) - 2)


def draw_growth(rows: list[Row], path: Path) -> None:
    """A PNG to be shown 900 pixels wide: time above, memory below, a column for each axis.

    Doubling is as wide in every panel, so that equal slopes look equal. Filled points are those
    of `exponents`; dotted guides through the last one have the slopes of `GUIDES`.
    """
    from matplotlib.figure import Figure

    axes, slopes = _by_axis(rows), exponents(rows)
    widths = [math.log2(points[-1]["value"] / points[0]["value"]) + 0.6 for points in axes.values()]
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    panels = figure.subplots(2, len(axes), sharex="col", sharey="row", width_ratios=widths)
    quantities = (("step_ms", "step, ms", "#1b4b91"), ("memory_mib", "memory, MiB", "#c2600a"))
    for line, (key, label, colour) in enumerate(quantities):
        for panel, (axis, points) in zip(panels[line], axes.items(), strict=True):
            x, y = ([row[name] for row in points] for name in ("value", key))
            for guide in GUIDES[axis]:
                ends = (y[-1] * (x[0] / x[-1]) ** guide, y[-1])
                panel.plot((x[0], x[-1]), ends, ":", color="0.65", linewidth=1.2, scaley=False)
            first = _first_fitted(points)
            panel.plot(x, y, color=colour, linewidth=1.6)
            panel.plot(x[:first], y[:first], "o", color=colour, markersize=4.5, mfc="white")
            panel.plot(x[first:], y[first:], "o", color=colour, markersize=4.5)
            left = {"x": 0.04, "va": "top", "transform": panel.transAxes}
            panel.text(y=0.97, s=f"● slope {slopes[axis][line]:.2f}", color=colour, **left)
            text = "" if line else "dotted: slope " + " and ".join(map(str, GUIDES[axis]))
            panel.text(y=0.87, s=text, color="0.45", size=8, **left)
            panel.set(xscale="log", yscale="log", xlim=(x[0] / 2**0.3, x[-1] * 2**0.3))
            panel.set_xticks(x, [f"{v / 1024:.0f}k" if v > 1024 else str(v) for v in x])
            panel.minorticks_off()
            panel.tick_params(color="0.6", labelcolor="0.25", labelsize=9, left=axis == "tokens")
            panel.spines[["top", "right"]].set_visible(False)
            panel.spines[["left", "bottom"]].set_color("0.6")
            panel.grid(axis="y", color="0.91", linewidth=0.8)
            panel.set_xlabel(LABELS[axis] if line else "")
        low, high = min(row[key] for row in rows) / 1.4, max(row[key] for row in rows) * 2
        ticks = [t * 10**n for n in range(-2, 7) for t in (1, 3) if low <= t * 10**n <= high / 2]
        panels[line][0].set_yticks(ticks, [f"{t:,g}" for t in ticks])
        panels[line][0].set(ylim=(low, high), ylabel=label)
    figure.align_ylabels()
    figure.savefig(path, dpi=200)
