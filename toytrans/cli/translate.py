"""`toytrans translate`."""

import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated

import typer

from toytrans.cli.common import TrustCode, open_run, run_and_sequences
from toytrans.cli.terminal import Progress, note, printable
from toytrans.errors import UnseenSymbol, UserError

CHUNK = 4096
"""Number of sequences that are translated together and held in memory."""

LONGEST_LINE = 2**16
"""Bytes of a line of standard input, which may have no end."""


def translate(
    sequences: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] SEQUENCE",
            help='Run directory, then sequences such as "5 7 9". Default: the newest run, and one '
            "sequence per line of standard input.",
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Translate sequences of symbols with a run."""
    path, sequences = run_and_sequences(sequences)
    run = open_run(path)
    typed = not sequences and sys.stdin.isatty()
    if typed:
        note("one sequence a line, Ctrl-D ends:")
    place = "argument" if sequences else "standard input, line"
    waiting, number, progress = iter(sequences or _lines()), 0, Progress()
    while chunk := list(islice(waiting, 1 if typed else CHUNK)):
        try:
            for sequence in chunk:
                number += 1
                run.vocabulary.encode(sequence.split())
        except UnseenSymbol as error:
            if not typed:
                raise UserError(f"{place} {number}: {error}") from None
            note(f"toytrans: {error}")
            continue
        print("\n".join(map(printable, run.translate(chunk))), flush=True)
        if not sys.stdout.isatty():
            progress(f"{number:,} sequences")


def _lines() -> Iterator[str]:
    read_line = partial(sys.stdin.buffer.readline, LONGEST_LINE + 1)
    for number, raw in enumerate(iter(read_line, b""), 1):
        if len(raw) > LONGEST_LINE:
            raise UserError(f"standard input, line {number}: longer than {LONGEST_LINE:,} bytes")
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"standard input, line {number}: not text in UTF-8") from None
