"""The Typer application, and what becomes of errors and signals."""

import os
import re
import signal
import sys
import tempfile
import time
import traceback
from typing import Annotated, NoReturn, TextIO

import typer

from toytrans.cli import (
    attention,
    board,
    check,
    doctor,
    evaluate,
    gradients,
    inspect,
    tasks,
    trace,
    train,
)
from toytrans.cli.common import fall_silent, is_copy, note
from toytrans.errors import UserError, ran_out_of_memory

app = typer.Typer(
    name="toytrans",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train, inspect and measure encoder-decoder transformers on toy translation tasks.",
)

TRAIN, SEE, MEASURE = "Train", "See and prove", "Measure"
app.command("train", rich_help_panel=TRAIN)(train.train)
app.command("tasks", rich_help_panel=TRAIN)(tasks.tasks)
app.command("schema", rich_help_panel=TRAIN)(tasks.schema)
app.command("inspect-masks", rich_help_panel=SEE)(inspect.inspect_masks)
app.command("trace", rich_help_panel=SEE)(trace.trace)
app.command("attention", rich_help_panel=SEE)(attention.attention)
app.command("check", rich_help_panel=SEE)(check.check)
app.command("faults", rich_help_panel=SEE)(check.faults)
app.command("doctor", rich_help_panel=SEE)(doctor.doctor)
app.command("gradients", rich_help_panel=SEE)(gradients.gradients)
app.command("translate", rich_help_panel=SEE)(evaluate.translate)
app.command("eval", rich_help_panel=MEASURE)(evaluate.evaluate)
app.command("board", rich_help_panel=MEASURE)(board.board)

SECONDS_FOR_THE_FIRST = 5.0
"""torchrun ends all processes as soon as one fails: copies wait until the first has said why."""


def _version(wanted: bool) -> None:
    if wanted:
        from toytrans import __version__

        print(f"toytrans {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run a command. Exit codes: 0, 1 a check failed, 2 the user's to mend, 70 ours, 128 + n."""
    # Idle OpenMP threads that spin for long starve a second training on the same cores: two at
    # once took thirty times as long each. A short spin costs one training alone a few percent.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    stderr = sys.stderr
    if is_copy():
        fall_silent()
    try:
        _run(stderr)
    except SystemExit as stop:
        if stop.code in (1, 2) and is_copy():
            time.sleep(SECONDS_FOR_THE_FIRST)
        raise
    finally:  # nothing is left to interrupt
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _run(stderr: TextIO) -> NoReturn:
    """Run a command; its errors are told on stderr."""
    try:
        app()
    except UserError as error:
        if not error.said:
            note(f"toytrans: {error}", stderr)
        code = 2
    except Exception as error:
        if ran_out_of_memory(error):
            amount = re.search(r"allocate (\d[\d.]* ?\w+)", str(error))
            asked = f" ({amount[1]} more were asked for)" if amount else ""
            note(
                f"toytrans: out of memory{asked}; lower data.batch_tokens, the lengths of the "
                "sequences or the sizes of the model",
                stderr,
            )
            sys.exit(2)
        if os.environ.get("TOYTRANS_DEBUG"):
            traceback.print_exc()
        with tempfile.NamedTemporaryFile(
            "w", prefix="toytrans-crash-", suffix=".txt", delete=False
        ) as file:
            traceback.print_exc(file=file)
        note(f"toytrans: a bug of ours ({type(error).__name__}: {error}); see {file.name}", stderr)
        code = 70
    else:
        code = 0
    sys.exit(code)
