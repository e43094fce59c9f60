"""How commands print: notes and progress on standard error, texts and tables on standard output."""

import contextlib
import os
import sys
import time
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from toytrans.errors import UserError
from toytrans.errors import printable as printable
from toytrans.table import Cell, Table, TextColumn


def note(message: str, file: TextIO | None = None) -> None:
    """Write one line to standard error, or to a file. A failure to write is ignored, so that it
    changes no exit code and stops no training. A closed pipe raises BrokenPipeError."""
    file = file or sys.stderr
    try:
        print(printable(message), file=file, flush=True)
    except OSError as error:
        silence(file)
        if isinstance(error, BrokenPipeError):
            raise


def silence(stream: TextIO) -> None:
    """Discard what is still unwritten, or Python would complain when it ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test's has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


PROGRESS_AFTER = 2.0
"""Seconds before the first line of progress, and between two."""


class Progress:
    """Notes what a command is at, once that takes a while."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, what: str) -> None:
        if time.monotonic() - self.last >= PROGRESS_AFTER:
            self.last = time.monotonic()
            note(f"now: {what}")


class Bar:
    """How far a command is: a bar where standard error is a terminal, else notes, unless `quiet`.

    done: the share that is done. delay: seconds before the bar is drawn.
    """

    def __init__(self, done: float = 0.0, *, delay: float = 0.0, quiet: bool = False) -> None:
        hidden = not sys.stderr.isatty()
        try:
            from tqdm import tqdm  # the help of all commands does not wait for it

            self._bar = tqdm(
                total=1,
                initial=done,
                bar_format="{desc} {bar} {percentage:3.0f}% {remaining} left",
                disable=hidden,
                dynamic_ncols=True,
                leave=False,
                delay=delay,
            )
        except ValueError as error:
            raise UserError(f"tqdm: {error}; see the variables TQDM_* of the environment") from None
        self._note = None if quiet else Progress()
        self.done = done

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed: its signal saves
            self._bar.close()

    def show(self, done: float, what: str) -> None:
        """The share that is done, and what the command is at."""
        self.done = done
        if not self._bar.disable:
            with contextlib.suppress(OSError):
                self._bar.set_description_str(printable(what), refresh=False)
                self._bar.update(done - self._bar.n)
        elif self._note is not None:
            self._note(f"{what}, {done:.0%}")

    def write(self, line: str) -> None:
        """A line above the bar."""
        if self._bar.disable:
            note(line)
        else:
            self._bar.write(printable(line), file=sys.stderr)


def output(stderr: bool = False) -> Console:
    """Standard output, or standard error. Where NO_COLOR is set, text has no escape codes, bold
    and dim included."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, color_system=None if plain else "auto")


def plain(text: str, style: str = "") -> Text:
    """Text from the user: no markup, no control characters."""
    return Text(printable(text), style)


def plain_lines(text: str) -> Text:
    """The same of each line of a text."""
    return Text("\n").join(plain(line) for line in text.split("\n"))


LOOKS = {"open": "bold", "closed": "dim", "wrong": "bold red", "reason": "magenta"}
LOOKS |= {"PASS": "green", "FAIL": "bold red", "strong": "bold", "faint": "dim"}
"""How a cell is drawn that has a look."""


def drawn_cell(cell: Any) -> Text:
    """A cell of a table, in the style of its look."""
    return plain(str(cell), LOOKS.get(cell.look, "") if isinstance(cell, Cell) else "")


def show(table: Table, **style: Any) -> None:
    """Print a table, its title above it and its notes below. style: as Rich's Table takes it.

    Numbers are never folded: 80 columns are printed on a terminal that is narrower.
    """
    console = output()
    if table.title:  # on a line of its own: the title of a narrow table would be folded
        console.print(plain(table.title), style="bold" if table.rows else "", soft_wrap=True)
    if table.rows:
        looks: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)} | style
        grid = RichTable(**looks)
        for column in table.columns:
            if isinstance(column, TextColumn):
                grid.add_column(plain_lines(column.heading), overflow="fold")
            else:
                grid.add_column(plain_lines(column), justify="right", no_wrap=True)
        for row in table.rows:
            grid.add_row(*map(drawn_cell, row))
        if console.width < 80:
            grid.width = 80
        console.print(grid, crop=False)
    for sentence in table.notes:
        console.print(plain(sentence), soft_wrap=True)


# Which process prints ---------------------------------------------------------------------------

SECONDS_FOR_REPORTER = 5.0
"""torchrun ends all processes as soon as one fails. Silent processes fail last, so that the
reporting one has printed its error."""


class Reporter:
    """Whether this process prints, and whether it trains with others: rank 0 prints, or before the
    processes are connected, local rank 0 of each machine. stderr: for errors that this process
    alone has."""

    active, one_of_several = True, False
    stderr: TextIO

    def start(self) -> None:
        """Before anything is printed."""
        self.active, self.one_of_several, self.stderr = True, False, sys.stderr
        if "WORLD_SIZE" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
            self.fall_silent()

    def fall_silent(self) -> None:
        """Print nothing more. Libraries that write to descriptors 1 and 2 fall silent too."""
        if not self.active:
            return
        self.active = False
        with contextlib.suppress(OSError):  # a descriptor that the shell has closed
            self.stderr = open(os.dup(2), "w")  # noqa: SIM115  (to the process's end)
            null = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(null, stream)
            os.close(null)

    def leave_last(self) -> None:
        """Let the reporting process fail first."""
        if not self.active:
            time.sleep(SECONDS_FOR_REPORTER)


reporter = Reporter()
