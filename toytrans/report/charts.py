"""Curves of the training, and exact match by length, as SVG. Its text can be read out."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape

from toytrans.figures import draw_lengths, drawn
from toytrans.inspection.table import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 400
"""Points of a curve of one run; more are thinned out evenly."""

Rows = list[dict[str, Any]]

CURVES: dict[str, dict[str, str]] = {
    "Loss in nats a token": {"loss": "training", "valid_loss": "validation"},
    "Free-running exact match on validation data": {"valid_exact_match": "exact match"},
    "Learning rate": {"lr": "learning rate"},
    "Norm of the gradient": {"grad_norm": "norm"},
}
"""Titles, and the keys of records with the names of their lines."""

LOGARITHMIC = ("loss", "valid_loss", "grad_norm")


class Chart(NamedTuple):
    """title: read by screen readers too."""

    title: str
    svg: Markup


def curves(runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[Chart]:
    """Charts of the records of some runs by name. What no run has measured is left out."""
    charts = []
    for title, keys in CURVES.items():
        lines: dict[str, list[tuple[float, float]]] = {}
        for name, records in runs.items():
            for key, line in keys.items():
                label = ", ".join([name] * (len(runs) > 1) + [line] * (len(keys) > 1))
                known = [row for row in records if _is_drawn(row.get(key), key)]
                count = min(len(known), MOST_POINTS)
                some = [known[k * (len(known) - 1) // max(1, count - 1)] for k in range(count)]
                lines[label] = [(row["step"], row[key]) for row in some]
        if any(lines.values()):
            log = next(iter(keys)) in LOGARITHMIC
            charts.append(_chart(title, partial(_draw_lines, lines, len(keys), log)))
    return charts


def _is_drawn(value: Any, key: str) -> bool:
    """Whether a scale has a place for a value."""
    return value is not None and math.isfinite(value) and (value > 0 or key not in LOGARITHMIC)


def _draw_lines(
    lines: Mapping[str, list[tuple[float, float]]], of_run: int, log: bool, axes: "Axes"
) -> None:
    """of_run: lines of each run, in one colour."""
    from matplotlib.ticker import LogFormatter

    for number, (label, points) in enumerate(lines.items()):
        if points:
            style, marker = ("-", "--")[number % of_run], "." if len(points) <= 40 else ""
            (line,) = axes.plot(*zip(*points, strict=True), style, color=f"C{number // of_run}")
            line.set(marker=marker, label=printable(label))
    axes.set(xlabel="step", yscale="log" if log else "linear")
    if log:
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))
    if any(lines):
        axes.legend(frameon=False)


def lengths(runs: dict[str, Rows], trained: tuple[int, int] | None) -> Chart:
    """Exact match with its 95% interval by source length, of some runs by name.

    runs: rows with length, exact_match, low and high. trained: the training lengths.
    """
    lines = {
        printable(name): [(of["length"], of["exact_match"], of["low"], of["high"]) for of in rows]
        for name, rows in runs.items()
    }

    def draw(axes: "Axes") -> None:
        draw_lengths(axes, lines, [trained] if trained else [])
        if len(lines) > 1:
            axes.legend(frameon=False)
        label = "free-running exact match"
        axes.set(xlabel="source length in symbols", ylabel=label, ylim=(-0.02, 1.02))

    return _chart("Exact match by length", draw, (11, 3))


def _chart(
    title: str, draw: Callable[["Axes"], None], inches: tuple[float, float] = (6, 2.6)
) -> Chart:
    """Raises UserError without matplotlib."""

    def fill(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that its font lacks; the reader's has them
        picture = drawn(inches, fill, svg_hashsalt=title, font_size=9).decode()
    _, tag, rest = picture.partition("<svg")
    return Chart(title, Markup(f'{tag} role="img" aria-label="{escape(title)}"{rest}'))
