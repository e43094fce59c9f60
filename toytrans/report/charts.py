"""Plots as Vega-Lite specifications, made by Altair. The browser draws them.

Altair is declarative: data, marks and what they show. Tooltips, sliders and texts for screen
readers come from Vega. A specification holds all its data, so a page loads nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import altair as alt

    from toytrans.report.attention import Maps

MOST_POINTS = 400
"""Points of a curve of one run; more are thinned out evenly."""

CELL = 28
"""Width and height of a cell of an attention map, in pixels."""

Rows = list[dict[str, Any]]


class Chart(NamedTuple):
    """title: read by screen readers too. spec: Vega-Lite."""

    title: str
    spec: dict[str, Any]


class Curve(NamedTuple):
    """What records hold. keys: of records, with the names of their lines. log: the scale."""

    title: str
    keys: dict[str, str]
    log: bool = False
    format: str = ".4f"


CURVES = (
    Curve("Loss in nats a token", {"loss": "training", "valid_loss": "validation"}, log=True),
    Curve("Exact match on validation data", {"valid_exact_match": "exact match"}),
    Curve("Learning rate", {"lr": "learning rate"}, format=".3g"),
    Curve("Norm of the gradient", {"grad_norm": "norm"}, log=True, format=".3g"),
    Curve("Target tokens a second", {"tokens_per_s": "tokens"}, format=",.0f"),
)


def curves(runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[Chart]:
    """Charts of the records of some runs by name. What no run has measured is left out."""
    rows = {name: _with_pace(records) for name, records in runs.items()}
    charts = []
    for curve in CURVES:
        points = [
            {"run": name, "line": line, "step": row["step"], "value": row[key]}
            for name, records in rows.items()
            for key, line in curve.keys.items()
            for row in _thinned([row for row in records if _is_drawn(row.get(key), curve.log)])
        ]
        if points:
            charts.append(_curve(curve, points, several=len(runs) > 1))
    return charts


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


def _curve(curve: Curve, points: Rows, *, several: bool) -> Chart:
    import altair as alt

    scale = alt.Scale(type="log") if curve.log else alt.Scale(zero=False)
    tooltip = [alt.Tooltip("line:N", title="curve"), alt.Tooltip("step:Q", format=",")]
    marked = {"point": len(points) <= 40, "clip": True}
    chart = _base(points, several, *tooltip, alt.Tooltip("value:Q", format=curve.format))
    chart = chart.mark_line(**marked).encode(
        x=alt.X("step:Q", title="step"), y=alt.Y("value:Q", title=None, scale=scale)
    )
    if len(curve.keys) > 1:
        channel = alt.StrokeDash if several else alt.Color
        chart = chart.encode(channel("line:N", title=None, legend=_legend()))
    return _chart(curve.title, chart.properties(width="container", height=180))


def lengths(runs: dict[str, Rows], trained: tuple[int, int] | None) -> Chart:
    """Exact match with its 95% interval by source length, of some runs by name.

    runs: rows with length, exact_match, low, high and decoded. trained: the training lengths.
    """
    import altair as alt

    keys = ("length", "exact_match", "low", "high", "decoded")
    points = [
        {"run": name} | {key: row[key] for key in keys}
        for name, rows in runs.items()
        for row in rows
    ]
    tooltip = [
        alt.Tooltip("length:Q"),
        alt.Tooltip("exact_match:Q", title="exact match", format=".3f"),
        alt.Tooltip("low:Q", format=".3f"),
        alt.Tooltip("high:Q", format=".3f"),
        alt.Tooltip("decoded:Q", title="pairs"),
    ]
    axis = alt.Axis(tickMinStep=1)
    base = _base(points, len(runs) > 1, *tooltip)
    base = base.encode(x=alt.X("length:Q", title="source length in symbols", axis=axis))
    scale = alt.Scale(domain=[0, 1])
    layers = [
        base.mark_area(opacity=0.2).encode(
            y=alt.Y("low:Q", scale=scale, title="exact match"), y2="high:Q"
        ),
        base.mark_line(point=True).encode(y=alt.Y("exact_match:Q", scale=scale)),
    ]
    measured = [row["length"] for row in points]
    shown = [end for end in trained or () if min(measured) < end < max(measured)]
    if shown:
        ends = alt.Chart(alt.Data(values=[{"end": end} for end in shown]))
        layers.append(ends.mark_rule(strokeDash=[4, 4]).encode(x="end:Q"))
    chart = alt.layer(*layers).properties(width="container", height=240)
    return _chart("Exact match by length", chart)


def _base(points: Rows, several: bool, *tooltip: Any) -> Any:
    """A chart of points, with a colour for each of several runs."""
    import altair as alt

    chart = alt.Chart(alt.Data(values=points))
    if not several:
        return chart.encode(tooltip=tooltip)
    colour = alt.Color("run:N", title=None, legend=_legend())
    return chart.encode(tooltip=[alt.Tooltip("run:N"), *tooltip], color=colour)


def attention(maps: "Maps") -> Chart:
    """The heads of one attention of one pair at one checkpoint, all three to be chosen."""
    import altair as alt

    def choice(name: str, value: Any, **options: Any) -> Any:
        return alt.param(
            name=name, value=value, bind=alt.binding_select(name=f"{name} ", **options)
        )

    last = len(maps.steps) - 1
    names = list(range(len(maps.pairs)))
    slider = alt.binding_range(
        min=0, max=last, step=1, name="checkpoint (the title names its step) "
    )
    chart = (
        alt.Chart(alt.Data(values=maps.rows))
        .transform_filter(
            "datum.pair == pair && datum.attention == attention && datum.checkpoint == checkpoint"
        )
        .transform_flatten(["weight", "query", "key"])
        .mark_rect()
        .encode(
            x=alt.X("key:N", sort=None, title="key", axis=_tokens()),
            y=alt.Y("query:N", sort=None, title="query", axis=_tokens()),
            color=alt.Color(
                "weight:Q",
                scale=alt.Scale(domain=[0, 1], scheme="viridis"),
                legend=alt.Legend(title="weight", orient="bottom"),
            ),
            tooltip=["query:N", "key:N", alt.Tooltip("weight:Q", format=".3f"), "head:N"],
        )
        .properties(width=alt.Step(CELL), height=alt.Step(CELL))
        .facet(column=alt.Column("head:N", title=None))
        .add_params(
            choice("pair", 0, options=names, labels=maps.pairs),
            choice("attention", maps.attentions[-1], options=maps.attentions),
            alt.param(name="checkpoint", value=last, bind=slider),
        )
        .properties(title=alt.Title(alt.expr(f"attention + ', step ' + {maps.steps}[checkpoint]")))
    )
    return _chart("Attention of every head", chart)


def _tokens() -> "alt.Axis":
    """Ticks show the token alone; the place before it keeps equal tokens apart."""
    import altair as alt

    label = "slice(datum.label, indexof(datum.label, ' ') + 1)"
    return alt.Axis(labelExpr=label, labelAngle=0, labelFontSize=9, ticks=False, domain=False)


def _legend() -> "alt.Legend":
    import altair as alt

    return alt.Legend(orient="top", labelLimit=300)


def _chart(title: str, chart: Any) -> Chart:
    return Chart(title, chart.properties(description=title).to_dict())
