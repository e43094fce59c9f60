"""What several commands share: parameters, and how they print."""

import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, get_args

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toytrans.config.names import FaultName, Metric
from toytrans.config.sealed import fault_remark, is_sealed
from toytrans.errors import UserError
from toytrans.files import check_free, write_file
from toytrans.inspection.table import printable as printable
from toytrans.rounding import share as share
from toytrans.user_code import trusting

if TYPE_CHECKING:
    from tqdm import tqdm

    from toytrans.report.page import Section
    from toytrans.training.run import Run

RARE = "Rarely used"
"""The last group of options in the help of a command."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
AsHtml = Annotated[bool, typer.Option("--html", help="Print one HTML document.")]
Checkpoint = Annotated[
    str, typer.Option(help="Which checkpoint: best | last | STEP.", rich_help_panel=RARE)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a config key, say train.lr=1e-3."),
]
Lengths = Annotated[
    str | None, typer.Option(metavar="FROM:TO", help="Lengths to measure, say 1:400.")
]
Examples = Annotated[
    int | None, typer.Option(min=1, max=10**7, help="Number of test pairs of a run, in all.")
]
MetricOption = Annotated[
    Metric,
    typer.Option(help="The number that is compared and plotted."),
]


Break = Annotated[
    str | None,
    typer.Option(
        "--break",
        metavar="FAULT",
        autocompletion=lambda: get_args(FaultName),
        help="Make a mistake on purpose; `toytrans explain faults` lists them.",
    ),
]
RunArgument = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)
]


def run_and_sequences(arguments: list[str] | None) -> tuple[Path | None, list[str]]:
    """The run, which may be the first argument, and the sequences.

    The first argument is a run if it is a directory with a config.yaml, or written as a path, with
    a slash and no space.
    """
    sequences = arguments or []
    first = sequences[0] if sequences else ""
    is_path = os.path.basename(first) != first and not re.search(r"\s", first)
    if is_path or os.path.isfile(os.path.join(first or os.devnull, "config.yaml")):
        return Path(first), sequences[1:]
    return None, sequences


TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        callback=lambda context, wanted: context.with_resource(trusting(wanted)),
        help="Run the code that a run names: its task, say.",
        rich_help_panel=RARE,
    ),
]
"""Of a command that reads a run. It acts while the command runs; the parameter is not used."""


def open_run(path: Path | None, checkpoint: str, device: str = "cpu") -> "Run":
    """The run of a path, or the newest one. Raises UserError."""
    from toytrans import load

    run: Run = load(path or newest(), checkpoint, device)
    return run


def newest() -> Path:
    """The newest run, named in a note. Raises UserError."""
    from toytrans.training.run import RunFolder, newest_run

    path = newest_run()
    rest = RunFolder.open(path).unfinished
    note(f"run: {path}, the newest" + (f"; training is unfinished: {rest}" if rest else ""))
    return path


def output(stderr: bool = False) -> Console:
    """Standard output, or standard error. Where NO_COLOR is set, text has no escape codes, bold
    and dim included."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, color_system=None if plain else "auto")


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


def progress_bar(shape: str, **how: Any) -> "tqdm[Any]":
    """The bar of a command that counts, on standard error where that is a terminal. shape, how: as
    tqdm takes them."""
    from tqdm import tqdm

    hidden = not sys.stderr.isatty()
    return tqdm(bar_format=shape, disable=hidden, dynamic_ncols=True, leave=False, **how)


PROGRESS_AFTER = 2.0
"""Seconds before the first line of progress, and between two."""


class Progress:
    """Notes on standard error what a command is at, once that takes a while."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, what: str) -> None:
        if time.monotonic() - self.last >= PROGRESS_AFTER:
            self.last = time.monotonic()
            note(f"now: {what}")


def silence(stream: TextIO) -> None:
    """Discard what is still unwritten, or Python would complain when it ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test's has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def check_forms(forms: dict[str, bool]) -> None:
    """Raise UserError if several forms of output are asked for. forms: by option."""
    chosen = [name for name, wanted in forms.items() if wanted]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)} are different forms of output; give one of them")


def check_new(option: str, path: Path, endings: Sequence[str] = ()) -> None:
    """Raise UserError if what an option names cannot be written, before anything is computed.

    endings: of the name, one of which it needs.
    """
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{option} {path}: end the name with {' or '.join(endings)}")
    with _written_for(option, path):
        check_free(path, replace=False)
    if not os.path.isdir(path.parent):
        raise UserError(f"{option} {path}: there is no folder {path.parent}; make it first")


def write_new(option: str, path: Path, raw: bytes, *, replace: bool = False) -> None:
    """Write the file that an option names. Raises UserError. replace: as in `write_file`."""
    with _written_for(option, path):
        write_file(path, raw, replace=replace)


@contextlib.contextmanager
def _written_for(option: str, path: Path) -> Iterator[None]:
    """Name the option in errors."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{option} {error}") from None
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be written ({error.strerror})") from None


def argument(path: Path) -> str:
    """A path as a shell and a command take it; one that begins with a dash is no option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def print_page(title: str, sections: "list[Section]") -> None:
    """Print one HTML document, with character references, so that any encoding will do."""
    from toytrans.report.page import page

    print(page(f"toytrans {title}", sections).encode("ascii", "xmlcharrefreplace").decode())


def warn_of_fault(fault: str | None) -> None:
    """Note that a model has a fault, or may have one."""
    if fault is not None:
        more = "" if is_sealed(fault) else f" (what that does: toytrans explain {fault})"
        note(fault_remark(fault) + more)


def broken(fault: str | None) -> str:
    """The part of a title that names a fault."""
    return f"; {fault_remark(fault)}" if fault else ""


def plain(text: str, style: str = "") -> Text:
    """Text from the user for a table: no markup, no control characters."""
    return Text(printable(text), style)


def columns(texts: Sequence[str], numbers: Sequence[str] = (), **style: Any) -> Table:
    """An empty table: columns of text, then columns of numbers. style: arguments of rich's Table.

    Columns of numbers are aligned right and never folded.
    """
    table = Table(title_justify="left", title_style="bold", caption_justify="left", **style)
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def print_pairs(console: Console, pairs: Iterable[tuple[Text, Text]]) -> None:
    """Print names, and beside each what there is to say of it."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in pairs:
        table.add_row(name, text)
    console.print(table)


def print_table(console: Console, table: Table) -> None:
    """Print a table of `columns`, 80 columns wide on a terminal that is narrower: numbers are whole
    there."""
    if console.width < 80:
        table.width = 80
    console.print(table, crop=False)


def span_of(text: str | None) -> tuple[int, int] | None:
    """The lengths of --lengths; None where it is not given. Raises UserError."""
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high:
        raise UserError(f"--lengths {text}: write it as FROM:TO, say 1:400, or as one length")
    return low, high
