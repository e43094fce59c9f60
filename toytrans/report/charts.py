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


class Measure(NamedTuple):
    """A curve of training. keys: of records, with the names of their lines. log: the scale."""

    title: str
    keys: dict[str, str]
    log: bool = False
    format: str = ".4f"


MEASURES = (
    Measure("Loss in nats a token", {"loss": "training", "valid_loss": "validation"}, log=True),
    Measure("Exact match on validation data", {"valid_exact_match": "exact match"}),
    Measure("Learning rate", {"lr": "learning rate"}, format=".3g"),
    Measure("Norm of the gradient", {"grad_norm": "norm"}, log=True, format=".3g"),
    Measure("Target tokens a second", {"tokens_per_s": "tokens"}, format=",.0f"),
)


def curves(runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[Chart]:
    """One chart a measure, of the records of some runs by name."""
    rows = {name: _with_pace(records) for name, records in runs.items()}
    charts = []
    for measure in MEASURES:
        points = [
            {"run": name, "line": line, "step": row["step"], "value": row[key]}
            for name, records in rows.items()
            for key, line in measure.keys.items()
            for row in thinned([row for row in records if _is_drawn(row.get(key), measure.log)])
        ]
        if points:
            charts.append(Chart(measure.title, _curve(measure, points, several=len(runs) > 1)))
    return charts


def _is_drawn(value: Any, log: bool) -> bool:
    """Whether a scale has a place for a value."""
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def thinned(rows: Rows, most: int = MOST_POINTS) -> Rows:
    """At most so many rows, the first and the last among them."""
    if len(rows) <= most:
        return rows
    return [rows[round(k * (len(rows) - 1) / (most - 1))] for k in range(most)]


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


def _curve(measure: Measure, points: Rows, *, several: bool) -> dict[str, Any]:
    import altair as alt

    scale = alt.Scale(type="log") if measure.log else alt.Scale(zero=False)
    encoding: dict[str, Any] = {
        "x": alt.X("step:Q", title="step"),
        "y": alt.Y("value:Q", title=None, scale=scale),
        "tooltip": [
            *[alt.Tooltip("run:N")] * several,
            alt.Tooltip("line:N", title="curve"),
            alt.Tooltip("step:Q", format=","),
            alt.Tooltip("value:Q", format=measure.format),
        ],
    }
    if several:
        encoding["color"] = alt.Color("run:N", title=None, legend=_legend())
        if len(measure.keys) > 1:
            encoding["strokeDash"] = alt.StrokeDash("line:N", title=None, legend=_legend())
    elif len(measure.keys) > 1:
        encoding["color"] = alt.Color("line:N", title=None, legend=_legend())
    few = len(points) <= 40
    chart = alt.Chart(alt.Data(values=points)).mark_line(point=few, clip=True).encode(**encoding)
    return _spec(chart.properties(width="container", height=180), measure.title)


def lengths(runs: dict[str, Rows], trained: tuple[int, int] | None, side: str) -> Chart:
    """Exact match with its 95% interval by length, of some runs by name.

    runs: rows with length, exact_match, low, high and decoded. trained: the training lengths.
    """
    import altair as alt

    title = "Exact match by length"
    points = [
        {"run": name}
        | {key: row[key] for key in ("length", "exact_match", "low", "high")}
        | {"pairs": row["decoded"]}
        for name, rows in runs.items()
        for row in rows
    ]
    axis = f"{side} length in symbols"
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("length:Q", title=axis, axis=alt.Axis(tickMinStep=1)),
        tooltip=[
            *[alt.Tooltip("run:N")] * (len(runs) > 1),
            alt.Tooltip("length:Q"),
            alt.Tooltip("exact_match:Q", title="exact match", format=".3f"),
            alt.Tooltip("low:Q", format=".3f"),
            alt.Tooltip("high:Q", format=".3f"),
            alt.Tooltip("pairs:Q"),
        ],
    )
    if len(runs) > 1:
        base = base.encode(color=alt.Color("run:N", title=None, legend=_legend()))
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
    return Chart(title, _spec(chart, title))


def attention(maps: "Maps") -> Chart:
    """The heads of one attention of one pair at one checkpoint, all three to be chosen."""
    import altair as alt

    title = "Attention of every head"
    steps = maps.steps
    pair = alt.param(
        name="pair",
        value=0,
        bind=alt.binding_select(
            options=list(range(len(maps.pairs))), labels=maps.pairs, name="pair "
        ),
    )
    chosen = alt.param(
        name="attention",
        value=maps.attentions[-1],
        bind=alt.binding_select(options=maps.attentions, name="attention "),
    )
    last = len(steps) - 1
    slider = alt.param(
        name="checkpoint",
        value=last,
        bind=alt.binding_range(
            min=0, max=last, step=1, name="checkpoint (the title names its step) "
        ),
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
            tooltip=[
                alt.Tooltip("query:N"),
                alt.Tooltip("key:N"),
                alt.Tooltip("weight:Q", format=".3f"),
                alt.Tooltip("head:N"),
            ],
        )
        .properties(width=alt.Step(CELL), height=alt.Step(CELL))
        .facet(column=alt.Column("head:N", title=None))
        .add_params(pair, chosen, slider)
        .properties(title=alt.Title(alt.expr(f"attention + ', step ' + {steps}[checkpoint]")))
    )
    return Chart(title, _spec(chart, title))


def _tokens() -> "alt.Axis":
    """Ticks show the token alone; the place before it keeps equal tokens apart."""
    import altair as alt

    label = "slice(datum.label, indexof(datum.label, ' ') + 1)"
    return alt.Axis(labelExpr=label, labelAngle=0, labelFontSize=9, ticks=False, domain=False)


def _legend() -> "alt.Legend":
    import altair as alt

    return alt.Legend(orient="top", labelLimit=300)


def _spec(chart: Any, description: str) -> dict[str, Any]:
    spec: dict[str, Any] = chart.properties(description=description).to_dict()
    return spec
