"""What several commands share: how they print."""

import sys

from rich.console import Console
from rich.text import Text


def output() -> Console:
    """Standard output."""
    return Console(highlight=False, soft_wrap=False)


def note(message: str) -> None:
    """One line on standard error."""
    print(printable(message), file=sys.stderr, flush=True)


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
