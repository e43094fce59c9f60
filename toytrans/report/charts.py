"""Curves of the training, and exact match by length, as SVG drawn by matplotlib.

Text stays text, so that it can be searched, selected and read out. A picture loads nothing.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape

from toytrans.figures import drawn
from toytrans.inspection.table import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 400
"""Points of a curve of one run; more are thinned out evenly."""

Rows = list[dict[str, Any]]


class Chart(NamedTuple):
    """title: read by screen readers too."""

    title: str
    svg: Markup


class Line(NamedTuple):
    """points: step and value."""

    label: str
    colour: str
    style: str
    points: list[tuple[float, float]]


class Curve(NamedTuple):
    """What records hold. keys: of records, with the names of their lines. log: the scale."""

    title: str
    keys: dict[str, str]
    log: bool = False


CURVES = (
    Curve("Loss in nats a token", {"loss": "training", "valid_loss": "validation"}, log=True),
    Curve("Free-running exact match on validation data", {"valid_exact_match": "exact match"}),
    Curve("Learning rate", {"lr": "learning rate"}),
    Curve("Norm of the gradient", {"grad_norm": "norm"}, log=True),
    Curve("Target tokens a second", {"tokens_per_s": "tokens"}),
)
STYLES = ("-", "--")
"""Of the lines of a curve."""


def curves(runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[Chart]:
    """Charts of the records of some runs by name. What no run has measured is left out."""
    rows = {name: _with_pace(records) for name, records in runs.items()}
    charts = []
    for curve in CURVES:
        lines = list[Line]()
        for number, (name, records) in enumerate(rows.items()):
            for (key, line), style in zip(curve.keys.items(), STYLES, strict=False):
                drawn = [row for row in records if _is_drawn(row.get(key), curve.log)]
                points = [(row["step"], row[key]) for row in _thinned(drawn)]
                label = ", ".join([name] * (len(runs) > 1) + [line] * (len(curve.keys) > 1))
                if points:
                    lines.append(Line(label, f"C{number}", style, points))
        if lines:
            charts.append(_chart(curve.title, partial(_draw_lines, lines, curve.log)))
    return charts


def _draw_lines(lines: Sequence[Line], log: bool, axes: "Axes") -> None:
    from matplotlib.ticker import LogFormatter

    for _, colour, style, points in lines:
        steps, values = zip(*points, strict=True)
        marker = "." if len(points) <= 40 else ""
        axes.plot(steps, values, style, marker=marker, color=colour)
    axes.set(xlabel="step", yscale="log" if log else "linear")
    if log:
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))
    _legend(axes, [line.label for line in lines])


def _legend(axes: "Axes", labels: Sequence[str]) -> None:
    """The names of lines, if they have any."""
    if any(labels):
        axes.legend(axes.get_lines(), list(map(printable, labels)), frameon=False)


def _is_drawn(value: Any, log: bool) -> bool:
    """Whether a scale has a place for a value."""
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def _thinned(rows: Rows) -> Rows:
    """At most MOST_POINTS rows, the first and the last among them."""
    if len(rows) <= MOST_POINTS:
        return rows
    last = MOST_POINTS - 1
    return [rows[round(k * (len(rows) - 1) / last)] for k in range(MOST_POINTS)]


def _with_pace(records: Iterable[dict[str, Any]]) -> Rows:
    """Records with the target tokens a second since the record before."""
    rows: Rows = []
    tokens, seconds = 0, 0.0
    for record in records:
        row, now, then = dict(record), record.get("target_tokens"), record.get("elapsed_s")
        if now is not None and then is not None:
            if then > seconds and now > tokens:
                row["tokens_per_s"] = (now - tokens) / (then - seconds)
            tokens, seconds = now, then
        rows.append(row)
    return rows


def lengths(runs: dict[str, Rows], trained: tuple[int, int] | None) -> Chart:
    """Exact match with its 95% interval by source length, of some runs by name.

    runs: rows with length, exact_match, low and high. trained: the training lengths.
    """

    def draw(axes: "Axes") -> None:
        for number, rows in enumerate(runs.values()):
            column = {key: [row[key] for row in rows] for key in rows[0]}
            colour, where = f"C{number}", column["length"]
            axes.plot(where, column["exact_match"], marker=".", color=colour)
            axes.fill_between(where, column["low"], column["high"], alpha=0.2, color=colour)
        _legend(axes, list(runs) if len(runs) > 1 else [])
        measured = [row["length"] for rows in runs.values() for row in rows]
        for end in trained or ():
            if min(measured) < end < max(measured):
                axes.axvline(end, color="0.5", linestyle=":")
        axes.set(
            xlabel="source length in symbols", ylabel="free-running exact match", ylim=(-0.02, 1.02)
        )

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
