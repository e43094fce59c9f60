"""The parts of a page about runs.

A part that cannot be made says why in its place, so that a page of a damaged run shows the rest.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from toytrans.checks.report import Report as Checks
from toytrans.checks.run import check
from toytrans.config.faults import fault_remark
from toytrans.config.load import flatten
from toytrans.data.selection import Selection, pairs_of_split
from toytrans.doctor.findings import examine
from toytrans.doctor.record import read_snapshot
from toytrans.errors import UserError, listed
from toytrans.evaluation import translate
from toytrans.html import table_html
from toytrans.measure import Measure
from toytrans.measurement import Result, split_of
from toytrans.model.seq2seq import count_parameters
from toytrans.report import charts
from toytrans.report.page import Section, html
from toytrans.sweeps.comparison import compare, labels_of, measures_of, of_one, runs_of
from toytrans.table import Cell, Table
from toytrans.training.folder import METRICS
from toytrans.training.run import NOT_MEASURED, Run, state_of

EVALUATED = 1000
"""Pairs that are measured of a run that is shown alone."""

LENGTHS = "Exact match by length"

TRANSLATED, SHOWN = 200, 15
"""Test pairs that are translated, and how many are shown; wrong ones first."""

Follow = Callable[[str], None]
"""Called with what is being done."""


class View(NamedTuple):
    """A run as it is: what can be read of it, and why the rest cannot."""

    path: Path
    folder: Run | None
    run: Run | None
    problem: str

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name or str(self.path)


def views_of(
    paths: Sequence[Path], trust_code: bool, checkpoint: str = "best", device: str = "cpu"
) -> list[View]:
    """Read the runs of run directories, folders of runs and sweeps, each once. Damage is part of a
    view; only a path without runs raises UserError.

    trust_code: whether code that the runs name may run. checkpoint, device: of their models.
    """
    runs = {os.path.abspath(run): run for path in paths for run in runs_of(path)}
    return [_view_of(run, trust_code, checkpoint, device) for run in runs.values()]


def _view_of(path: Path, trust_code: bool, checkpoint: str, device: str) -> View:
    folder, run, problems = None, None, []
    try:
        opened = Run.open(path, trust_code, checkpoint, device)
        if opened.damaged_lines:
            lines = f"lines that hold no record: {opened.damaged_lines}"
            problems.append(f"{path / METRICS}: {lines}")
        folder = opened
        assert opened.model, "it is read here, where damage is caught"
        run = opened
    except UserError as error:
        problems.append(str(error))
    return View(path, folder, run, "\n".join(problems))


def sections_of(views: Sequence[View], follow: Follow) -> Iterator[Section]:
    """Every part of the page of one run, or of several beside each other, in order."""
    named = {view.name: view for view in views}
    if len(named) < len(views):
        named = {str(view.path): view for view in views}
    yield _summary(named)
    recorded = {name: view.folder.records for name, view in named.items() if view.folder}
    if curves := charts.curves(recorded):
        yield Section("curves", "Training", charts=curves)
    if len(views) > 1:
        yield _beside(views, follow)
    else:
        yield from _inside(views[0], follow)


def _inside(view: View, follow: Follow) -> Iterator[Section]:
    """What is inside a model, and what is wrong with it."""
    parts: list[tuple[str, str, Callable[[], Section]]] = []
    if (run := view.run) is not None:
        parts = [
            ("lengths", LENGTHS, lambda: _lengths(run)),
            ("translations", "Translations", lambda: _translations(run)),
            ("check", "Checks", lambda: checks(check(run))),
        ]
    if view.folder is not None:
        parts.append(("doctor", "Diagnosis", lambda: _diagnosis(view.path)))
    for name, title, make in parts:
        follow(title.lower())
        try:
            yield make()
        except UserError as error:
            yield Section(name, title, missing=str(error))
    if view.folder is not None:
        yield _config(view.folder)
        rows = [(key, _text(value)) for key, value in view.folder.environment.items()]
        yield Section("environment", "Environment", blocks=[_facts(rows)])


def _facts(rows: Iterable[tuple[str, str]]) -> Markup:
    """Names, and beside each what there is to say of it."""
    return table_html(Table("", ("", ""), list(rows), kind="facts"))


def _summary(views: dict[str, View]) -> Section:
    """What each run is."""
    rows, missing = {}, dict[str, list[str]]()
    for name, view in views.items():
        config, state = view.folder and view.folder.settings, state_of(view.path)
        fault = fault_remark(config.fault) if config else ""
        records = view.folder.records if view.folder else []
        seconds = records[-1].get("elapsed_s") if records else None
        best = state.exact_match
        rows[name] = {
            "run": name,
            "state": "; ".join(filter(None, (str(state), fault))),
            "step": f"{view.run.step:,}" if view.run else "",
            "best on validation": NOT_MEASURED if best is None else f"{best:.4f}",
            "training time": NOT_MEASURED if seconds is None else f"{seconds:.1f} s",
            "seed": str(config.seed) if config else "",
            "parameters": f"{count_parameters(view.run.model):,}" if view.run else "",
            "task": Path(config.data.task or "files").name if config else "",
        }
        for line in view.problem.splitlines():
            missing.setdefault(line, []).append(name)
    first, *_ = rows.values()
    if len(rows) == 1:
        (view,) = views.values()
        text = (
            f"To see its masks and attention at work: `toytrans live {view.path}` writes a page "
            "in which the model itself runs."
        )
        facts = _facts(first.items())
        return Section("summary", "Summary", text, "\n".join(missing), blocks=[facts])
    lines = [f"{listed(names)}: {line}" for line, names in missing.items()]
    text = "The buttons in the headings sort the table."
    table = Table("", list(first), [[*row.values()] for row in rows.values()], kind="data sortable")
    return Section("summary", "Runs", text, "\n".join(lines), blocks=[table_html(table)])


def _beside(views: Sequence[View], follow: Follow) -> Section:
    """Runs grouped by config, as `toytrans eval` compares them."""
    runs = {view.path: view.run for view in views}
    asked = next(iter(measures_of(list(runs)).values()))
    for run in filter(None, runs.values()):  # all of them at the checkpoint that was asked for
        if run.checkpoint != "best":
            asked = asked.model_copy(update={"checkpoint": run.checkpoint})

    def take(path: Path, measure: Measure) -> Result:
        follow(f"exact match of {path}")
        return (runs[path] or Run.open(path, device="cpu")).measure(measure)

    compared = compare(list(runs), asked=asked, take=take)
    blocks = list(map(table_html, compared.tables()))
    drawn = charts.by_length(LENGTHS, compared)
    return Section("lengths", LENGTHS, charts=drawn, blocks=blocks)


def _measure_of(run: Run) -> Measure:
    """What its sweep measures of a run, at the checkpoint that was asked for; of others the first
    pairs."""
    labels = labels_of(run.path)
    measures = measures_of([run.path]).values() if labels else []
    asked = next((each.measure for each in measures if each.is_of(labels)), None)
    asked = asked or Measure(split=split_of(run.settings), examples=EVALUATED)
    return asked.model_copy(update={"checkpoint": run.checkpoint})


def _lengths(run: Run) -> Section:
    """Exact match of one run."""
    wanted = _measure_of(run)
    result = run.kept_result(wanted) or run.measure(wanted)
    low, high = result.train_length
    text = (
        f"Trained on lengths {low} to {high}. Each output is decoded greedily and counts if it "
        "equals its target to the end."
    )
    blocks = list(map(table_html, result.tables()))
    drawn = charts.by_length(LENGTHS, of_one(run, result))
    return Section("lengths", LENGTHS, text=text, charts=drawn, blocks=blocks)


def _translations(run: Run) -> Section:
    split = split_of(run.settings)
    pairs = pairs_of_split(run.settings, run.facts, split, Selection(examples=TRANSLATED))
    decode = run.vocabulary.decode
    sources, targets = ([decode(ids) for ids in side.tolist()] for side in (pairs.src, pairs.tgt))
    triples = list(zip(sources, targets, translate(run.model, sources, run.facts), strict=True))
    wrong = [each for each in triples if each[1] != each[2]]
    right = [each for each in triples if each[1] == each[2]]
    rows = [
        [" ".join(src), " ".join(tgt), _marked(tgt, out), "yes" if tgt == out else "no"]
        for src, tgt, out in [*wrong[: SHOWN - 5], *right][:SHOWN]
    ]
    text = f"{len(wrong)} of {len(triples)} {split} pairs are wrong; a first error is marked."
    table = Table("", ["source", "target", "output", "right"], rows, kind="data tokens")
    return Section("translations", "Translations", text, blocks=[table_html(table)])


def _marked(target: list[str], output: list[str]) -> str:
    """The output with its first error marked; its end, if it ends too early."""
    if output == target:
        return " ".join(output)
    same = [a == b for a, b in zip(target, output, strict=False)]
    place = same.index(False) if False in same else len(same)
    error = output[place] if place < len(output) else "(ends here)"
    parts = " ".join(output[:place]), error, " ".join(output[place + 1 :])
    return html("{} <mark>{}</mark> {}", *parts)


def _diagnosis(path: Path) -> Section:
    symptoms = examine(read_snapshot(path))
    rows = [[each.severity, each.what, each.evidence, each.remedy] for each in symptoms]
    if not rows:
        return Section("doctor", "Diagnosis", "Nothing looks wrong.")
    table = Table("", ["severity", "symptom", "evidence", "remedy"], rows)
    return Section("doctor", "Diagnosis", blocks=[table_html(table)])


def _config(folder: Run) -> Section:
    """Every key; values that the config states stand out."""
    stated = flatten(folder.config.model_dump(exclude_unset=True))
    values = flatten(folder.settings.model_dump(mode="json"))
    rows = [
        [key, Cell(_text(value), "differs" if key in stated else "")]
        for key, value in values.items()
    ]
    text = "The config states the bold values. The others are defaults, or follow from these."
    table = Table("", ["key", "value"], rows)
    return Section("config", "Configuration", text, blocks=[table_html(table)])


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def checks(report: Checks) -> Section:
    """A report of `check`."""
    rows = []
    for each in report.results:
        details = [html("<br>{}: <code>{}</code>", *detail) for detail in each.details.items()]
        seen = html("{}", each.message) + html("").join(details)
        verdict = Cell(each.verdict, each.verdict.replace(" ", "-"))
        rows.append([each.name, each.title, verdict, seen])
    text = f"{report.subject}, {report.precision}: {report.end}. Tried: {report.scope}."
    columns = ["check", "what it asks", "verdict", "what was seen"]
    table = Table("", columns, rows, kind="data checks")
    return Section("check", "Checks", text, blocks=[table_html(table)])
