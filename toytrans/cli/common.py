"""What several commands share: parameters, and the table of what was measured."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toytrans.cli.terminal import note, plain, print_table
from toytrans.config.faults import FAULTS, fault_remark, openly_named_fault
from toytrans.errors import share

if TYPE_CHECKING:
    from toytrans.scores import Scores, Summary

# Parameters -----------------------------------------------------------------------------------


def rare(*names: str, **more: Any) -> Any:
    """An option in the last group of the help of a command."""
    return typer.Option(*names, rich_help_panel="Rarely used", **more)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Checkpoint = Annotated[str, rare(help="Which checkpoint: best | last | STEP.")]
Device = Annotated[str, rare(help="Where the model runs: auto | cpu | cuda | cuda:N | mps.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a config key, say train.lr=1e-3."),
]
Break = Annotated[
    str | None,
    typer.Option(
        "--break",
        metavar="FAULT",
        autocompletion=lambda: list(FAULTS),
        help="Make a mistake on purpose; `toytrans explain faults` lists them.",
    ),
]
RunArgument = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)
]
RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN", help="Run directories, or folders of them. Default: the newest run."
    ),
]
TrustCode = Annotated[
    bool, rare("--trust-code", help="Run the code that a run names: its task, say.")
]


def warn_of_fault(fault: str | None) -> None:
    """Note that a model has a fault, or may have one."""
    if fault is not None:
        more = f" (what that does: toytrans explain {fault})" if openly_named_fault(fault) else ""
        note(fault_remark(fault) + more)


# The table of what was measured -----------------------------------------------------------------

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


def _signed(value: float) -> str:
    return f"{value:+.3f}" if value else "0"


def print_summaries(
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
    print_summaries(title, "data, lengths", names, rows, caption=caption, **narrow)


def parts_of(data: str, scores: "Scores") -> list[Labelled]:
    """Label and summary below, in and beyond the training lengths, where there are pairs."""
    rows = []
    for part, summary in scores.parts().items():
        lengths = scores.lengths_of(part)
        name = "" if part == "in_range" else f", {part}"
        rows.append((f"{data} {lengths[0]} to {lengths[-1]}{name}", summary))
    return rows
