"""The parts of a page about one run, and those that other commands show alone.

Each function returns one Section. A part that cannot be made says why in its place, so that a page
of a damaged run still shows the rest.
"""

from collections.abc import Callable, Iterator
from typing import Any

from toytrans.config.load import compared_with_defaults
from toytrans.config.sealed import fault_remark
from toytrans.data.batches import make_batch
from toytrans.data.selection import Selection, pairs_of_split
from toytrans.errors import UserError
from toytrans.evaluation import PARTS, Scores, evaluate, translate
from toytrans.insight.attention.maps import AttentionMaps, few, validation_pairs
from toytrans.insight.diagnosis.doctor import examine
from toytrans.insight.diagnosis.snapshot import read_snapshot
from toytrans.insight.inspected import ATTENTIONS, InspectedBatch
from toytrans.insight.masks.mask_tables import REASONS, reasons
from toytrans.insight.proofs import check
from toytrans.insight.proofs.report import Report as Proofs
from toytrans.insight.tables import Table
from toytrans.model.build import as_transformer
from toytrans.model.initialisation import count_parameters
from toytrans.report import charts
from toytrans.report.attention import at_every_checkpoint, of_validation
from toytrans.report.page import Section, section
from toytrans.report.runs import RunView
from toytrans.training.faults import objective_of
from toytrans.training.records import NOT_MEASURED
from toytrans.training.run import Record, Run

EVALUATED = 1000
"""Test pairs that are measured."""

TRANSLATED, SHOWN = 200, 15
"""Test pairs that are translated, and how many are shown; wrong ones first."""

MASK_LENGTHS = (8, 4)
"""Source lengths of the pairs whose masks are shown: the second has pads."""

Follow = Callable[[str], None]
"""Called with what is being done."""


def sections_of(view: RunView, follow: Follow) -> Iterator[Section]:
    """Every part of the page of one run, in order."""
    yield _summary(view)
    if view.records:
        yield section("curves", "Training", charts=charts.curves({view.name: view.records}))
    parts: list[tuple[str, str, Callable[[Run], Section]]] = [
        ("lengths", "Exact match by length", _lengths),
        ("masks", "Masks", lambda run: masks(inspected_of_run(run))),
        ("attention", "Attention", lambda run: attention_of(of_validation(run))),
        ("translations", "Translations", _translations),
        ("check", "Proofs", lambda run: proofs(check(run))),
    ]
    for name, title, make in parts:
        follow(title.lower())
        yield _or_reason(name, title, view, make)
    if view.config is not None:
        yield _diagnosis(view)
        yield _config(view)
    if view.environment:
        rows = [(key, _plain(value)) for key, value in view.environment.items()]
        yield section("environment", "Environment", facts=rows)


def _or_reason(name: str, title: str, view: RunView, make: Callable[[Run], Section]) -> Section:
    """A part, or why it cannot be made."""
    if view.run is None:
        return section(name, title, missing=view.problem or "the run has no checkpoint")
    try:
        return make(view.run)
    except UserError as error:
        return section(name, title, missing=str(error))


def _summary(view: RunView) -> Section:
    rows = [("run", str(view.path)), ("state", view.state)]
    if view.run is not None:
        rows.append(("weights", f"step {view.run.step:,}"))
        rows.append(("parameters", f"{count_parameters(view.run.model):,}"))
    rows.append(("best exact match", _best(view.records)))
    rows.append(("training time", view.training_time))
    for key in ("device", "precision", "started"):
        if view.environment.get(key):
            rows.append((key, _plain(view.environment[key])))
    if view.config is not None:
        rows.append(("task", view.config.data.task or "files"))
        rows.append(("seed", str(view.config.seed)))
        if about := fault_remark(view.config.fault):
            rows.append((about.partition(": ")[0], about.partition(": ")[2] or "yes"))
    return section("summary", "Summary", facts=rows, missing=view.problem)


def _best(records: list[Record]) -> str:
    measured = [row for row in records if row.get("valid_exact_match") is not None]
    if not measured:
        return NOT_MEASURED
    top = max(measured, key=lambda row: row["valid_exact_match"])
    return f"{top['valid_exact_match']:.4f} at step {top['step']:,}"


def measured(run: Run) -> Scores:
    """Exact match on the run's test pairs. Raises UserError."""
    pairs = pairs_of_split(run.config, run.facts, "test", Selection(examples=EVALUATED))
    return evaluate(run.model, pairs, run.facts, source_bos=run.config.source_bos)


