"""Numbers of pairs as tables: the parts of some data, each length both ways, and the errors."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from toytrans.metrics import OF_PAIRS
from toytrans.scores import PARTS, Numbers, Scores, Span
from toytrans.table import Table, TextColumn

Row = tuple[str, Numbers]
"""What a row is of, and its numbers."""


def _interval(numbers: Numbers) -> str:
    low, high = numbers["intervals"]["free_exact_match"]
    return f"{low:.3f}..{high:.3f}"


def _difference(numbers: Numbers) -> str:
    value = numbers["free_less_forced_exact_match"]
    return f"{value:+.3f}" if value else "0"


CELLS: dict[str, tuple[str, Callable[[Numbers], str]]] = {
    "interval": ("95%", _interval),
    "difference": ("diff.", _difference),
    "ended_early": ("EOS\ntoo early", lambda numbers: f"{numbers['ended_early']:,}"),
    "ended_late": ("too late", lambda numbers: f"{numbers['ended_late']:,}"),
    "never_ended": ("never", lambda numbers: f"{numbers['never_ended']:,}"),
}
"""Heading and cell of what is no metric."""


def _column(name: str) -> str:
    if name in OF_PAIRS:
        return OF_PAIRS[name].short
    return CELLS[name][0] if name in CELLS else name


def _cell(name: str, numbers: Numbers) -> str:
    if name in OF_PAIRS:
        return OF_PAIRS[name].written(numbers[name])
    return CELLS[name][1](numbers) if name in CELLS else f"{numbers[name]:,}"


def table_of(
    title: str, first: str, names: Sequence[str], rows: Iterable[Row | None], *notes: str
) -> Table:
    """A row for each of some numbers; None is a gap. names: of metrics, counts and `CELLS`."""
    cells: list[list[Any]] = []
    for row in rows:
        if row is None:
            cells.append([""] * (len(names) + 1))
        else:
            cells.append([row[0], *(_cell(name, row[1]) for name in names)])
    return Table(title, [TextColumn(first), *map(_column, names)], cells, notes)


def parts_table(title: str, rows: Sequence[Row]) -> Table:
    """The parts of some data. rows: as of `rows_of_parts`."""
    some = any(numbers["decoded"] < numbers["pairs"] for _, numbers in rows)
    names = ["pairs", *["decoded"] * some, "free_exact_match", "interval"]
    names += ["free_symbol_error_rate", "forced_token_accuracy", "loss"]
    note = "exact match, symbol errors: free-running; token accuracy, loss (nats): teacher-forced"
    return table_of(title, "data, lengths", names, rows, note)


def rows_of_parts(
    data: str, parts: dict[str, Numbers], spans: Sequence[Span], whole: bool = False
) -> list[Row]:
    """The numbers below, in and beyond the training lengths, and with `whole` of all pairs where
    there are several parts. spans: the lengths that there are."""
    rows = []
    for part in PARTS:
        ends = [end for span in spans if span.part == part for end in span[:2]]
        if part in parts and ends:
            name = "" if part == "in_range" else f", {PARTS[part]}"
            rows.append((f"{data} {min(ends)} to {max(ends)}{name}", parts[part]))
    return [*rows, (f"{data}, all", parts["all"])] if whole and len(rows) > 1 else rows


def rows_of_scores(data: str, scores: Scores) -> list[Row]:
    """The same of what was just measured."""
    spans = [Span(n, n, scores.part_of(n)) for n in scores.lengths]
    return rows_of_parts(data, scores.parts(), spans)


BOTH_WAYS = (
    *("decoded", "free_exact_match", "interval", "forced_exact_match", "difference"),
    *("free_symbol_error_rate", "free_token_accuracy", "forced_token_accuracy"),
)
ERRORS = ("decoded", "wrong", "free_first_error", "ended_early", "ended_late", "never_ended")


def lengths_tables(
    side: str, by_length: Sequence[tuple[Span, Numbers]], parts: dict[str, Numbers]
) -> Iterable[Table]:
    """Each length both ways, and the errors where there are some. side: source or target."""
    rows: list[Row | None] = []
    before = ""
    for span, numbers in by_length:
        rows += [None] * (before not in ("", span.part))
        rows.append((str(span), numbers))
        before = span.part
    shown = [(PARTS[part], parts[part]) for part in PARTS if part in parts]
    rows += [None, *shown, *[("all", parts["all"])] * (len(shown) > 1)]
    note = (
        "diff.: free-running less teacher-forced, over the pairs that were decoded; "
        "free tokens, token acc.: token accuracy both ways"
    )
    title = f"per {side} length: free-running, and the same teacher-forced"
    yield table_of(title, "length", BOTH_WAYS, rows, note)
    if wrong := [row for row in rows if row and row[1]["wrong"]]:
        title = f"errors per {side} length; the first token is at place 1"
        yield table_of(title, "length", ERRORS, wrong)
    else:
        yield Table("errors: none, no output is wrong")
