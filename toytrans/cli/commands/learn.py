"""Commands that explain: their options and their help."""

from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Literal

import typer

from toytrans.cli.common import (
    Checkpoint,
    ConfigOption,
    RunOrConfig,
    TrustCode,
)

KINDS = "tasks, positions, faults, checks, causes, metrics, schedules, keys"
"""The lists of `explain`."""

DEMOS = {
    "sdpa": "attention of 30 queries and 50 keys, step by step",
    "projections": "one projection for all heads equals one for each",
    "heads": "ten ragged lists become eight heads and are merged again",
    "scale": "scores and softmax as heads grow, with and without the scale",
    "decoding": "one masked pass beside decoding step by step",
    "gradients": "every gradient derived by hand beside autograd's, and a training on them",
}
"""What each demo shows."""

MOST_STUDENTS = 1000


def _names() -> list[str]:
    """What completes a NAME of `explain`."""
    kinds = resolve_name("toytrans.glossary:KINDS")
    return [name for kind in kinds.values() for name in kind.names()]


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        autocompletion=_names,
        help="A task, a fault, a check or why it fails, a metric, a schedule, a config key or "
        f"section; a FILE.py:TASK of yours, or a CONFIG; or a list: {KINDS}; or schema, "
        "the JSON Schema of a config, for editors.",
    ),
]


def explain(name: Name = None, config: ConfigOption = None, trust_code: TrustCode = False) -> None:
    """Explain a task, a fault, a check, a metric or a config key, or list them."""


def demo(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help=f"Which idea: {', '.join(DEMOS)}. Default: list them."),
    ] = None,
    run: RunOrConfig = None,
    config: ConfigOption = None,
    checkpoint: Checkpoint = "best",
    trust_code: TrustCode = False,
) -> None:
    """Show one idea of attention in numbers.

    `decoding` takes the first training pairs of a run, or of a config with fresh
    weights; if you name neither, it takes the newest run, and says which. The
    others show numbers of their own. `gradients` ends with exit code 1 if one
    differs from autograd's. Lessons 1 to 5 explain what you see.
    """


def new(
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**31 - 1, help="Draws the fault. Default: a new one each time."),
    ] = None,
    level: Annotated[
        int, typer.Option(min=1, max=3, help="1: the table shows it. 3: hardly seen, or none.")
    ] = 1,
    faults: Annotated[
        str | None,
        typer.Option(
            metavar="FAULTS",
            help="What to draw from: names with commas, and none. Default: those of the level.",
        ),
    ] = None,
    students: Annotated[
        int | None,
        typer.Option("--class", min=1, max=MOST_STUDENTS, help="One for each of so many students."),
    ] = None,
    language: Annotated[
        Literal["en", "ko"], typer.Option(help="Language of the student's sheet.")
    ] = "en",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder. Default: exercise-SEED or class-SEED."),
    ] = None,
) -> None:
    """Write an exercise, or one for each student of a class, into a new folder.

    Nothing in it names the fault openly. The same seed gives the same exercises.
    The level also decides where SHEET.md tells students to look.
    """


def answer(
    name: Annotated[str, typer.Argument(metavar="FAULT", help="The fault's name, or none.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The exercise's folder.")] = Path(),
    because: Annotated[
        str,
        typer.Option(metavar="TEXT", help="In a class: the proof, in your own words."),
    ] = "",
) -> None:
    """Answer with the name of a fault. If you work alone, you are told at once if it is right.

    A wrong answer ends with exit code 1. In a class the answer is written down
    instead, takes the place of an earlier one, and is judged by `exercise grade`.
    """


def grade(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Answers that came back, or a file of results."),
    ] = Path(),
    class_folder: Annotated[
        Path | None,
        typer.Option(
            "--class",
            metavar="DIR",
            help="The class as it was handed out, whose students and faults count. "
            "Default: the same DIR.",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a new CSV file."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a new HTML page."),
    ] = None,
) -> None:
    """Judge the answers of a class, and tell the faults. A single exercise is told too.

    Each student of the class gets one row. The exit code is 1 if an answer is missing.

    A file of results, which students copy from the live page in which a model
    learns, one a line, becomes a table. A name may stand before a line, Ada: say.
    """
