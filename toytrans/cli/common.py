"""What several commands share: parameters, and the table of what was measured."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toytrans.cli.terminal import note, plain, print_table
from toytrans.config.faults import FAULTS, fault_remark, openly_named_fault
from toytrans.config.load import shipped_names
from toytrans.errors import UserError, share

if TYPE_CHECKING:
    from toytrans.scores import Scores, Summary

# Parameters -----------------------------------------------------------------------------------


def rare(*names: str, **more: Any) -> Any:
    """An option in the last group of the help of a command."""
    return typer.Option(*names, rich_help_panel="Rarely used", **more)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Beam = Annotated[int, typer.Option(min=1, max=1000, help="Beam width. 1 is greedy search.")]
Checkpoint = Annotated[str, rare(help="Which checkpoint of a run: best | last | STEP.")]
Device = Annotated[str, rare(help="Where the model runs: auto | cpu | cuda | cuda:N | mps.")]
ConfigArgument = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a shipped config."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="CONFIG", help="The same as the argument CONFIG."),
]
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
    Path | None,
    typer.Argument(metavar="RUN", help="A run directory. Default: the newest run."),
]
RunOrConfig = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN | CONFIG",
        help="A run directory, or a config with fresh weights. Default: the newest run.",
    ),
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


def one_config(argument: Path | None, option: Path | None) -> Path | None:
    """The config that was named as an argument or with --config. Raises UserError for both."""
    if argument is not None and option is not None:
        raise UserError(f"{argument} and --config {option}: give the config once")
    return option if argument is None else argument


def run_or_config(argument: Path | None, option: Path | None) -> tuple[Path | None, Path | None]:
    """The run, and the config, of which at most one was named. Raises UserError for both."""
    if argument is None or is_config(argument):
        return None, one_config(argument, option)
    if option is not None:
        raise UserError(f"--config {option} and run {argument}: a run has its own; give one")
    return argument, None


def is_config(path: Path) -> bool:
    """Whether an argument names a config and no run: a file of YAML, or a shipped config where
    nothing else has its name."""
    if path.suffix in (".yaml", ".yml"):
        return not os.path.isdir(path)
    return str(path) in shipped_names() and not os.path.lexists(path)


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
