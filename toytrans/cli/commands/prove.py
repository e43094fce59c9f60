"""Commands that measure and check: their options and their help."""

from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Literal

import typer

from toytrans.cli.common import (
    AsJson,
    Beam,
    Break,
    Checkpoint,
    ConfigOption,
    Device,
    Overrides,
    RunArgument,
    RunOrConfig,
    RunsArgument,
    TrustCode,
    rare,
)

Model = Annotated[
    str | None,
    typer.Option(metavar="FILE.py:FUNCTION", help="Check the model that a function returns."),
]
Only = Annotated[str, typer.Option(metavar="NAMES", help="Run these checks only, say pads,future.")]
Length = Annotated[
    int | None,
    typer.Option(min=4, max=1000, help="The longest sequence. Default: 64; more is thorough."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Ask only the shortest batch.")]
Everything = Annotated[bool, typer.Option("--all", help="Show every check with its evidence.")]
SaveExample = Annotated[
    Path | None,
    typer.Option(metavar="FILE.py", help="Write a script that shows the first failure again."),
]
WhereAsked = Annotated[
    str | None,
    rare(help="Where the model runs: auto | cpu | cuda | cuda:N | mps. Default: where it is."),
]


def check(
    run: RunOrConfig = None,
    config: ConfigOption = None,
    overrides: Overrides = None,
    model: Model = None,
    fault: Break = None,
    only: Only = "",
    length: Length = None,
    quick: Quick = False,
    everything: Everything = False,
    save_example: SaveExample = None,
    checkpoint: Checkpoint = "best",
    device: WhereAsked = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Check that masks, loss and layers do what they should.

    It checks a run (by default the newest), fresh weights of a config, or a
    --model of yours: a function that returns a Hugging Face model, or a dict with
    `model`, `pad_id`, `vocabulary_size` and other arguments of `toytrans.check`.

    The exit code is 0 if all checks pass, 1 if one fails, and 2 if a check that a
    PASS needs cannot be judged. One line then says what to give.
    """


SplitOption = Annotated[
    Literal["valid", "test"], typer.Option(help="Which data of the run to measure.")
]
Pairs = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="A file of pairs, tsv or jsonl, instead of a split. Twice: a file of sources, "
        "then one of targets, one a line.",
    ),
]
Lengths = Annotated[
    str | None, typer.Option(metavar="FROM:TO", help="Lengths to measure, say 1:400.")
]
LengthOf = Annotated[Literal["src", "tgt"], rare(help="Whether lengths are of sources or targets.")]
Examples = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=10**7, help="Number of pairs to measure, in all."),
]
Decode = Annotated[
    int | None,
    rare(metavar="N", min=1, max=10**7, help="Pairs of each length to decode. Default: all."),
]


def _metrics() -> list[str]:
    """What completes --metric."""
    return [*resolve_name("toytrans.metrics:METRICS")]


MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="METRIC",
        autocompletion=_metrics,
        help="What is compared; `toytrans explain metrics` lists them. Default: exact match.",
    ),
]
Csv = Annotated[
    Path | None, rare(metavar="FILE", help="Write a row for each run, length and metric.")
]
Save = Annotated[
    Path | None,
    rare(
        metavar="FILE.jsonl",
        help="Write source, target, output, right and score of each pair that is decoded.",
    ),
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the metric as a .png or .svg.")
]


def evaluate(
    paths: RunsArgument = None,
    split: SplitOption = "test",
    pairs: Pairs = None,
    lengths: Lengths = None,
    length_of: LengthOf = "src",
    examples: Examples = None,
    decode: Decode = None,
    beam: Beam = 1,
    metric: MetricOption = None,
    csv: Csv = None,
    save: Save = None,
    plot: Plot = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Measure a run, or compare several.

    You see exact match and symbol errors below, in and beyond the training
    lengths. If you name one run, you see them for each length too, with what goes
    wrong. If you name several, they are grouped by config, with means over seeds,
    intervals, and differences over equal seeds. Runs that are unfinished or
    cannot be read are named, and never averaged in.
    """


Machine = Annotated[
    bool, typer.Option("--machine", help="Describe this machine, also where there are runs.")
]


def doctor(
    run: RunArgument = None,
    machine: Machine = False,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Diagnose a run, or this machine.

    It reads the records, checkpoints and data of a run, by default of the newest,
    and says what looks wrong: each finding has its evidence, a remedy, and the
    checks to run. If there is no run yet, it describes this machine. The exit code is 1 if
    something is wrong, or would stop a training.
    """
