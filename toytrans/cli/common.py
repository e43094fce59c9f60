"""What several commands share: how they print."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.text import Text

from toytrans.choices import FaultName
from toytrans.errors import UserError

Break = Annotated[
    FaultName | None,
    typer.Option("--break", metavar="FAULT", help="Plant a mistake; see `toytrans faults`."),
]

RunArgument = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)
]
RunOption = Annotated[
    Path | None, typer.Option("--run", metavar="RUN", help="The same as the argument RUN.")
]


def one_run(argument: Path | None, option: Path | None) -> Path | None:
    """The run given as an argument or with --run. Raises UserError if both are given."""
    if argument is not None and option is not None:
        raise UserError(f"{argument} and --run {option}: give the run once")
    return argument if option is None else option


def run_and_sequences(
    arguments: list[str] | None, option: Path | None
) -> tuple[Path | None, list[str]]:
    """The run, which may be the first argument, and the sequences.

    The first argument is a run if it is a directory with a config.yaml.
    """
    sequences = arguments or []
    if sequences and os.path.isfile(os.path.join(sequences[0], "config.yaml")):
        return one_run(Path(sequences[0]), option), sequences[1:]
    return option, sequences


def output() -> Console:
    """Standard output; where NO_COLOR is set without any escape codes, bold and dim included."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(highlight=False, color_system=None if plain else "auto")


def note(message: str, file: TextIO | None = None) -> None:
    """One line on standard error, or in a file. A line that cannot be written changes nothing else:
    no exit code, no training. A reader that is gone raises BrokenPipeError."""
    file = file or sys.stderr
    try:
        print(printable(message), file=file, flush=True)
    except OSError as error:
        silence(file)
        if isinstance(error, BrokenPipeError):
            raise


def silence(stream: TextIO) -> None:
    """Let what is still unwritten go nowhere, or Python would complain when it ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test's has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def check_new(option: str, path: Path) -> None:
    """Raise UserError where an option names what is there already: nothing is written over."""
    if os.path.lexists(path):
        raise UserError(
            f"{option} {path}: there is such a file already; remove it, or name another"
        )


def write_new(option: str, path: Path, raw: bytes) -> None:
    """Write the file that an option names. Raises UserError where there is one, or none can be."""
    check_new(option, path)
    try:
        with path.open("xb") as file:
            file.write(raw)
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be written ({error.strerror})") from None


def is_copy() -> bool:
    """Whether torchrun has started the same command in another process of this machine, which
    says all that both would say before they have met."""
    return "WORLD_SIZE" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"


def fall_silent() -> None:
    """Say nothing more: another process does. Errors of this one alone are still told."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (to the process's end)


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Before the processes of a training have met, one of each machine tells what is wrong."""
    try:
        yield
    except UserError as error:
        error.said = error.said or is_copy()
        raise


def warn_of_fault(fault: str | None) -> None:
    """Say that a model is broken on purpose, wherever one is shown."""
    if fault is not None:
        note(f"broken on purpose: {fault} (what that does: toytrans faults {fault})")


def broken(fault: str | None) -> str:
    """What a title says of a fault: nothing, or that it is there."""
    return f"; broken on purpose: {fault}" if fault else ""


JOINERS = "\u200c\u200d"
"""Of letters, in Persian say, and of emoji: unprintable to Python, and harmless."""


def printable(text: str) -> str:
    """Text on one line whose control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() or c in JOINERS else repr(c)[1:-1] for c in text)


def shortened(text: str) -> str:
    """Text without its middle where it is longer than anybody reads; a remedy stands at its end."""
    return text if len(text) <= 2000 else f"{text[:1200]} ... {text[-700:]}"


def plain(text: str) -> Text:
    """Text of the user's in a table: no markup, no control characters."""
    return Text(printable(text))


def share(value: float) -> str:
    """A share with as many digits as tell it from 1: 0.998, 0.99987, 1.000."""
    for digits in (3, 4, 5):
        text = f"{value:.{digits}f}"
        if float(text) < 1 or value == 1:
            break
    return "1.000" if value == 1 else text
