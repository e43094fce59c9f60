"""The parts of a page about runs, and those that other commands show alone.

A part that cannot be made says why in its place, so that a page of a damaged run shows the rest.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from toytrans.checks.plan import check
from toytrans.checks.result import Report as Checks
from toytrans.config.load import compared_with_defaults
from toytrans.config.names import fault_remark
from toytrans.data.batches import make_batch
from toytrans.data.open import Selection, pairs_of_split
from toytrans.doctor.findings import examine
from toytrans.doctor.record import read_snapshot
from toytrans.errors import UserError, listed
from toytrans.evaluation import PARTS, Scores, spans, translate
from toytrans.inspection import heads
from toytrans.inspection.heads import AttentionMaps, few, maps_of, validation_pairs
from toytrans.inspection.shown import ATTENTIONS, InspectedBatch
from toytrans.inspection.table import CLOSED, Table
from toytrans.model.build import as_transformer
from toytrans.model.initialisation import count_parameters
from toytrans.report import charts
from toytrans.report.page import Block, Cell, Grid, Section, html
from toytrans.sweeps.comparison import runs_of
from toytrans.training.faults import objective_of
from toytrans.training.run import METRICS, NOT_MEASURED, Record, Run, RunFolder, state_of

EVALUATED = 1000
"""Test pairs that are measured."""

TRANSLATED, SHOWN = 200, 15
"""Test pairs that are translated, and how many are shown; wrong ones first."""

MASK_LENGTHS = (8, 4)
"""Source lengths of the pairs whose masks are shown: the second has pads."""

MOST_CELLS = 30_000
"""Cells of all attention maps of a page. Checkpoints are left out where there would be more."""

Follow = Callable[[str], None]
"""Called with what is being done."""


class View(NamedTuple):
    """A run as it is: what can be read of it, and why the rest cannot."""

    path: Path
    folder: RunFolder | None
    records: list[Record]
    run: Run | None
    problem: str

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)


def views_of(paths: Sequence[Path]) -> list[View]:
    """Read the runs of run directories, folders of runs and sweeps, each once. Damage is part of a
    view; only a path without runs raises UserError."""
    runs = {os.path.abspath(run): run for path in paths for run in runs_of(path)}
    return list(map(_view_of, runs.values()))


def _view_of(path: Path) -> View:
    folder, records, run, problems = None, list[Record](), None, []
    try:
        folder = RunFolder.open(path)
        records = folder.records
        if folder.damaged_lines:
            lines = f"lines that hold no record: {folder.damaged_lines}"
            problems.append(f"{path / METRICS}: {lines}")
        run = folder.load("best", "cpu")
    except UserError as error:
        problems.append(str(error))
    return View(path, folder, records, run, "\n".join(problems))


def sections_of(views: Sequence[View], follow: Follow) -> Iterator[Section]:
    """Every part of the page of one run, or of several beside each other, in order."""
    several = len(views) > 1
    named = {view.name: view for view in views}
    if len(named) < len(views):
        named = {str(view.path): view for view in views}
    results, missing = {}, dict[str, list[str]]()
    for name, view in named.items():
        follow(f"exact match of {name}")
        problem = view.problem
        if view.run is not None:
            try:
                results[name] = view.run.measure("test", Selection(examples=EVALUATED))
            except UserError as error:
                problem = str(error)
        for line in problem.splitlines():
            missing.setdefault(line, []).append(name)
    lines = [f"{listed(names)}: " * several + line for line, names in missing.items()]
    yield _summary(named, results, "\n".join(lines))
    if recorded := {name: view.records for name, view in named.items() if view.records}:
        yield Section("curves", "Training", charts=charts.curves(recorded))
    if results:
        yield _lengths(results)
    if not several:
        yield from _inside(views[0], follow)
    yield _config(named)
    if not several and (folder := views[0].folder) and folder.environment:
        rows = [(key, _text(value)) for key, value in folder.environment.items()]
        yield Section("environment", "Environment", table=Grid((), rows, "facts"))


def _inside(view: View, follow: Follow) -> Iterator[Section]:
    """What is inside a model, and what is wrong with it."""
    parts: list[tuple[str, str, Callable[[], Section]]] = []
    if (run := view.run) is not None:
        parts = [
            ("masks", "Masks", lambda: masks(inspected_of_run(run))),
            ("attention", "Attention", lambda: attention_of(maps_of(run))),
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


def _summary(views: dict[str, View], results: dict[str, Scores], missing: str) -> Section:
    """What each run is and how good it is."""
    there = {part for scores in results.values() for part in scores.parts()}
    rows = {}
    for name, view in views.items():
        scores, config, run = results.get(name), view.folder and view.folder.config, view.run
        fault = fault_remark(config.fault) if config else ""
        facts = {"run": name, "state": "; ".join(filter(None, (str(state_of(view.path)), fault)))}
        facts["step"] = f"{run.step:,}" if run else ""
        for part in PARTS:
            if part in there:
                found = scores.parts().get(part) if scores else None
                match = f"{found['exact_match']:.4f}" if found else NOT_MEASURED
                facts[f"free-running exact match, {PARTS[part]}"] = match
        facts["loss"] = f"{scores.summary()['loss']:.4f}" if scores else NOT_MEASURED
        matches = ((r.get("valid_exact_match"), -r["step"]) for r in view.records)
        known = [(match, step) for match, step in matches if match is not None]
        best = f"{max(known)[0]:.4f} at step {-max(known)[1]:,}" if known else NOT_MEASURED
        seconds = view.records[-1].get("elapsed_s") if view.records else None
        facts["best on validation"] = best
        facts["training time"] = NOT_MEASURED if seconds is None else f"{seconds:.1f} s"
        facts["seed"] = str(config.seed) if config else ""
        facts["parameters"] = f"{count_parameters(run.model):,}" if run else ""
        facts["task"] = Path(config.data.task or "files").name if config else ""
        rows[name] = facts
    first, *rest = rows.values()
    if not rest:
        return Section(
            "summary", "Summary", table=Grid((), first.items(), "facts"), missing=missing
        )
    text = "The buttons in the headings sort the table."
    table = Grid(list(first), [list(row.values()) for row in rows.values()], "data sortable")
    return Section("summary", "Runs", text=text, table=table, missing=missing)


def _lengths(results: dict[str, Scores]) -> Section:
    several = len(results) > 1
    summaries = {
        f"{name}, {label}" if several else label: summary
        for name, scores in results.items()
        for label, summary in scores.labelled()
    }
    for scores in [] if several else results.values():
        for low, high, _ in spans(scores.lengths, scores.train_length):
            label = f"{low} to {high}" if low < high else f"length {low}"
            summaries[label] = scores.summary(low, high)
    cells = ("{decoded:,}", "{exact_match:.4f}", "{low:.3f} to {high:.3f}", "{loss:.4f}")
    rows = [[label, *(cell.format(**of) for cell in cells)] for label, of in summaries.items()]
    heads = ["test pairs", "number", "free-running exact match", "95% interval", "loss"]
    text = (
        "Measured are the test pairs of each run's own config. Each output is decoded greedily and "
        "counts if it equals its target to the end."
    )
    ranges = {scores.train_length for scores in results.values()}
    trained = ranges.pop() if len(ranges) == 1 else None
    if trained:
        text = f"Trained on lengths {trained[0]} to {trained[1]}. {text}"
    title = "Exact match by length"
    svg = charts.lengths(title, results, trained)
    return Section("lengths", title, text=text, charts={title: svg}, table=Grid(heads, rows))


def _translations(run: Run) -> Section:
    pairs = pairs_of_split(run.config, run.facts, "test", Selection(examples=TRANSLATED))
    decode = run.vocabulary.decode
    sources, targets = ([decode(ids) for ids in side.tolist()] for side in (pairs.src, pairs.tgt))
    triples = list(zip(sources, targets, translate(run.model, sources, run.facts), strict=True))
    wrong = [each for each in triples if each[1] != each[2]]
    right = [each for each in triples if each[1] == each[2]]
    rows = [
        [" ".join(src), " ".join(tgt), _marked(tgt, out), "yes" if tgt == out else "no"]
        for src, tgt, out in [*wrong[: SHOWN - 5], *right][:SHOWN]
    ]
    text = f"{len(wrong)} of {len(triples)} test pairs are wrong; a first error is marked."
    table = Grid(["source", "target", "output", "right"], rows, "data tokens")
    return Section("translations", "Translations", text=text, table=table)


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
    table = Grid(["severity", "symptom", "evidence", "remedy"], rows) if rows else None
    text = "" if rows else "Nothing looks wrong."
    return Section("doctor", "Diagnosis", text=text, table=table)


def _config(views: dict[str, View]) -> Section:
    """Every key of one run; of several, the keys whose values differ."""
    configs = {
        name: {key: rest for key, *rest in compared_with_defaults(view.folder.config)}
        for name, view in views.items()
        if view.folder is not None
    }
    rows = []
    for key in dict.fromkeys(key for config in configs.values() for key in config):
        found = [config.get(key, [None, None]) for config in configs.values()]
        values = [_text(value) for value, _ in found]
        if len(views) == 1 or len(set(values)) > 1:
            default = _text(found[0][1])
            looks = ["" if value == default else "differs" for value in values]
            rows.append([key, *map(Cell, values, looks), default])
    text = "Values that differ from their defaults are bold."
    if len(views) > 1:
        text = f"The keys whose values differ. {text}" if rows else "All configs are the same."
    table = Grid(["key", *configs, "default"], rows) if rows else None
    return Section("config", "Configuration", text=text, table=table)


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


# Parts that other commands show too ------------------------------------------------------------


def inspected_of_run(run: Run) -> InspectedBatch:
    """Two short validation pairs of different lengths, as one padded batch."""
    pairs = few(validation_pairs(run, TRANSLATED), MASK_LENGTHS)
    batch = objective_of(run.config.fault).batch(make_batch(pairs, run.config.source_bos))
    weights = f"weights of step {run.step}"
    model = as_transformer(run.model)
    return InspectedBatch(batch, run.vocabulary, model, weights, run.config.fault)


def masks(inspected: InspectedBatch) -> Section:
    """The three masks of every pair of a batch: a cell says its query, its key, and why it is
    closed."""
    blocks = []
    for pair in range(len(inspected.batch.src)):
        grids = []
        for name, title in ATTENTIONS.items():
            queries, keys = inspected.tokens(name, pair)
            rows = [
                [query, *(_marked_cell(*cell) for cell in line)]
                for query, line in zip(queries, inspected.cells(name, pair), strict=True)
            ]
            grids.append(Grid(["", *keys], rows, "mask", title))
        blocks.append(Block(grids, f"Pair {pair + 1}"))
    text = (
        "Queries down, keys across. Point at a cell, or move with the arrow keys, to read why it "
        "is open or closed."
    )
    return Section("masks", "Masks", text=text, blocks=blocks)


def attention_of(maps: AttentionMaps) -> Section:
    """The maps of some pairs, with a slider over the checkpoints, and what each head does."""
    steps = sorted({maps.run.step, *maps.run.steps})
    cells = sum(each.weights.numel() for each in maps.shown)
    most = min(len(steps), max(1, MOST_CELLS // max(1, cells)))
    kept = [steps[-1 - k * (len(steps) - 1) // max(1, most - 1)] for k in reversed(range(most))]
    text = (
        "Point at a cell, or move with the arrow keys, to read its weight. In cross-attention a "
        "query has the name of the token that it predicts. The slider goes through the "
        f"checkpoints. The rules of heads are measured on {maps.basis}."
    )
    if len(steps) == 1:
        text += " This run has one checkpoint; train.keep_checkpoints keeps more."
    if most < len(steps):
        text += f" {len(steps) - most} checkpoints are left out for size."
    names = ["attention", "head", "rule that it follows", "share of queries", "by chance"]
    rows = [
        [f"{head.part} {head.layer}", head.head, head.label]
        + [f"{value:.2f}" for value in (head.best.share, head.best.chance)]
        for head in maps.heads
    ]
    blocks = [block for step in kept for block in _at_step(maps, step)]
    return Section("attention", "Attention", text=text, blocks=blocks, table=Grid(names, rows))


def _at_step(maps: AttentionMaps, step: int) -> Iterator[Block]:
    """The same maps at a checkpoint of the run, a block for each attention and pair; none if a
    training has just removed it."""
    batch, vocabulary, shown = maps.batch, maps.run.vocabulary, maps.shown
    if step != maps.run.step:
        try:
            model = maps.run.load(str(step), "cpu").model
        except UserError:
            return
        wanted = {each[:3] for each in shown}
        shown = [each for each in heads.attend(model, batch) if each[:3] in wanted]
    rules = {(each.part, each.layer, each.head): each.label for each in maps.heads}
    for (part, layer), group in groupby(shown, lambda head: (head.part, head.layer)):
        name, of_layer = f"{part} {layer}", list(group)
        for pair, axes in enumerate(zip(*heads.axes(part, batch), strict=True)):
            queries, keys = ([vocabulary.name(i) for i in ids.tolist()] for ids in axes)
            grids = []
            for head in of_layer:
                rows = [
                    [query, *(_weight(query, *each) for each in zip(keys, row, strict=True))]
                    for query, row in zip(queries, head.weights[pair].tolist(), strict=True)
                ]
                rule = f"head {head.number}: {rules[part, layer, head.number]}"
                grids.append(Grid(["", *keys], rows, "mask heat", rule))
            choice = {"pair": maps.text(pair), "attention": name, "checkpoint": f"step {step}"}
            yield Block(grids, f"{name}, step {step}", choice=choice)


def _weight(query: str, key: str, weight: float) -> Cell:
    return Cell("", f"w{round(10 * weight)}", f"query {query}, key {key}: {weight:.3f}")


def checks(report: Checks) -> Section:
    """A report of `check`."""
    rows = []
    for each in report.results:
        details = [html("<br>{}: <code>{}</code>", *detail) for detail in each.details.items()]
        seen = html("{}", each.message) + html("").join(details)
        verdict = Cell(each.verdict, each.verdict.replace(" ", "-"))
        rows.append([each.name, each.title, verdict, seen])
    text = f"{report.subject}, {report.precision}: {report.end}. Tried: {report.scope}."
    table = Grid(["check", "what it asks", "verdict", "what was seen"], rows, "data checks")
    return Section("check", "Checks", text=text, table=table)


def tables(name: str, title: str, given: Sequence[Table]) -> Section:
    """Tables of `inspect-masks` and `trace`."""
    blocks = []
    for each in given:
        made = _marked_cell if each.marks else str
        rows = [[label, *map(made, cells)] for label, cells in each.rows]
        kind = "mask" if each.marks else "labelled data tokens"
        grids = [Grid(["", *each.columns], rows, kind)] if each.columns else []
        above = list(filter(None, (each.shape, each.legend)))
        blocks.append(Block(grids, f"{each.number} {each.name}", above, each.notes))
    return Section(name, title, blocks=blocks)


def _marked_cell(mark: str, says: str = "") -> Cell:
    """A cell of a mask."""
    looks = {"1": "open", CLOSED: "closed", "x": "wrong", "!": "wrong", "?": "wrong"}
    return Cell(mark, looks.get(mark, "reason"), says)
