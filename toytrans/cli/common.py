"""What several commands share: parameters, and the run that they read."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toytrans.cli.terminal import note
from toytrans.config.faults import FAULTS, fault_remark, named_fault
from toytrans.errors import UserError

if TYPE_CHECKING:
    from toytrans.training.run import Run

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
Lengths = Annotated[
    str | None, typer.Option(metavar="FROM:TO", help="Lengths to measure, say 1:400.")
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
RunAndSequences = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN] SEQUENCE",
        help='Sequences such as "5 7 9" (default: a few pairs of the run). A RUN may come first.',
    ),
]
RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN", help="Run directories, or folders of them. Default: the newest run."
    ),
]
OfConfig = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="CONFIG", help="Take the training pairs and fresh weights of a config."
    ),
]
TrustCode = Annotated[
    bool, rare("--trust-code", help="Run the code that a run names: its task, say.")
]


def run_and_sequences(arguments: list[str] | None) -> tuple[Path | None, list[str]]:
    """The run, which may be the first argument, and the sequences.

    The first argument is a run if it is a directory with a config.yaml, or written as a path, with
    a slash and no space.
    """
    sequences = arguments or []
    first = sequences[0] if sequences else ""
    is_path = os.path.basename(first) != first and not re.search(r"\s", first)
    if is_path or os.path.isfile(os.path.join(first or os.devnull, "config.yaml")):
        return Path(first), sequences[1:]
    return None, sequences


def span_of(option: str, text: str | None, example: str) -> tuple[int, int] | None:
    """The ends of FROM:TO, which one number stands for too; None where it is not given.

    example: of a right one, for the UserError of another.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high or high >= 2**31:
        raise UserError(f"{option} {text}: write them as FROM:TO, say {example}, or as one number")
    return low, high


# Runs ----------------------------------------------------------------------------------------


def open_run(
    path: Path | None, trust_code: bool, checkpoint: str = "best", device: str = "cpu"
) -> "Run":
    """The run of a path, or the newest one, whose fault is noted. Raises UserError.

    trust_code: whether code that the run names may run
    """
    from toytrans.training.devices import tune_process
    from toytrans.training.run import Run

    tune_process()
    run = Run.open(path or newest(), trust_code, checkpoint, device)
    assert run.model, "errors of a checkpoint come before anything else is said"
    warn_of_fault(run.config.fault)
    for sentence in run.notes:
        note(sentence)
    return run


def newest() -> Path:
    """The newest run, named in a note. Raises UserError."""
    from toytrans.training.listing import newest_run
    from toytrans.training.run import Run

    path = newest_run()
    rest = Run.open(path).unfinished
    note(f"run: {path}, the newest" + (f"; training is unfinished: {rest}" if rest else ""))
    return path


def warn_of_fault(fault: str | None) -> None:
    """Note that a model has a fault, or may have one."""
    if fault is not None:
        more = f" (what that does: toytrans explain {fault})" if named_fault(fault) else ""
        note(fault_remark(fault) + more)
