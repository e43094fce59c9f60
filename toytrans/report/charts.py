"""Curves of the training as SVG. Its text can be read out."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from toytrans.errors import printable
from toytrans.figures import drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 400
"""Points of a curve of one run; more are thinned out evenly."""

CURVES: dict[str, dict[str, str]] = {
    "Loss in nats a token": {"loss": "training", "valid_loss": "validation"},
    "Free-running exact match on validation data": {"valid_exact_match": "exact match"},
    "Learning rate": {"lr": "learning rate"},
    "Norm of the gradient": {"grad_norm": "norm"},
}
"""Titles, and the keys of records with the names of their lines."""

Points = list[tuple[float, float]]
"""Steps and values of a curve."""

LOGARITHMIC = ("loss", "valid_loss", "grad_norm")
"""Keys on a scale that has no place for 0."""


def curves(runs: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Markup]:
    """Charts by title, of the records of some runs by name. What no run has measured is left
    out."""
    charts = {}
    for title, keys in CURVES.items():
        lines = {name: [_points(records, key) for key in keys] for name, records in runs.items()}
        if any(points for of_run in lines.values() for points in of_run):
            log = next(iter(keys)) in LOGARITHMIC
            charts[title] = _chart(title, partial(_draw_lines, lines, list(keys.values()), log))
    return charts


def _points(records: Sequence[dict[str, Any]], key: str) -> Points:
    points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
    known = [p for p in points if p[1] > 0 or key not in LOGARITHMIC]
    count = min(len(known), MOST_POINTS)
    return [known[k * (len(known) - 1) // max(1, count - 1)] for k in range(count)]


def _draw_lines(
    runs: Mapping[str, Sequence[Points]], names: Sequence[str], log: bool, axes: "Axes"
) -> None:
    """runs: the lines of each by its name, in one colour. names: what the lines of a run are."""
    from matplotlib.ticker import LogFormatter

    several = len(runs) > 1
    for number, (run, lines) in enumerate(runs.items()):
        for style, name, points in zip(("-", "--"), names, lines, strict=False):
            if points:
                (line,) = axes.plot(*zip(*points, strict=True), style, color=f"C{number}")
                line.set_marker("." if len(points) <= 40 else "")
                line.set_label(printable(run) * (style == "-") if several else name)
    dashed = f"; dashed: {names[1]}" if several and len(names) > 1 else ""
    axes.set(xlabel=f"step{dashed}", yscale="log" if log else "linear")
    if log:
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))
    axes.legend(frameon=False)


def _chart(title: str, draw: Callable[["Axes"], None]) -> Markup:
    """A chart as it stands on a page. Raises UserError without matplotlib."""

    def fill(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)

    return inline(title, drawn((6, 2.6), fill, svg_hashsalt=title, font_size=9))


def inline(title: str, picture: bytes) -> Markup:
    """An SVG for a page, its control characters shown. Screen readers read its title."""
    shown = "\n".join(map(printable, picture.decode().split("\n")))
    _, tag, rest = shown.partition("<svg")
    return Markup(f'{tag} role="img" aria-label="{escape(title)}"{rest}')
