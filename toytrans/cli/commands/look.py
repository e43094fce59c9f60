"""Commands that look into models: their options and their help."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from toytrans.cli.common import (
    AsJson,
    Beam,
    Checkpoint,
    ConfigOption,
    Device,
    RunOrConfig,
    RunsArgument,
    TrustCode,
)


def translate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] SEQUENCE",
            help='Run directory, then sequences such as "5 7 9". Default: the newest run, and one '
            "sequence per line of standard input.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Translate the lines of a file.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a new file, one translation a line."),
    ] = None,
    beam: Beam = 1,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    trust_code: TrustCode = False,
) -> None:
    """Translate sequences of symbols with a run."""


Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--src", metavar="SEQUENCE", help='A source such as "5 7 9". Repeat it for a ragged batch.'
    ),
]
Steps = Annotated[
    bool, typer.Option("--steps", help="Walk through a forward pass, one key press per step.")
]
Library = Annotated[
    str | None,
    typer.Option("--as", metavar="LIBRARY", help="Masks as another library takes them, say hf."),
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the same as a page.")
]
Targets = Annotated[
    list[str] | None, typer.Option("--tgt", metavar="SEQUENCE", help="The target of each source.")
]
Panel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Show a panel: its number or a part of its title; or all."),
]


def inspect_masks(
    context: typer.Context,
    run: RunOrConfig = None,
    config: ConfigOption = None,
    src: Sources = None,
    tgt: Targets = None,
    steps: Steps = False,
    panel: Panel = None,
    library: Library = None,
    html: Html = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Show the masks of a padded batch, and which labels the loss counts.

    You see the batch and the three masks of its pair with the most pads, on one
    screen. --panel all shows every table of every pair.

    The batch holds the first training pairs of a run or a config, or sequences
    given with --src, and --tgt for their targets. Without --tgt a run or a config
    translates; without these too, each target is its source. With nothing at
    all, the newest run is taken, and named.
    """


PathAndSequences = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN | CONFIG] SEQUENCE",
        help='Sequences such as "5 7 9" (default: a few pairs of the run). A RUN may come first, '
        "or a config, which has fresh weights.",
    ),
]
WhichLayer = Annotated[
    int | None,
    typer.Option(min=1, help="Which layer, from 1 to the last. A picture has all of them."),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the weights of all heads into FILE.png or .svg."),
]


def trace(
    words: PathAndSequences = None,
    config: ConfigOption = None,
    tgt: Targets = None,
    part: Annotated[
        Literal["encoder", "decoder", "cross"], typer.Option(help="Which attention.")
    ] = "encoder",
    layer: WhichLayer = None,
    head: Annotated[int, typer.Option(min=1, help="The head to print.")] = 1,
    panel: Panel = None,
    plot: Plot = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Show every tensor of one attention and its layer.

    You see the batch, the attention weights, a summary and, if it is a run, the
    rule that each head follows, on one screen. --panel heads shows the weights of
    all heads as maps, --panel all every tensor.

    It traces your sequences, or the first training pairs, in a run or in a config
    with fresh weights. With neither, the newest run is taken, and named. The
    pair with the most pads is printed. Without --tgt the model translates.

    Rules (same place, mirror place, previous, next, itself, first, end) are
    measured on 200 validation pairs. A head may follow none.
    """


def live(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run directory. Default: a model that learns."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: live.html, live-2.html and so on."),
    ] = None,
    checkpoint: Checkpoint = "best",
    trust_code: TrustCode = False,
) -> None:
    """Write one HTML page in which a transformer runs.

    Without RUN a model learns in the page itself, in seconds, before your eyes.
    With RUN the page has the model of that run, with all its weights and some
    validation and test pairs. Either way, type a source, add pads, switch masks,
    scale, position codes or a head off, and see what the model writes, what every
    head reads, and how many validation pairs stay right. The page opens in any
    browser and loads nothing.
    """


def report(
    paths: RunsArgument = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: report.html, report-2.html and so on."),
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "cpu",
    trust_code: TrustCode = False,
) -> None:
    """Write one HTML page about a run, or about several.

    The page holds everything it needs and opens in any browser. If it is about
    one run, it has curves, exact match by length, translations, checks and the
    configuration. If it is about several, it has their curves together, and the
    tables of eval.
    """