def _lengths(run: Run) -> Section:
    result = measured(run).to_dict()
    low, high = run.facts.train_length
    rows = [
        [
            name,
            f"{part['decoded']:,}",
            f"{part['exact_match']:.4f}",
            f"{part['low']:.3f} to {part['high']:.3f}",
            f"{part['loss']:.4f}",
        ]
        for name, part in (
            *((PARTS[key], result[key]) for key in PARTS if key in result),
            ("all", result),
        )
    ]
    heads = ["test pairs", "number", "exact match", "95% interval", "loss"]
    chart = charts.lengths({run.path.name: result["by_length"]}, run.facts.train_length, "source")
    text = (
        f"Trained on lengths {low} to {high}. Each output is decoded greedily and counts if it "
        "equals its target to the end."
    )
    return section(
        "lengths", "Exact match by length", text=text, charts=[chart], table=(heads, rows)
    )


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
    pairs = []
    for pair in range(len(inspected.batch.src)):
        grids = []
        for name, title in ATTENTIONS.items():
            queries, keys = inspected.tokens(name, pair)
            letters = reasons(inspected, name)[pair]
            grids.append(
                {
                    "title": title,
                    "keys": keys,
                    "rows": [
                        (
                            query,
                            [_cell(q, query, k, key, letters[q][k]) for k, key in enumerate(keys)],
                        )
                        for q, query in enumerate(queries)
                    ],
                }
            )
        pairs.append({"title": f"Pair {pair + 1}", "grids": grids})
    text = (
        "Queries down, keys across. Point at a cell, or move with the arrow keys, to read why it "
        "is open or closed."
    )
    return section("masks", "Masks", text=text, masks=pairs)


def _cell(q: int, query: str, k: int, key: str, letter: str) -> tuple[str, str]:
    """How a cell looks and what it says."""
    looks = {"1": "open", "!": "wrong", "?": "wrong"}.get(letter, "closed")
    why = "open" if letter == "1" else f"{'open' if letter == '!' else 'closed'}: {REASONS[letter]}"
    return looks, f"query {q} {query}, key {k} {key}: {why}"


def attention_of(shown: AttentionMaps) -> Section:
    """The maps of some pairs, with a slider over the checkpoints, and what each head does."""
    maps = at_every_checkpoint(shown)
    text = (
        "In cross-attention a query has the name of the token that it predicts. The slider goes "
        f"through the checkpoints. The rules of heads are measured on {shown.basis}."
    )
    if len(maps.steps) == 1:
        text += " This run has one checkpoint; train.keep_checkpoints keeps more."
    if maps.hidden:
        text += f" {maps.hidden} checkpoints are left out for size."
    names = ["attention", "head", "rule that it follows", "share of queries", "by chance"]
    rows = [
        [
            *(f"{each.part} {each.layer}", str(each.head), each.label),
            *(f"{each.best.share:.2f}", f"{each.best.chance:.2f}"),
        ]
        for each in shown.heads
    ]
    return section(
        "attention", "Attention", text=text, charts=[charts.attention(maps)], table=(names, rows)
    )


def _translations(run: Run) -> Section:
    pairs = pairs_of_split(run.config, run.facts, "test", Selection(examples=TRANSLATED))
    decode = run.vocabulary.decode
    sources = [decode(ids) for ids in pairs.src.tolist()]
    targets = [decode(ids) for ids in pairs.tgt.tolist()]
    outputs = translate(run.model, sources, run.facts, source_bos=run.config.source_bos)
    triples = list(zip(sources, targets, outputs, strict=True))
    wrong = [each for each in triples if each[1] != each[2]]
    right = [each for each in triples if each[1] == each[2]]
    shown = [*wrong[: SHOWN - 5], *right][:SHOWN]
    text = f"{len(wrong)} of {len(triples)} test pairs are wrong; a first error is marked."
    rows = [
        (" ".join(src), " ".join(tgt), _marked(tgt, out), tgt == out) for src, tgt, out in shown
    ]
    return section("translations", "Translations", text=text, translations=rows)


def _marked(target: list[str], output: list[str]) -> tuple[str, str, str]:
    """The output before its first error, the error, and what follows. An output that ends too
    early has its end marked."""
    if output == target:
        return " ".join(output), "", ""
    same = [a == b for a, b in zip(target, output, strict=False)]
    place = same.index(False) if False in same else len(same)
    error = output[place] if place < len(output) else "(ends here)"
    return " ".join(output[:place]), error, " ".join(output[place + 1 :])


def proofs(report: Proofs) -> Section:
    """A report of `check`."""
    rows = [
        (f.letter, f.title, f.shown_verdict, f.message, list(f.details.items()))
        for f in report.findings
    ]
    text = f"{report.subject}, {report.precision}: {report.verdict}{report.reduced}."
    if report.tried is not None:
        text += f" Tried: {report.tried}."
    return section("check", "Proofs", text=text, proofs=rows)


def tables(name: str, title: str, given: list[Table]) -> Section:
    """Tables of `inspect-masks` and `trace`."""
    return section(name, title, tables=given)


def _diagnosis(view: RunView) -> Section:
    try:
        symptoms = examine(read_snapshot(view.path))
    except UserError as error:
        return section("doctor", "Diagnosis", missing=str(error))
    rows = [[each.severity, each.what, each.evidence, each.remedy] for each in symptoms]
    if not rows:
        return section("doctor", "Diagnosis", text="Nothing looks wrong.")
    heads = ["severity", "symptom", "evidence", "remedy"]
    return section("doctor", "Diagnosis", table=(heads, rows))


def _config(view: RunView) -> Section:
    assert view.config is not None
    rows = [
        (key, _plain(value), None if value == default else _plain(default))
        for key, value, default in compared_with_defaults(view.config)
    ]
    text = "Values that differ from their defaults are marked."
    return section("config", "Configuration", text=text, config=rows)


def _plain(value: Any) -> str:
    return "null" if value is None else str(value)
