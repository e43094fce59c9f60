"""`toytrans translate`: sequences of symbols through a run, typed, from a file, or as they come."""

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from toytrans.cli.common import path_and_sequences
from toytrans.cli.new_files import check_new, write_new
from toytrans.cli.opening import open_run
from toytrans.cli.terminal import Progress, note, printable
from toytrans.errors import UnseenSymbol, UserError, listed
from toytrans.files import read_named
from toytrans.training.run import Run

TOGETHER = 4096
"""Number of sequences that are translated together and held in memory."""

LONGEST_LINE, LARGEST_FILE = 2**16, 2**30
"""Bytes of a line, which may have no end, and of a file."""

STDIN = "standard input"


def translate(
    words: list[str] | None,
    file: Path | None,
    out: Path | None,
    beam: int,
    checkpoint: str,
    device: str,
    trust_code: bool,
) -> None:
    """Translate sequences of symbols with a run."""
    check_new(out)
    path, sequences = path_and_sequences(words)
    if file is not None and sequences:
        raise UserError(f"--file {file} and {sequences[0]!r}: give a file or sequences, not both")
    run = open_run(path, trust_code, checkpoint, device)
    if file is not None:
        stream = BytesIO(read_named(file, LARGEST_FILE))
        _translate(run, _lines(stream, str(file)), f"{file}, line", beam, out)
    elif sequences:
        _translate(run, sequences, "argument", beam, out)
    elif sys.stdin.isatty():
        _translate_typed(run, beam)
    else:
        _translate(run, _lines(sys.stdin.buffer, STDIN), f"{STDIN}, line", beam, out)


def _translate(run: Run, sequences: Iterable[str], place: str, beam: int, out: Path | None) -> None:
    """Print the translations of sequences, or write them to a file once all are there. place: what
    the number of a sequence counts, for errors."""
    waiting, done, progress, written = iter(sequences), 0, Progress(), list[str]()
    while some := list(islice(waiting, TOGETHER)):
        for number, sequence in enumerate(some, done + 1):
            try:
                _check_symbols(run, sequence, f"{place} {number}")
            except UnseenSymbol as error:
                raise UserError(f"{place} {number}: {error}") from None
        done += len(some)
        translations = run.translate(some, beam)
        if out is None:
            print("\n".join(map(printable, translations)), flush=True)
        written += translations if out else ()
        if out or not sys.stdout.isatty():
            progress(f"{done:,} sequences")
    if out is not None:
        write_new(out, "".join(f"{text}\n" for text in written).encode(errors="backslashreplace"))
        note(f"wrote {out}: {done:,} sequences")


def _translate_typed(run: Run, beam: int) -> None:
    """Answer each line as it is typed; a symbol that training has not seen is no end."""
    note("one sequence a line, Ctrl-D ends:")
    for number, sequence in enumerate(_lines(sys.stdin.buffer, STDIN), 1):
        try:
            _check_symbols(run, sequence, f"{STDIN}, line {number}")
        except UnseenSymbol as error:
            note(f"toytrans: {error}")
            continue
        print(printable(run.translate(sequence, beam)), flush=True)


def _check_symbols(run: Run, sequence: str, place: str) -> None:
    """Note symbols that are read as <unk>, where the vocabulary has it. Raises UnseenSymbol where
    it has not."""
    symbols, known = sequence.split(), set(run.vocabulary.symbols)
    run.vocabulary.encode(symbols)
    if strange := [repr(symbol) for symbol in symbols if symbol not in known]:
        note(f"{place}: read as {run.vocabulary.unknown}: {listed(strange)}")


def _lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a stream. Raises UserError with its name."""
    read_line = partial(stream.readline, LONGEST_LINE + 1)
    for number, raw in enumerate(iter(read_line, b""), 1):
        if len(raw) > LONGEST_LINE:
            raise UserError(f"{name}, line {number}: longer than {LONGEST_LINE:,} bytes")
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{name}, line {number}: not text in UTF-8") from None
