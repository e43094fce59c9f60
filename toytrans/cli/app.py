"""The Typer application, and how errors become exit codes."""

import atexit
import contextlib
import errno
import functools
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from pkgutil import resolve_name
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

import toytrans
from toytrans import references
from toytrans.cli.terminal import note, reporter, silence
from toytrans.errors import UserError, ran_out_of_memory, shortened
from toytrans.training import signals

TRAIN, LOOK, PROVE, LEARN = "Train", "Look", "Prove", "Learn"


class Entry(NamedTuple):
    """A command.

    group: in the help of all. place: the module and the function that do it; its options and its
    help stand under the name of that function in commands/, in the file of its group. help: the
    first line of that help. first: what judges the arguments before that module is imported.
    has_options: the function itself has its options. verbs: the commands of which it is made.
    """

    group: str
    place: str
    help: str = ""
    first: str = ""
    has_options: bool = False
    settings: dict[str, Any] = {}
    verbs: "dict[str, Entry]" = {}


MORE_WORDS = {"context_settings": {"allow_extra_args": True}}
"""Of a command that answers itself to words that are no RUN."""

A_CONFIG = "judged:a_config"

COMMANDS = {
    "train": Entry(
        TRAIN, "train:train", "Train a model from a YAML file and measure it.", has_options=True
    ),
    "sweep": Entry(
        TRAIN,
        "sweep:sweep",
        "Train all combinations of values and seeds, and compare them.",
        "judged:a_sweep",
    ),
    "runs": Entry(TRAIN, "runs:runs", "List runs: state, best exact match, age, size."),
    "new": Entry(TRAIN, "new:new", "Write a commented config that trains as it is."),
    "export": Entry(TRAIN, "export:export", "Write the model of a run for another runtime."),
    "translate": Entry(LOOK, "translate:translate", "Translate sequences of symbols with a run."),
    "inspect-masks": Entry(
        LOOK,
        "inspect_masks:inspect_masks",
        "Show the masks of a padded batch, and which labels the loss counts.",
        A_CONFIG,
        settings=MORE_WORDS,
    ),
    "trace": Entry(
        LOOK, "trace:trace", "Show every tensor of one attention and its layer.", A_CONFIG
    ),
    "live": Entry(LOOK, "live:live", "Write one HTML page in which a transformer runs."),
    "report": Entry(LOOK, "report:report", "Write one HTML page about a run, or about several."),
    "check": Entry(
        PROVE, "check:check", "Check that masks, loss and layers do what they should.", A_CONFIG
    ),
    "eval": Entry(PROVE, "evaluate:evaluate", "Measure a run, or compare several."),
    "doctor": Entry(PROVE, "doctor:doctor", "Diagnose a run, or this machine."),
    "explain": Entry(
        LEARN,
        "explain:explain",
        "Explain a task, a fault, a check, a metric or a config key, or list them.",
    ),
    "demo": Entry(LEARN, "demo:demo", "Show one idea of attention in numbers.", A_CONFIG),
    "exercise": Entry(
        LEARN,
        "",
        "Find the fault: write, answer, grade exercises.",
        verbs={
            "new": Entry(LEARN, "exercise:new"),
            "answer": Entry(LEARN, "exercise:answer"),
            "grade": Entry(LEARN, "exercise:grade"),
        },
    ),
}
"""The one place where imports wait. The help of all commands needs no command's module, and the
options of a command are read before what it does is imported, which takes seconds where torch comes
with it."""


WrongCommandLine: Any = typer.BadParameter.__base__
"""What Typer raises for words that it cannot parse; it has no public name."""


class Commands(TyperGroup):
    """The commands, each as it stands in COMMANDS until it is asked for."""

    def resolve_command(self, context: Any, words: list[str]) -> Any:
        """The command that some words call, imported."""
        if words and words[0] in COMMANDS:
            self.commands[words[0]] = imported(words[0])
        return super().resolve_command(context, words)


def imported(name: str) -> Any:
    """A command with its parameters."""
    entry = COMMANDS[name]
    made = typer.Typer(**LOOKS, add_completion=False, help=entry.help if entry.verbs else None)
    for verb, each in (entry.verbs or {name: entry}).items():
        panel = None if entry.verbs else entry.group
        made.command(verb, rich_help_panel=panel, **each.settings)(function_of(each))
    command = typer.main.get_command(made)
    command.name = name
    return command


def function_of(entry: Entry) -> Callable[..., None]:
    """What Typer calls. It has the options of a command, and imports what the command does when it
    is called with them."""
    if entry.has_options:
        return part(entry.place)
    _, _, function = entry.place.partition(":")
    options = part(f"commands.{entry.group.lower()}:{function}")

    @functools.wraps(options)
    def call(**given: Any) -> None:
        for place in filter(None, (entry.first, entry.place)):
            part(place)(**given)

    return call


def part(place: str) -> Callable[..., None]:
    """A function below toytrans.cli, whose module is imported now."""
    found: Callable[..., None] = resolve_name(f"toytrans.cli.{place}")
    return found


LOOKS: Any = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False}
app = typer.Typer(
    **LOOKS,
    cls=Commands,
    name="toytrans",
    help=(toytrans.__doc__ or "").partition("\n\n")[0],
)


def _not_imported() -> None:
    """What stands for each command in the help of all commands."""


for _name, _entry in COMMANDS.items():
    app.command(_name, rich_help_panel=_entry.group, help=_entry.help)(_not_imported)


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
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # code of the user's may raise anything
        if ran_out_of_memory(error):
            return _refuse(
                "out of memory; lower data.batch_tokens, the lengths of the sequences or the sizes "
                "of the model"
            )
        if fault := _fault_in_user_code(error):
            return _refuse(f"your code: {fault}")
        if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd
            return _refuse("the working directory is gone; change to one that exists")
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
    """Run Typer, and return its exit code. Without a command it shows the help of all."""
    try:
        return app(sys.argv[1:] or ["--help"], "toytrans", standalone_mode=False) or 0
    except WrongCommandLine as error:
        raise UserError(_one_line(error)) from None
    except typer.Abort as stop:
        raise stop.__cause__ or stop from None  # an EOFError
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # Typer exits with 1 at a closed pipe
            raise stop.__context__ from None
        if fault := _fault_in_user_code(stop):
            raise UserError(f"your code: {fault}") from None
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _one_line(error: Any) -> str:
    """What is wrong with a command line, and where its options are told."""
    message = " ".join(error.format_message().split()).rstrip(".")
    command = error.ctx.command_path if error.ctx else "toytrans"
    return f"{message[:1].lower()}{message[1:]}; see {command} --help"


def _fault_in_user_code(error: BaseException) -> str | None:
    """An exception in one line, if it came through code of the user's."""
    if not references.trusted:
        return None
    from toytrans.user_code import fault_in_user_code

    return fault_in_user_code(error)


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
