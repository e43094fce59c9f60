"""What several commands share: how they print."""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from toytrans.config import FaultName

Break = Annotated[
    FaultName | None,
    typer.Option("--break", metavar="FAULT", help="Plant a mistake; see `toytrans faults`."),
]


def output() -> Console:
    """Standard output; where NO_COLOR is set without any escape codes, bold and dim included."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(highlight=False, color_system=None if plain else "auto")


def note(message: str) -> None:
    """One line on standard error."""
    print(printable(message), file=sys.stderr, flush=True)


def warn_of_fault(fault: str | None) -> None:
    """Say that a model is broken on purpose, wherever one is shown."""
    if fault is not None:
        note(f"broken on purpose: {fault} (what that does: toytrans faults {fault})")


def broken(fault: str | None) -> str:
    """What a title says of a fault: nothing, or that it is there."""
    return f"; broken on purpose: {fault}" if fault else ""


def printable(text: str) -> str:
    """Text on one line whose control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


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
