"""The Typer application, and how errors become exit codes."""

import atexit
import contextlib
import errno
import os
import sys
import tempfile
import traceback
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

import toytrans
from toytrans.cli import (
    attention,
    check,
    evaluate,
    exercise,
    explain,
    look,
    runs,
    sweep,
    train,
)
from toytrans.cli.terminal import note, reporter, silence
from toytrans.errors import UserError, ran_out_of_memory, shortened
from toytrans.training import signals
from toytrans.user_code import fault_in_user_code

app = typer.Typer(
    name="toytrans",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=(toytrans.__doc__ or "").partition("\n\n")[0],
)


MORE_WORDS = {"allow_extra_args": True}
"""Of commands that answer themselves to words that are no RUN."""

TRAIN, LOOK, PROVE, LEARN = "Train", "Look", "Prove", "Learn"
app.command("train", rich_help_panel=TRAIN)(train.train)
app.command("sweep", rich_help_panel=TRAIN)(sweep.sweep)
app.command("runs", rich_help_panel=TRAIN)(runs.runs)
app.command("new", rich_help_panel=TRAIN)(explain.new)
app.command("export", rich_help_panel=TRAIN)(runs.export)
app.command("translate", rich_help_panel=LOOK)(runs.translate)
app.command("attention", rich_help_panel=LOOK)(attention.attention)
app.command("inspect-masks", rich_help_panel=LOOK, context_settings=MORE_WORDS)(look.inspect_masks)
app.command("trace", rich_help_panel=LOOK)(look.trace)
app.command("report", rich_help_panel=LOOK)(runs.report)
app.command("check", rich_help_panel=PROVE)(check.check)
app.command("eval", rich_help_panel=PROVE)(evaluate.evaluate)
app.command("doctor", rich_help_panel=PROVE)(check.doctor)
app.command("board", rich_help_panel=PROVE)(sweep.board)
app.command("explain", rich_help_panel=LEARN)(explain.explain)
app.command("demo", rich_help_panel=LEARN, no_args_is_help=True)(look.demo)
app.add_typer(exercise.app, name="exercise", rich_help_panel=LEARN)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"toytrans {toytrans.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
"""Errors of a full, forbidden or broken disk that name no file: those of standard output."""


def main() -> NoReturn:
    """Run a command. Exit codes: 0 success, 1 a check failed, 2 user error, 70 internal error,
    128 + n signal n."""
    # Idle OpenMP threads that spin for long starve a second training on the same cores: two at
    # once took thirty times as long each. A short spin costs one training alone a few percent.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ["PYTHONSAFEPATH"] = "1"  # nothing a command starts imports from where it runs
    signals.end_at_once()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell has closed it: >&-
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115  # for the process's life
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    reporter.start()
    try:
        code = _run()
        if code in (1, 2):
            reporter.leave_last()
        if reporter.one_of_several:  # a thread of gloo may abort Python's own shutdown
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(code)
        sys.exit(code)
    finally:
        signals.ignore()


def _run() -> int:
    """The exit code of the command; its errors are printed on standard error."""
    try:
        code = _app()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, say `head`, has stopped reading
        silence(sys.stdout)
        return 128 + 13  # what a shell reports for a program ended by SIGPIPE, number 13
    except UserError as error:
        for line in error.args:
            if reporter.active:  # every process of a training has the same user errors
                _refuse(shortened(line))
        return 2
    except Exception as error:
        if ran_out_of_memory(error):
            return _refuse(
                "out of memory; lower data.batch_tokens, the lengths of the sequences or the sizes "
                "of the model"
            )
        if fault := fault_in_user_code(error):
            return _refuse(f"your code: {fault}")
        if isinstance(error, OSError) and (error.filename or error.errno in DISK):
            silence(sys.stdout)
            return _refuse(f"{error.filename or 'standard output'}: {error.strerror}")
        message = shortened(f"{type(error).__name__}: {error}")
        try:
            place = _written_down()
        except OSError:  # a full disk, say
            traceback.print_exc(file=reporter.stderr)
            place = "above"
        _refuse(f"internal error ({message}); see {place}")
        return 70


def _app() -> int:
    """Run Typer, which exits, and return its exit code."""
    try:
        app()
    except SystemExit as stop:
        cause = stop.__context__  # Typer and Rich exit with 1 at a closed pipe and an EOFError
        cause = cause.__cause__ if isinstance(cause, typer.Abort) else cause
        if isinstance(cause, (BrokenPipeError, EOFError)):
            raise cause from None
        if fault := fault_in_user_code(stop):
            raise UserError(f"your code: {fault}") from None
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _refuse(message: str) -> int:
    """A last line on standard error, whether or not anybody reads it; the exit code 2."""
    with contextlib.suppress(BrokenPipeError):
        note(f"toytrans: {message}", reporter.stderr)
    return 2


def _written_down() -> str:
    """Where to read the traceback of the error that is being handled."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="toytrans-crash-", suffix=".txt", delete=False, errors="backslashreplace"
    ) as file:
        traceback.print_exc(file=file)
    return file.name
