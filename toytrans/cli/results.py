"""The tables of what was measured: of one run, and of several side by side."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from toytrans.cli.terminal import output, plain, print_table
from toytrans.rounding import share

if TYPE_CHECKING:
    from toytrans.scores import Scores, Summary
    from toytrans.sweeps.comparison import Comparison

Labelled = tuple[str, "Summary"]

CELLS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "pairs": ("pairs", lambda of: f"{of['examples']:,}"),
    "decoded": ("decoded", lambda of: f"{of['decoded']:,}"),
    "exact": ("exact\nmatch", lambda of: share(of["exact_match"])),
    "interval": ("95%", lambda of: f"{of['low']:.3f}..{of['high']:.3f}"),
    "forced": ("forced", lambda of: share(of["forced_exact_match"])),
    "difference": ("diff.", lambda of: _signed(of["exact_match_difference"])),
    "free tokens": ("token\nacc.", lambda of: share(of["free_token_accuracy"])),
    "tokens": ("token\nacc.", lambda of: share(of["token_accuracy"])),
    "forced tokens": ("forced", lambda of: share(of["token_accuracy"])),
    "token difference": ("diff.", lambda of: _signed(of["token_accuracy_difference"])),
    "loss": ("loss", lambda of: f"{of['loss']:.4f}"),
    "wrong": ("wrong", lambda of: f"{of['wrong']:,}"),
    "median": ("first error,\nmedian place", lambda of: f"{of['first_error_median']:g}"),
    "earliest": ("earliest", lambda of: f"{of['first_error_earliest']:,}"),
    "early": ("EOS\ntoo early", lambda of: f"{of['eos_early']:,}"),
    "late": ("too late", lambda of: f"{of['eos_late']:,}"),
    "never": ("never", lambda of: f"{of['eos_never']:,}"),
}
"""A column of a table: its heading, and its cell of a summary."""

BOTH_WAYS = (
    *("decoded", "exact", "interval", "forced", "difference"),
    *("free tokens", "forced tokens", "token difference"),
)
ERRORS = ("decoded", "wrong", "median", "earliest", "early", "late", "never")


def _signed(value: float) -> str:
    return f"{value:+.3f}" if value else "0"


def _print_summaries(
    title: str, first: str, names: Sequence[str], rows: Iterable[Labelled | None], **style: Any
) -> None:
    """Print a row of each summary; None is a gap. names: of CELLS."""
    cells = [(row[0], *(CELLS[name][1](row[1]) for name in names)) if row else () for row in rows]
    headings = [CELLS[name][0] for name in names]
    print_table((first,), headings, cells, title=plain(title), **style)


def print_parts(title: str, rows: Sequence[Labelled]) -> None:
    """The table of splits and their parts."""
    some = any(of["decoded"] < of["examples"] for _, of in rows)
    names = ("pairs", *["decoded"] * some, "exact", "interval", "tokens", "loss")
    caption = "exact match: free-running; token accuracy and loss (nats): teacher-forced"
    narrow = {"padding": (0, 1, 0, 0 if some else 1), "pad_edge": True}
    _print_summaries(title, "data, lengths", names, rows, caption=caption, **narrow)


def parts_of(data: str, scores: "Scores") -> list[Labelled]:
    """Label and summary below, in and beyond the training lengths, where there are pairs."""
    from toytrans.scores import part_of

    rows = []
    for part, summary in scores.parts().items():
        lengths = [n for n in scores.lengths if part_of(n, scores.train_length) == part]
        name = "" if part == "in_range" else f", {part}"
        rows.append((f"{data} {lengths[0]} to {lengths[-1]}{name}", summary))
    return rows


def print_scores(title: str, scores: "Scores") -> None:
    """One run: its parts, then each length both ways, then errors."""
    from toytrans.score_tables import group_lengths

    split = scores.about["split"]
    parts = parts_of(split, scores)
    print_parts(title, parts if len(parts) == 1 else [*parts, (f"{split}, all", scores.summary())])
    rows: list[Labelled | None] = []
    before = ""
    for low, high, part in group_lengths(scores.lengths, scores.train_length):
        rows += [None] * (before not in ("", part))
        rows.append((f"{low}-{high}" if low < high else str(low), scores.summary(low, high)))
        before = part
    rows += [None, *scores.labelled()]
    side = "source" if scores.side == "src" else "target"
    caption = "diff.: free-running less teacher-forced, over the pairs that were decoded"
    title = f"per {side} length: free-running, and the same teacher-forced"
    _print_summaries(title, "length", BOTH_WAYS, rows, caption=caption)
    if wrong := [row for row in rows if row and row[1]["wrong"]]:
        title = f"errors per {side} length; the first token is at place 1"
        _print_summaries(title, "length", ERRORS, wrong)
    else:
        output().print("errors: none, no output is wrong\n")


def print_comparison(compared: "Comparison") -> None:
    """The tables of several runs, and the lines about them."""
    for shown in compared.tables():
        # on a line of its own: a title of a narrow table would be folded
        output().print(plain(shown.title), style="bold" if shown.rows else "", soft_wrap=True)
        if shown.rows:
            print_table(shown.names, shown.numbers, shown.rows, shown.last, pad_edge=True)
