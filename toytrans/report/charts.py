"""The charts of a page: the curves of trainings, and a metric against length."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from toytrans.data.selection import SIDE_NAMES
from toytrans.metrics import METRICS
from toytrans.report.chart import Line, Point, chart
from toytrans.sweeps.comparison import Comparison

MOST_POINTS = 400
"""Points of a curve of one run; more are thinned out evenly."""

CURVES: dict[str, dict[str, str]] = {
    "Loss in nats a token": {"loss": "training", "valid_loss": "validation"},
    "Free-running exact match on validation data": {"valid_exact_match": "exact match"},
    "Learning rate": {"lr": "learning rate"},
    "Norm of the gradient": {"grad_norm": "norm"},
}
"""Titles, and the keys of records with the names of their lines."""

LOGARITHMIC = ("loss", "valid_loss", "grad_norm")
"""Keys on a scale that has no place for 0."""


def curves(runs: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Markup]:
    """Charts by title, of the records of some runs by name. What no run has measured is left
    out."""
    charts = {}
    for title, keys in CURVES.items():
        lines = [
            Line(
                run * (not order) if len(runs) > 1 else name,
                _points(records, key),
                colour,
                dashed=order > 0,
            )
            for colour, (run, records) in enumerate(runs.items())
            for order, (key, name) in enumerate(keys.items())
        ]
        lines = [line for line in lines if line.points]
        dashed = f"; dashed: {[*keys.values()][1]}" if len(runs) > 1 and len(keys) > 1 else ""
        is_log = next(iter(keys)) in LOGARITHMIC
        if lines:
            charts[title] = chart(title, lines, f"step{dashed}", logarithmic=is_log)
    return charts


def _points(records: Sequence[dict[str, Any]], key: str) -> list[Point]:
    points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
    known = [p for p in points if p[1] > 0 or key not in LOGARITHMIC]
    count = min(len(known), MOST_POINTS)
    return [known[k * (len(known) - 1) // max(1, count - 1)] for k in range(count)]


def by_length(title: str, compared: Comparison) -> dict[str, Markup]:
    """The chart of a comparison: mean and interval of each group against length. There is none
    where nothing was measured."""
    lines = [
        Line(
            name if len(compared.groups) > 1 else "",
            [(x, mean) for x, mean, _, _ in points],
            colour,
            band=[(x, low, high) for x, _, low, high in points],
        )
        for colour, (name, points) in enumerate(compared.curves.items())
        if points
    ]
    ends = [end for low, high in compared.train_lengths for end in (low - 0.5, high + 0.5)]
    side = SIDE_NAMES[compared.measure.length_of]
    label = f"{side} length (dotted: the ends of training; bands: 95% intervals)"
    span = (0.0, 1.0) if METRICS[compared.curve_metric].is_share else None
    return {title: chart(title, lines, label, span=span, dotted=ends)} if lines else {}
