"""The Typer application, and how errors become exit codes."""

import atexit
import contextlib
import errno
import os
import re
import sys
import tempfile
import threading
import traceback
import warnings
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from toytrans.cli import (
    attention,
    board,
    check,
    demo,
    doctor,
    evaluate,
    exercise,
    explain,
    export,
    inspect,
    report,
    runs,
    sweep,
    trace,
    train,
)
from toytrans.cli.common import note, silence, with_trust
from toytrans.cli.reporter import reporter
from toytrans.errors import EACH_ITS_OPTION, UserError, ran_out_of_memory, shortened
from toytrans.training import signals
from toytrans.user_code import fault_in_user_code


class _EndOfFile(Exception):
    """Wraps an EOFError, which Typer takes for the end of an answer: it prints "Aborted."."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Run a command; errors that Typer words badly get words of ours. Raises UserError."""
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise _EndOfFile from error
        except Exception as error:  # Typer does not export its UsageError, which has these two
            message, ctx = getattr(error, "message", None), getattr(error, "ctx", None)
            is_extra = isinstance(message, str) and "extra argument" in message
            if is_extra and ctx is not None and _takes_sequences(ctx):
                raise UserError(f"{message}; {EACH_ITS_OPTION}") from None
            raise


def _takes_sequences(ctx: Any) -> bool:
    """Whether a context of the command line is of a command with --src."""
    return any(option.name == "src" for option in ctx.command.params)


app = typer.Typer(
    name="toytrans",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train, inspect and measure encoder-decoder transformers on toy translation tasks.",
)

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
"""Errors of a full, forbidden or broken disk: never an internal error."""

TRAIN, SEE, MEASURE = "Train", "See and prove", "Measure"
app.command("train", rich_help_panel=TRAIN)(with_trust(train.train))
app.command("runs", rich_help_panel=TRAIN)(runs.runs)
app.command("new", rich_help_panel=TRAIN)(explain.new)
app.command("explain", rich_help_panel=TRAIN)(explain.explain)
app.command("inspect-masks", rich_help_panel=SEE)(with_trust(inspect.inspect_masks))
app.command("trace", rich_help_panel=SEE)(with_trust(trace.trace))
app.command("demo", rich_help_panel=SEE)(with_trust(demo.demo))
app.command("attention", rich_help_panel=SEE)(with_trust(attention.attention))
app.command("check", rich_help_panel=SEE)(with_trust(check.check))
app.add_typer(exercise.app, name="exercise", rich_help_panel=SEE)
app.command("doctor", rich_help_panel=SEE)(with_trust(doctor.doctor))
app.command("translate", rich_help_panel=SEE)(with_trust(evaluate.translate))
app.command("eval", rich_help_panel=MEASURE)(with_trust(evaluate.evaluate))
app.command("sweep", rich_help_panel=MEASURE)(sweep.sweep)
app.command("board", rich_help_panel=MEASURE)(board.board)
app.command("report", rich_help_panel=SEE)(with_trust(report.report))
app.command("export", rich_help_panel=TRAIN)(with_trust(export.export))


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
    """Run a command. Exit codes: 0 success, 1 a check failed, 2 user error, 70 internal error,
    128 + n signal n."""
    # Idle OpenMP threads that spin for long starve a second training on the same cores: two at
    # once took thirty times as long each. A short spin costs one training alone a few percent.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ["PYTHONSAFEPATH"] = "1"  # nothing a command starts imports from where it runs
    signals.end_at_once()
    _mend_streams()
    reporter.start()
    _warn_once()
    try:
        code = _run()
        if code in (1, 2):
            reporter.leave_last()
        if reporter.one_of_several:
            _end_at_once(code)
        sys.exit(code)
    finally:
        signals.ignore()


def _end_at_once(code: int | str | None) -> NoReturn:
    """End the process without Python's shutdown, but for its first two steps.

    A thread of gloo may still drop a tensor then. That aborts the process, and torchrun takes the
    training for failed.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _run() -> int | str | None:
    """The exit code of the command; its errors are printed on standard error."""
    try:
        _check_folder()
        code = _code_of_app()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, say `head`, has stopped reading
        silence(sys.stdout)
        return 128 + 13  # what a shell reports for a program ended by SIGPIPE, number 13
    except UserError as error:
        if reporter.active:  # every process of a training has the same user errors
            for line in error.args:
                _print_error(shortened(line))
        return 2
    except Exception as error:
        if ran_out_of_memory(error):
            amount = re.search(r"allocate (\d[\d.]* ?\w+)", str(error))
            asked = f" ({amount[1]} more were asked for)" if amount else ""
            _print_error(
                f"out of memory{asked}; lower data.batch_tokens, the lengths of the sequences or "
                "the sizes of the model"
            )
            return 2
        if fault := fault_in_user_code(error):
            _print_error(f"your code: {fault}")
            return 2
        if isinstance(error, OSError) and (error.filename or error.errno in REFUSALS):
            _print_error(f"{error.filename or 'standard output'}: {error.strerror}")
            silence(sys.stdout)
            return 2
        message = shortened(f"{type(error).__name__}: {error}")
        _print_error(f"internal error ({message}); {_report()}")
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
    """Typer exits with SystemExit. Typer and Rich exit with 1 at a closed pipe, which would
    mean that a check failed. BrokenPipeError is raised instead."""
    try:
        app()
    except _EndOfFile as wrapped:
        raise wrapped.__cause__ or wrapped from None
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        if fault := fault_in_user_code(stop):
            raise UserError(f"your code: {fault}") from None
        return stop.code
    return 0


def _mend_streams() -> None:
    """Replace standard streams that the shell has closed (>&-). Characters that an encoding lacks
    are written as escapes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for the process's life
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _warn_once() -> None:
    """Show each warning once. Python shows one again after libraries have changed its filters."""
    show, seen = warnings.showwarning, set[str]()

    def show_once(message: Warning | str, *rest: Any) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            show(message, *rest)

    warnings.showwarning = show_once  # type: ignore[assignment]


def _print_error(message: str) -> None:
    """A last line on standard error, whether or not anybody reads it."""
    with contextlib.suppress(BrokenPipeError):
        note(f"toytrans: {message}", reporter.stderr)


def _report() -> str:
    """Where to read the traceback of the error that is being handled."""
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
