"""Tables and a plot of measurements per length, of one run and of several."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from toytrans.cli.common import broken, columns, plain, print_table, share
from toytrans.cli.render.results import interval, ranges, results_table

if TYPE_CHECKING:
    from toytrans.evaluation import Scores, Span

PLOT_HEIGHT = 10
WIDEST_PLOT = 80
MARKS = {"below": "b", "in_range": "o", "beyond": "x"}
Summary = dict[str, Any]
Row = tuple[str, Summary, bool]
"""Label, summary, and whether a gap follows."""


def print_one(console: Console, group: Sequence["Scores"], search: str) -> None:
    """All tables of one run, and a plot if it has several lengths."""
    from toytrans.evaluation import spans as spans_of

    (scores,) = group
    about, side = scores.about, scores.side
    rows = ranges(about["split"], scores)
    if len(rows) != 1:
        rows.append((f"{about['split']}, all", scores.summary()))
    title = f"{about['run']}, step {about['checkpoint']}, {search}{broken(about['fault'])}"
    print_table(console, results_table(title, rows))
    spans = spans_of(scores.lengths, scores.train_length)
    shown = _rows(scores, spans)
    print_table(console, _length_table(side, shown))
    _print_errors(console, side, shown)
    matches = [summary["exact_match"] for _, summary, _ in shown[: len(spans)]]
    _print_plot(console, side, spans, matches)


def print_several(console: Console, several: Sequence["Scores"], search: str) -> None:
    """Every run with mean and range: each part, together, per length; errors of all runs."""
    from toytrans.evaluation import over_runs
    from toytrans.evaluation import spans as spans_of

    parts: dict[str, list[tuple[Scores, Summary]]] = {}
    for scores in several:
        for label, summary in scores.labelled():
            parts.setdefault(label, []).append((scores, summary))
    first, *others = several
    data, side, (low, high) = first.about["split"], first.side, first.train_length
    for label, rows in parts.items():
        title = f"{label}: {data}, {len(rows)} runs trained on lengths {low} to {high}, {search}"
        print_table(console, _runs_table(title, rows))
    together = sum(others, first)
    spans = spans_of(together.lengths, together.train_length)
    summaries = []
    for span in spans:
        found = (scores.summary(span.low, span.high) for scores in several)
        summaries.append(over_runs([summary for summary in found if summary["examples"]]))
    print_table(console, _mean_table(side, spans, summaries))
    _print_errors(console, side, _rows(together, spans), ", all runs together")
    _print_plot(console, side, spans, [row["exact_match"]["mean"] for row in summaries])


def _rows(scores: "Scores", spans: Sequence["Span"]) -> list[Row]:
    """Rows of spans of lengths, then of the parts and together."""
    lengths = (scores.summary(span.low, span.high) for span in spans)
    rows = [*zip(map(_span_label, spans), lengths, _section_ends(spans), strict=True)]
    return rows + [(label, summary, False) for label, summary in scores.labelled()]


def _section_ends(spans: Sequence["Span"]) -> list[bool]:
    """Whether a table has a gap after a span: where its part ends."""
    parts = [span.part for span in spans]
    return [here != there for here, there in zip(parts, [*parts[1:], None], strict=True)]


def _span_label(span: "Span") -> str:
    return f"{span.low}-{span.high}" if span.low < span.high else str(span.low)


def _side_name(side: str) -> str:
    return "source" if side == "src" else "target"


def _table(title: str, headings: Iterable[str], caption: str | None = None) -> Table:
    """A table of numbers, narrow enough for nine columns."""
    style: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    return columns((), tuple(headings), title=plain(title), caption=caption, **style)


def _signed(value: float) -> str:
    return f"{value:+.3f}" if value else "0"


def _length_table(side: str, rows: Sequence[Row]) -> Table:
    """Free-running beside teacher-forced, per length."""
    table = _table(
        f"per {_side_name(side)} length: free-running, and the same teacher-forced",
        ("\nlength", "\ndecoded", "exact\nmatch", "\n95%", "\nforced", "\ndiff.")
        + ("token\nacc.", "\nforced", "\ndiff."),
        "diff.: free-running less teacher-forced, over the pairs that were decoded",
    )
    for label, row, end in rows:
        table.add_row(
            label,
            f"{row['decoded']:,}",
            share(row["exact_match"]),
            interval(row),
            share(row["forced_exact_match"]),
            _signed(row["exact_match_difference"]),
            share(row["free_token_accuracy"]),
            share(row["token_accuracy"]),
            _signed(row["token_accuracy_difference"]),
            end_section=end,
        )
    return table


def _print_errors(console: Console, side: str, rows: Sequence[Row], of: str = "") -> None:
    """Places of first errors, and EOS too early, too late or never."""
    rows = [row for row in rows if row[1]["wrong"]]
    if not rows:
        console.print("errors: none, no output is wrong\n")
        return
    table = _table(
        f"errors per {_side_name(side)} length{of}; the first token is at place 1",
        ("\nlength", "\ndecoded", "\nwrong", "first error,\nmedian place", "\nearliest")
        + ("EOS\ntoo early", "\ntoo late", "\nnever"),
    )
    for label, row, end in rows:
        table.add_row(
            label,
            f"{row['decoded']:,}",
            f"{row['wrong']:,}",
            f"{row['first_error_median']:g}",
            str(row["first_error_earliest"]),
            *(f"{row[name]:,}" for name in ("eos_early", "eos_late", "eos_never")),
            end_section=end,
        )
    print_table(console, table)


def _runs_table(title: str, rows: "Sequence[tuple[Scores, Summary]]") -> Table:
    """Every run, then mean, lowest and highest of each column."""
    from toytrans.evaluation import over_runs

    table = _table(
        title,
        ("\nrun", "\nseed", "\ndecoded", "exact\nmatch", "\n95%", "\nforced")
        + ("token\nacc.", "\nforced"),
    )
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    names = ("exact_match", "forced_exact_match", "free_token_accuracy", "token_accuracy")
    for number, (scores, row) in enumerate(rows, 1):
        about = scores.about
        exact, *others = (share(row[name]) for name in names)
        first = (plain(f"{about['run']}{broken(about['fault'])}"), str(about["seed"]))
        last = number == len(rows)
        table.add_row(
            *first, f"{row['decoded']:,}", exact, interval(row), *others, end_section=last
        )
    together = over_runs([row for _, row in rows])
    for label, key in (("mean", "mean"), ("lowest", "min"), ("highest", "max")):
        exact, *others = (share(together[name][key]) for name in names)
        table.add_row(label, "", "", exact, "", *others)
    return table


def _mean_table(side: str, spans: Sequence["Span"], rows: Sequence[Summary]) -> Table:
    """Means over runs per length, with the range of the exact match."""
    table = _table(
        f"per {_side_name(side)} length, means over runs; forced: teacher-forced",
        ("\nlength", "\nruns", "exact\nmatch", "\nlowest", "\nhighest")
        + ("\nforced", "token\nacc.", "\nforced"),
    )
    for span, row, end in zip(spans, rows, _section_ends(spans), strict=True):
        exact = row["exact_match"]
        names = ("forced_exact_match", "free_token_accuracy", "token_accuracy")
        table.add_row(
            _span_label(span),
            str(row["runs"]),
            *(share(exact[key]) for key in ("mean", "min", "max")),
            *(share(row[name]["mean"]) for name in names),
            end_section=end,
        )
    return table


def _print_plot(console: Console, side: str, spans: Sequence["Span"], values: list[float]) -> None:
    """A plot, if there are two spans or more."""
    from toytrans.evaluation import PARTS

    if len(spans) < 2:
        return
    there = {span.part for span in spans}
    legend = ", ".join(f"{MARKS[part]} = {PARTS[part]}" for part in MARKS if part in there)
    console.print(f"exact match against {_side_name(side)} length: {legend}")
    for line in plot_lines(spans, values, min(console.width, WIDEST_PLOT)):
        console.print(line, markup=False, soft_wrap=True)


def plot_lines(spans: Sequence["Span"], values: Sequence[float], width: int) -> Iterator[str]:
    """Lines of an ASCII plot: one mark per span, values from 0 to 1."""
    cell = max(1, min(3, (width - 6) // len(spans)))
    levels = [round(value * PLOT_HEIGHT) for value in values]
    for level in range(PLOT_HEIGHT, -1, -1):
        marks = (
            MARKS[span.part] if here == level else " "
            for span, here in zip(spans, levels, strict=True)
        )
        line = "".join(mark.rjust(cell) for mark in marks)
        yield f"{level / PLOT_HEIGHT:4.1f} |{line}".rstrip()
    yield "     +" + "-" * (cell * len(spans))
    axis = " " * 6
    for number, span in enumerate(spans, 1):
        mark = str(span.low)
        start = 6 + cell * number - 1
        if start > len(axis) or number == 1:  # a gap between one label and the next
            axis = axis.ljust(start) + mark
    yield axis
