"""The tables of `train`, `eval` and `sweep`: what was measured, of one run and of several."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from toytrans.cli.common import (
    argument,
    broken,
    columns,
    output,
    plain,
    print_table,
    printable,
    share,
)
from toytrans.user_code import is_shipped

if TYPE_CHECKING:
    from toytrans.data.pairs import Dataset, Pairs, Split
    from toytrans.evaluation import Scores, Span, Summary
    from toytrans.sweeps.comparison import Comparison
    from toytrans.training.run import Run
    from toytrans.training.trainer import Trainer

SAMPLES = 4
SHORT = 10
"""Longest source of the translations that are shown."""

STYLE: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
Row = tuple[str, "Summary", bool]
"""Label, summary, and whether a gap follows."""


def interval(counts: dict[str, Any]) -> str:
    return f"{counts['low']:.3f}..{counts['high']:.3f}"


def _whole(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[name]:,}"


def _share(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: share(row[name])


def _difference(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row[name]:+.3f}" if row[name] else "0"


CELLS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "pairs": ("\npairs", _whole("examples")),
    "decoded": ("\ndecoded", _whole("decoded")),
    "exact": ("exact\nmatch", _share("exact_match")),
    "interval": ("\n95%", interval),
    "forced": ("\nforced", _share("forced_exact_match")),
    "difference": ("\ndiff.", _difference("exact_match_difference")),
    "free tokens": ("token\nacc.", _share("free_token_accuracy")),
    "tokens": ("token\nacc.", _share("token_accuracy")),
    "forced tokens": ("\nforced", _share("token_accuracy")),
    "token difference": ("\ndiff.", _difference("token_accuracy_difference")),
    "loss": ("\nloss", lambda row: f"{row['loss']:.4f}"),
    "wrong": ("\nwrong", _whole("wrong")),
    "median": ("first error,\nmedian place", lambda row: f"{row['first_error_median']:g}"),
    "earliest": ("\nearliest", _whole("first_error_earliest")),
    "early": ("EOS\ntoo early", _whole("eos_early")),
    "late": ("\ntoo late", _whole("eos_late")),
    "never": ("\nnever", _whole("eos_never")),
}
"""A column of a table: its heading, and its cell of a summary."""

BOTH_WAYS = (
    *("decoded", "exact", "interval", "forced", "difference"),
    *("free tokens", "forced tokens", "token difference"),
)
ERRORS = ("decoded", "wrong", "median", "earliest", "early", "late", "never")


def _table(title: str, headings: Iterable[str], caption: str | None = None) -> Table:
    """A table of numbers, narrow enough for nine columns."""
    style = STYLE | {"title": plain(title), "caption": caption, "pad_edge": False}
    return columns((), tuple(headings), **style)


def summaries_table(
    title: str, names: Sequence[str], rows: Iterable[Row], caption: str | None = None
) -> Table:
    """A table of summaries per length. names: of CELLS."""
    table = _table(title, ("\nlength", *(CELLS[name][0] for name in names)), caption)
    for label, summary, end in rows:
        cells = (CELLS[name][1](summary) for name in names)
        table.add_row(label, *cells, end_section=end)
    return table


def results_table(title: str, rows: Sequence[tuple[str, "Summary"]]) -> Table:
    """The table of splits: label and summary."""
    some = any(counts["decoded"] < counts["examples"] for _, counts in rows)
    names = ("pairs", *["decoded"] * some, "exact", "interval", "tokens", "loss")
    table = columns(
        ("\ndata, lengths",),
        [CELLS[name][0] for name in names],
        title=plain(title),
        caption="exact match: free-running; token accuracy and loss (nats): teacher-forced",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0 if some else 1),
    )
    for label, counts in rows:
        table.add_row(label, *(CELLS[name][1](counts) for name in names))
    return table


def _ranges(data: str, scores: "Scores") -> list[tuple[str, "Summary"]]:
    """Label and summary below, in and beyond the training lengths, where there are pairs."""
    from toytrans.evaluation import part_of

    rows = []
    for part, summary in scores.parts().items():
        lengths = [n for n in scores.lengths if part_of(n, scores.train_length) == part]
        name = "" if part == "in_range" else f", {part}"
        rows.append((f"{data} {lengths[0]} to {lengths[-1]}{name}", summary))
    return rows


# Of `eval` ---------------------------------------------------------------------------------------


def print_scores(console: Console, scores: "Scores", search: str) -> None:
    """One run: parts, then per length, with errors."""
    from toytrans.evaluation import spans as spans_of

    spans = spans_of(scores.lengths, scores.train_length)
    rows = _rows(scores, spans)
    side = "source" if scores.side == "src" else "target"
    _print_splits(console, scores, search)
    title = f"per {side} length: free-running, and the same teacher-forced"
    caption = "diff.: free-running less teacher-forced, over the pairs that were decoded"
    print_table(console, summaries_table(title, BOTH_WAYS, rows, caption))
    wrong = [row for row in rows if row[1]["wrong"]]
    if wrong:
        title = f"errors per {side} length; the first token is at place 1"
        print_table(console, summaries_table(title, ERRORS, wrong))
    else:
        console.print("errors: none, no output is wrong\n")


def _rows(scores: "Scores", spans: Sequence["Span"]) -> list[Row]:
    """Rows of spans of lengths, a gap after each part, then of the parts and together."""
    rows = []
    for span, after in zip(spans, [*spans[1:], None], strict=True):
        label = f"{span.low}-{span.high}" if span.low < span.high else str(span.low)
        ends = after is None or after.part != span.part
        rows.append((label, scores.summary(span.low, span.high), ends))
    return rows + [(label, summary, False) for label, summary in scores.labelled()]


def _print_splits(console: Console, scores: "Scores", search: str) -> None:
    about = scores.about
    rows = _ranges(about["split"], scores)
    if len(rows) != 1:
        rows.append((f"{about['split']}, all", scores.summary()))
    title = f"{about['run']}, step {about['checkpoint']}, {search}{broken(about['fault'])}"
    print_table(console, results_table(title, rows))


def print_comparison(console: Console, compared: "Comparison") -> None:
    """Several runs: what the letters of groups stand for, the tables, and what they cannot say."""

    def say(text: str, style: str = "") -> None:
        """On a line of its own: a title of a narrow table would be folded."""
        console.print(plain(text), style=style, soft_wrap=True)

    for text in compared.legend():
        say(text)
    for shown in compared.tables():
        say(shown.title, "bold")
        if shown.rows:
            numbers = list(map(printable, shown.numbers))
            table = columns(list(map(printable, shown.names)), numbers, **STYLE)
            if shown.last:
                table.add_column(shown.last, overflow="fold")
            for row in shown.rows:
                table.add_row(*map(plain, row))
            print_table(console, table)
    for text in compared.remarks():
        say(text)


# Of `train` --------------------------------------------------------------------------------------


def print_results(trainer: "Trainer", dataset: "Dataset") -> None:
    """The table at the end of a training. All its processes measure the best checkpoint together,
    like `toytrans eval`."""
    from toytrans import load
    from toytrans.data.pairs import all_pairs
    from toytrans.evaluation import evaluate
    from toytrans.model.initialisation import count_parameters

    context = trainer.context
    run = context.on_main(lambda: load(trainer.run, "best", "cpu"))
    run.model.to(trainer.device)
    console, progress = output(), trainer.progress
    reason = {
        "stop_at_exact_match": ", stopped at the exact match asked for",
        "patience": ", stopped for lack of progress",
        "max_seconds": ", stopped at the seconds allowed",
    }.get(trainer.stop_reason or "", "")
    best = " (best validation)" if run.step != progress.step else ""
    title = (
        f"{count_parameters(run.model):,} parameters, {progress.step:,} steps in "
        f"{progress.elapsed_s:.1f} s{reason}; measured: step {run.step}{best}"
        f"{broken(run.config.fault)}"
    )
    rows: list[tuple[str, dict[str, Any]]] = []
    files = run.config.data.files
    splits: list[Split] = ["valid", "test"] if files is None or files.test else ["valid"]
    for split in splits:
        pairs = all_pairs(dataset, split)
        scores = trainer.scores.get(run.step) if split == "valid" else None
        if scores is None:
            own = context.shard_pairs(pairs)
            counted = evaluate(run.model, own, run.facts, source_bos=run.config.source_bos)
            scores = context.all_scores(counted)
        rows += _ranges(split, scores)
    if context.is_main:
        print_table(console, results_table(title, rows))
        _print_translations(console, run, pairs)


def _print_translations(console: Console, run: "Run", pairs: "Pairs") -> None:
    """A few translations, the run directory and the next commands."""
    console.print("[bold]translations[/bold]")
    decode = run.vocabulary.decode
    short = (pairs.src_length <= SHORT).nonzero()[:, 0]
    shown = pairs.take(short[:SAMPLES] if len(short) else slice(SAMPLES))
    sources = [decode(ids) for ids in shown.src.tolist()]
    answers = run.translate([" ".join(symbols) for symbols in sources])
    for symbols, answer, ids in zip(sources, answers, shown.tgt.tolist(), strict=True):
        expected = " ".join(decode(ids))
        verdict = "right" if answer == expected else f"wrong: {expected}"
        console.print(plain(f"  {' '.join(symbols)}  ->  {answer}  ({verdict})"))
    longest: list[str] = max(sources, key=len)
    where, example = argument(run.path), shlex.quote(" ".join(longest))
    if not all(map(is_shipped, run.config.references.values())):
        where = f"{where} --trust-code"
    if longest and longest[0].startswith("-"):
        example = f"-- {example}"
    console.print("[bold]run[/bold]", plain(str(run.path)))
    console.print("[bold]next[/bold]")
    commands = [f"toytrans eval {where}", f"toytrans translate {where} {example}"]
    if run.config.model.class_ is None:  # the layers of others are not known
        commands.append(f"toytrans inspect-masks {where}")
    for command in (*commands, f"toytrans check {where}"):
        console.print(plain(f"  {command}"), soft_wrap=True)
