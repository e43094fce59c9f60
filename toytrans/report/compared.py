"""The parts of a page about several runs."""

from collections.abc import Iterator
from typing import Any

from toytrans.config.load import flatten
from toytrans.config.sealed import fault_remark
from toytrans.errors import UserError
from toytrans.evaluation import PARTS
from toytrans.report import charts
from toytrans.report.page import Section, section
from toytrans.report.runs import RunView
from toytrans.report.sections import Follow, measured


def sections_of(views: list[RunView], follow: Follow) -> Iterator[Section]:
    """Every part of the page of several runs, in order."""
    names = _names(views)
    results, missing = {}, []
    for name, view in zip(names, views, strict=True):
        if view.problem or view.run is None:
            missing.append(f"{name}: {view.problem or 'no checkpoint'}")
        if view.run is None:
            continue
        follow(f"exact match of {name}")
        try:
            results[name] = measured(view.run).to_dict()
        except UserError as error:
            missing.append(f"{name}: {error}")
    yield _summary(names, views, results, missing)
    recorded = {name: v.records for name, v in zip(names, views, strict=True) if v.records}
    if recorded:
        yield section("curves", "Training", charts=charts.curves(recorded))
    if results:
        rows = {name: result["by_length"] for name, result in results.items()}
        spans = {v.facts.train_length for v in views if v.facts is not None}
        trained = spans.pop() if len(spans) == 1 else None
        chart = charts.lengths(rows, trained, "source")
        yield section("lengths", "Exact match by length", charts=[chart])
    yield _differences(names, views)


def _names(views: list[RunView]) -> list[str]:
    """Folder names, or whole paths where two are the same."""
    short = [view.name for view in views]
    return short if len(set(short)) == len(short) else [str(view.path) for view in views]


def _summary(
    names: list[str], views: list[RunView], results: dict[str, Any], missing: list[str]
) -> Section:
    parts = [part for part in PARTS if any(part in result for result in results.values())]
    heads = [
        "run",
        "state",
        "step",
        "seed",
        *(f"exact match, {PARTS[part]}" for part in parts),
        "loss",
    ]
    heads += ["training time"]
    rows = []
    for name, view in zip(names, views, strict=True):
        result = results.get(name, {})
        matches = [result[part]["exact_match"] if part in result else None for part in parts]
        rows.append(
            [
                name,
                _state(view),
                f"{view.run.step:,}" if view.run else "",
                view.config.seed if view.config else "",
                *["" if match is None else f"{match:.4f}" for match in matches],
                f"{result['loss']:.4f}" if result else "",
                view.training_time,
            ]
        )
    text = "The buttons in the headings sort the table."
    return section("summary", "Runs", text=text, sortable=(heads, rows), missing="\n".join(missing))


def _state(view: RunView) -> str:
    """How far a run has come, and that it is broken on purpose or a sealed exercise."""
    fault = fault_remark(view.config.fault) if view.config else ""
    return "; ".join(filter(None, (view.state, fault)))


def _differences(names: list[str], views: list[RunView]) -> Section:
    configs = {
        name: flatten(view.config.model_dump(mode="json"))
        for name, view in zip(names, views, strict=True)
        if view.config is not None
    }
    keys = list(dict.fromkeys(key for config in configs.values() for key in config))
    rows = [
        [key, *[str(config.get(key)) for config in configs.values()]]
        for key in keys
        if len({str(config.get(key)) for config in configs.values()}) > 1
    ]
    if not rows:
        return section("config", "Configuration", text="All configs are the same.")
    text = "The keys whose values differ."
    return section("config", "Configuration", text=text, table=(["key", *configs], rows))
