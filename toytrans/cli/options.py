"""Parameters that several commands have."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from toytrans.config.names import FaultName, Metric
from toytrans.errors import UserError
from toytrans.user_code import trusting


def rare(*names: str, **more: Any) -> Any:
    """An option in the last group of the help of a command."""
    return typer.Option(*names, rich_help_panel="Rarely used", **more)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
AsHtml = Annotated[bool, typer.Option("--html", help="Print one HTML document.")]
Checkpoint = Annotated[str, rare(help="Which checkpoint: best | last | STEP.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a config key, say train.lr=1e-3."),
]
Lengths = Annotated[
    str | None, typer.Option(metavar="FROM:TO", help="Lengths to measure, say 1:400.")
]
MetricOption = Annotated[
    Metric,
    typer.Option(metavar="METRIC", help=f"What is compared: {', '.join(get_args(Metric))}."),
]
Break = Annotated[
    str | None,
    typer.Option(
        "--break",
        metavar="FAULT",
        autocompletion=lambda: get_args(FaultName),
        help="Make a mistake on purpose; `toytrans explain faults` lists them.",
    ),
]
RunArgument = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)
]
Panel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Show a panel: its number or a part of its title; or all."),
]
OfConfig = Annotated[
    Path | None,
    typer.Option(metavar="CONFIG", help="Take the training pairs and fresh weights of a config."),
]
Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--src", metavar="SEQUENCE", help='A source such as "5 7 9". Repeat it for a padded batch.'
    ),
]
Targets = Annotated[
    list[str] | None, typer.Option("--tgt", metavar="SEQUENCE", help="The target of each --src.")
]
TrustCode = Annotated[
    bool,
    rare(
        "--trust-code",
        callback=lambda context, wanted: context.with_resource(trusting(wanted)),
        help="Run the code that a run names: its task, say.",
    ),
]
"""Of a command that reads a run. It acts while the command runs; the parameter is not used."""


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


def check_forms(forms: dict[str, bool]) -> None:
    """Raise UserError if several forms of output are asked for. forms: by option."""
    chosen = [name for name, wanted in forms.items() if wanted]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)} are different forms of output; give one of them")


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
