"""Commands of trainings, besides `train` itself: their options and their help."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from toytrans.cli.commands.prove import Lengths, MetricOption
from toytrans.cli.common import (
    AsJson,
    Checkpoint,
    ConfigArgument,
    ConfigOption,
    Device,
    RunArgument,
    TrustCode,
)


def sweep(
    argument: ConfigArgument = None,
    option: ConfigOption = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Seeds: 0:2 is 0, 1 and 2. Default: one.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE,VALUE", help="Values of a key; repeatable."),
    ] = None,
    lengths: Lengths = None,
    examples: Annotated[
        int | None, typer.Option(min=1, max=10**7, help="Number of test pairs of a run, in all.")
    ] = None,
    metric: MetricOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once, one a core at most.")
    ] = None,
    on: Annotated[
        Literal["local", "ray"], typer.Option(help="This machine, or a Ray cluster.")
    ] = "local",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder. Default: runs/sweeps/ and the config's name."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print a command for each run that is missing.")
    ] = False,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Train all combinations of values and seeds, and compare them.

    CONFIG is a config, or a file that describes a whole sweep, such as those in
    boards/. The same command goes on where it was stopped.
    """


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to look, and below.")
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs: state, best exact match, age, size."""


def new(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="`toytrans explain tasks` lists them.")
    ] = "reverse",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a new file. Default: standard output."),
    ] = None,
) -> None:
    """Write a commented config that trains as it is."""


def export(
    format: Annotated[
        Literal["safetensors", "huggingface", "ctranslate2", "onnx"],
        typer.Option("--format", help="The runtime to write for."),
    ],
    run: RunArgument = None,
    out: Annotated[
        Path | None, typer.Option(help="What to write. Default: the run's name and the format's.")
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    trust_code: TrustCode = False,
) -> None:
    """Write the model of a run for another runtime.

    The tokens of both are compared. A model that a format cannot express is
    refused. docs/export.md shows how each is used.

    safetensors: one file for plain PyTorch.
    huggingface: a folder for transformers.
    ctranslate2: a folder for CTranslate2.
    onnx: a folder for ONNX runtimes.
    """
