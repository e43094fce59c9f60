"""The Typer application, and what becomes of errors and signals."""

import contextlib
import errno
import os
import re
import sys
import tempfile
import time
import traceback
from io import TextIOWrapper
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
    signals,
    tasks,
    trace,
    train,
)
from toytrans.cli.common import fall_silent, is_copy, note, shortened, silence
from toytrans.errors import UserError, ran_out_of_memory

app = typer.Typer(
    name="toytrans",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train, inspect and measure encoder-decoder transformers on toy translation tasks.",
)

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
"""What a machine says that is full, forbidden or broken: never a bug of ours."""

TRAIN, SEE, MEASURE = "Train", "See and prove", "Measure"
app.command("train", rich_help_panel=TRAIN)(train.train)
app.command("tasks", rich_help_panel=TRAIN)(tasks.tasks)
app.command("schema", rich_help_panel=TRAIN)(tasks.schema)
app.command("inspect-masks", rich_help_panel=SEE)(inspect.inspect_masks)
app.add_typer(trace.app, name="trace", rich_help_panel=SEE)
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
    os.environ["PYTHONSAFEPATH"] = "1"  # nothing a command starts imports from where it runs
    signals.end_at_once()
    _mend_streams()
    stderr = sys.stderr
    if is_copy():
        fall_silent()
    try:
        code = _run(stderr)
        if code in (1, 2) and is_copy():
            time.sleep(SECONDS_FOR_THE_FIRST)
        sys.exit(code)
    finally:
        signals.ignore()


def _run(stderr: TextIO) -> int | str | None:
    """The exit code of the command that was asked for; its errors are told on stderr."""
    try:
        _check_folder()
        code = _code_of_app()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, say `head`, has had enough
        silence(sys.stdout)
        return 128 + 13  # what a shell says of a program that SIGPIPE, number 13, has ended
    except UserError as error:
        if not error.said:
            _tell(shortened(str(error)), stderr)
        return 2
    except Exception as error:
        if ran_out_of_memory(error):
            amount = re.search(r"allocate (\d[\d.]* ?\w+)", str(error))
            asked = f" ({amount[1]} more were asked for)" if amount else ""
            _tell(
                f"out of memory{asked}; lower data.batch_tokens, the lengths of the sequences or "
                "the sizes of the model",
                stderr,
            )
            return 2
        if isinstance(error, OSError) and error.errno in REFUSALS:
            _tell(f"{error.filename or 'standard output'}: {error.strerror}", stderr)
            silence(sys.stdout)
            return 2
        words = shortened(f"{type(error).__name__}: {error}")
        _tell(f"a bug of ours ({words}); {_report()}", stderr)
        return 70


def _check_folder() -> None:
    """Raise UserError where the working directory has been deleted."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"the working directory is gone ({error.strerror}); change to another"
        ) from None


def _code_of_app() -> int | str | None:
    """Typer ends by SystemExit. Both it and Rich say 1 where a pipe was closed, which here means
    that a check failed; the closed pipe is raised in its place."""
    try:
        app()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        return stop.code
    return 0


def _mend_streams() -> None:
    """Standard streams that the shell has closed (>&-) lead nowhere; what an encoding lacks is
    written as an escape."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for the process's life
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _tell(message: str, stderr: TextIO) -> None:
    """A last line on standard error, whether or not anybody reads it."""
    with contextlib.suppress(BrokenPipeError):
        note(f"toytrans: {message}", stderr)


def _report() -> str:
    """Where the traceback of the error that is being handled can be read."""
    if os.environ.get("TOYTRANS_DEBUG"):
        with contextlib.suppress(OSError):
            traceback.print_exc()
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="toytrans-crash-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            traceback.print_exc(file=file)
    except OSError as error:
        return (
            f"its report cannot be written ({error.strerror}); "
            "TOYTRANS_DEBUG=1 shows it, TMPDIR=DIR puts it elsewhere"
        )
    return f"see {file.name}"
