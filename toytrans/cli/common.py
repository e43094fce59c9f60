"""What means the same in several commands: their options, which run or config was named, and how a
run is named in a command that is printed."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toytrans.cli.terminal import note
from toytrans.config.faults import FAULTS, fault_remark, openly_named_fault
from toytrans.errors import UserError
from toytrans.references import is_shipped, shipped_names

if TYPE_CHECKING:
    from toytrans.config.schema import Settings

# Parameters -----------------------------------------------------------------------------------


def rare(*names: str, **more: Any) -> Any:
    """An option in the last group of the help of a command."""
    return typer.Option(*names, rich_help_panel="Rarely used", **more)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Beam = Annotated[int, typer.Option(min=1, max=1000, help="Beam width. 1 is greedy search.")]
Checkpoint = Annotated[
    str,
    rare(help="Which checkpoint of a run: best | last | STEP | average:N, the mean of the last N."),
]
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


# Which run or config was named ------------------------------------------------------------------


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


def path_and_sequences(words: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """The run or the config, which may be the first word, and the sequences after it.

    The first word is one if it is a directory with a config.yaml, a file of YAML, or written as a
    path, with a slash and no space. Raises UserError for words that form no sequence.
    """
    sequences, path = list(words or ()), None
    first = sequences[0] if sequences else ""
    is_path = os.path.basename(first) != first and not re.search(r"\s", first)
    is_yaml = first.endswith((".yaml", ".yml")) and os.path.isfile(first)
    if is_path or is_yaml or os.path.isfile(os.path.join(first or os.devnull, "config.yaml")):
        path, sequences = Path(first), sequences[1:]
    if len(sequences) > 1 and not any(re.search(r"\s", sequence.strip()) for sequence in sequences):
        one = " ".join(sequences)
        raise UserError(f'{one}: each word is one sequence; put quotes around it: "{one}"')
    return path, sequences


def check_has_checkpoints(run: Path | None, checkpoint: str) -> None:
    """Raise UserError where a checkpoint is named, and no run that could have it."""
    if run is None and checkpoint != "best":
        raise UserError(f"--checkpoint {checkpoint}: a run has checkpoints; name one")


# Commands that are printed ----------------------------------------------------------------------


def as_typed(text: str) -> str:
    """An argument as a shell takes it; one that would be an option comes after two dashes."""
    return f"-- {shlex.quote(text)}" if text.startswith("-") else shlex.quote(text)


def run_as_typed(run: Path, settings: "Settings") -> str:
    """A run as an argument of a command that is printed, with --trust-code where it needs that."""
    path = shlex.quote(str(run))
    path = f"./{path}" if path.startswith("-") else path
    return path if all(map(is_shipped, settings.references.values())) else f"{path} --trust-code"


def warn_of_fault(fault: str | None) -> None:
    """Note that a model has a fault, or may have one."""
    if fault is not None:
        more = f" (what that does: toytrans explain {fault})" if openly_named_fault(fault) else ""
        note(fault_remark(fault) + more)
