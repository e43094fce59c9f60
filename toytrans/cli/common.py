"""What several commands share: consoles, run directories, the words of a result."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toytrans.errors import UserError

if TYPE_CHECKING:
    from toytrans.data.pairs import DataFacts
    from toytrans.evaluation import Report

RUNS = Path("runs")


def output() -> Console:
    """Standard output."""
    return Console(highlight=False, soft_wrap=False)


def note(message: str) -> None:
    """One line on standard error."""
    print(printable(message), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Text on one line whose control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def plain(text: str) -> Text:
    """Text of the user's in a table: no markup, no control characters."""
    return Text(printable(text))


def newest_run() -> Path:
    """The newest run directory under runs/ that has a checkpoint. Raises UserError."""
    from toytrans.training.checkpoint import saved_steps
    from toytrans.training.run import CONFIG, is_run

    entries = list(RUNS.iterdir()) if RUNS.is_dir() else []
    runs = [path for path in entries if is_run(path) and saved_steps(path)]
    if not runs:
        raise UserError(
            f"{RUNS}: no run here yet; train one with `toytrans train --config FILE`, "
            "or name a run directory"
        )
    return max(runs, key=lambda path: (path / CONFIG).stat().st_mtime_ns)


def share(value: float) -> str:
    """A share with as many digits as tell it from 1: 0.998, 0.99987, 1.000."""
    for digits in (3, 4, 5):
        text = f"{value:.{digits}f}"
        if float(text) < 1 or value == 1:
            break
    return "1.000" if value == 1 else text


def interval(counts: dict[str, Any]) -> str:
    return f"{counts['low']:.3f}..{counts['high']:.3f}"


def results_table(title: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """Summaries of counts as a table: (what was measured, summary)."""
    table = Table(title=plain(title), box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("\ndata, lengths", no_wrap=True)
    for heading in ("\npairs", "exact\nmatch", "\n95%", "token\nacc.", "\nloss"):
        table.add_column(heading, justify="right", no_wrap=True)
    for words, counts in rows:
        table.add_row(
            words,
            f"{counts['examples']:,}",
            share(counts["exact_match"]),
            interval(counts),
            share(counts["token_accuracy"]),
            f"{counts['loss']:.4f}",
        )
    table.caption = "exact match: free-running; token accuracy and loss (nats): teacher-forced"
    table.caption_justify = "left"
    return table


def ranges(data: str, report: "Report", facts: "DataFacts") -> list[tuple[str, dict[str, Any]]]:
    """What a report found within the training lengths, below and beyond, with those measured."""
    low, high = facts.train_length
    parts = (("", low, high), (", below", 0, low - 1), (", beyond", high + 1, None))
    found = []
    for words, first, last in parts:
        lengths = [n for n in report.by_length if n >= first and (last is None or n <= last)]
        if lengths:
            counts = report.total(first, last).summary()
            found.append((f"{data} {min(lengths)} to {max(lengths)}{words}", counts))
    return found
