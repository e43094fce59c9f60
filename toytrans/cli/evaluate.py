"""`toytrans eval` and `toytrans translate`."""

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toytrans.cli.common import note, output, printable, warn_of_fault
from toytrans.cli.render.lengths import Measured, print_one, print_several
from toytrans.errors import UnseenSymbol, UserError
from toytrans.safe_io import json_text

if TYPE_CHECKING:
    from toytrans.data.pairs import Split
    from toytrans.data.selection import Selection
    from toytrans.training.run import Run

CHUNK = 4096
"""Sequences translated at a time; no more than these are held in memory."""

LONGEST_LINE = 2**16
"""Bytes of a line of standard input, which may have no end."""

Device = Annotated[str, typer.Option(help="auto | cpu | cuda | cuda:N | mps")]


def evaluate(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run directories; the newest one."),
    ] = None,
    split: Annotated[Literal["valid", "test"], typer.Option()] = "test",
    src_file: Annotated[Path | None, typer.Option(help="Sources, one a line.")] = None,
    tgt_file: Annotated[Path | None, typer.Option(help="Their targets.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Lengths, say 1:400.")] = None,
    length_of: Annotated[
        Literal["src", "tgt"], typer.Option(help="Whose symbols a length counts.")
    ] = "src",
    examples: Annotated[int | None, typer.Option(min=1, max=10**7, help="Pairs.")] = None,
    decode: Annotated[
        int | None, typer.Option(min=1, max=10**7, help="Pairs to decode of each length; all.")
    ] = None,
    beam: Annotated[int, typer.Option(min=1, max=1000, help="Beams; 1 = greedy search.")] = 1,
    checkpoint: Annotated[str, typer.Option(help="best | last | STEP")] = "best",
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Measure a run: exact match with its interval, per length, in range and beyond.

    Several runs, say of one config with different seeds: each, their mean and range.
    """
    span = _span(lengths) if lengths else None
    if (src_file is None) != (tgt_file is None):
        raise UserError("--src-file and --tgt-file go together; give both")
    files = (src_file, tgt_file) if src_file and tgt_file else None

    from toytrans.data.selection import Selection

    paths: list[Path | None] = [*runs] if runs else [None]
    loaded = [_load(path, checkpoint, device) for path in paths]
    wanted = Selection(span, examples, length_of)
    measured = list(_measure(loaded, files or split, wanted, decode, beam))
    if as_json:
        print(json_text(_document(measured)))
    else:
        _print(measured, "greedy search" if beam == 1 else f"beam {beam}")


def _measure(
    runs: "list[Run]",
    pairs_of: "Split | tuple[Path, Path]",
    wanted: "Selection",
    decode: int | None,
    beam: int,
) -> Iterator[Measured]:
    """Measure runs that were trained on the same lengths. Raises UserError."""
    from toytrans.data.selection import pairs_of_files, pairs_of_split, trained_lengths
    from toytrans.evaluation import evaluate as measure

    ranges = [trained_lengths(run.config, run.facts, wanted.side) for run in runs]
    for run, trained in zip(runs, ranges, strict=True):
        if trained != ranges[0]:
            raise UserError(
                f"{run.path} was trained on lengths {trained[0]} to {trained[1]}, {runs[0].path} "
                f"on {ranges[0][0]} to {ranges[0][1]}: a mean over both would say nothing; "
                "measure them apart"
            )
    for run, trained in zip(runs, ranges, strict=True):
        if isinstance(pairs_of, tuple):
            pairs, data = pairs_of_files(*pairs_of, run.facts, wanted), "files"
        else:
            pairs, data = pairs_of_split(run.config, run.facts, pairs_of, wanted), pairs_of
        with _watched(run.path) as follow:
            report = measure(
                run.model,
                pairs,
                run.facts,
                source_bos=run.config.source_bos,
                beam=beam,
                decode=decode,
                side=wanted.side,
                follow=follow,
            )
        yield Measured(run, report, trained, data, wanted.side)


@contextlib.contextmanager
def _watched(run: Path) -> "Iterator[Callable[[int, int], None]]":
    """A bar on a terminal for what takes more than two seconds."""
    from tqdm import tqdm

    shape = "{desc} {bar} {percentage:3.0f}% {remaining} left"
    hidden = not sys.stderr.isatty()
    with tqdm(
        desc=str(run), delay=2, leave=False, disable=hidden, dynamic_ncols=True, bar_format=shape
    ) as bar:

        def follow(done: int, total: int) -> None:
            bar.total = total
            bar.update(done)

        yield follow


def _print(several: list[Measured], search: str) -> None:
    if len(several) == 1:
        print_one(output(), several[0], search)
    else:
        print_several(output(), several, search)


def _document(several: list[Measured]) -> dict[str, Any]:
    """One run's document; those of several, and what they say together."""
    from toytrans.evaluation import document_over_runs

    documents = [measured.document() for measured in several]
    if len(documents) == 1:
        return documents[0]
    return {"runs": documents, "over_runs": document_over_runs(documents)}


def translate(
    sequences: Annotated[
        list[str] | None, typer.Argument(help='Say "5 7 9"; none: one a line of standard input.')
    ] = None,
    run: Annotated[Path | None, typer.Option(help="A run directory; the newest one.")] = None,
    checkpoint: Annotated[str, typer.Option(help="best | last | STEP")] = "best",
    device: Device = "auto",
) -> None:
    """Translate sequences of symbols with a run."""
    loaded = _load(run, checkpoint, device)
    if sequences:
        _translate_all(loaded, sequences, "argument")
        return
    if sys.stdin.isatty():
        note("one sequence a line, Ctrl-D ends:")
        for line in _lines():
            try:
                print(printable(loaded.translate([line])[0]), flush=True)
            except UnseenSymbol as error:
                note(f"toytrans: {error}")
    else:
        _translate_all(loaded, _lines(), "standard input, line")


def _load(path: Path | None, checkpoint: str, device: str) -> "Run":
    from toytrans import load
    from toytrans.training.devices import tune_process
    from toytrans.training.run import newest_run

    tune_process()
    run: Run = load(path or newest_run(), checkpoint, device)
    warn_of_fault(run.config.fault)
    return run


def _lines() -> Iterable[str]:
    read_line = partial(sys.stdin.buffer.readline, LONGEST_LINE + 1)
    for number, raw in enumerate(iter(read_line, b""), 1):
        if len(raw) > LONGEST_LINE:
            raise UserError(f"standard input, line {number}: longer than {LONGEST_LINE:,} bytes")
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"standard input, line {number}: not text in UTF-8") from None


def _translate_all(run: "Run", sequences: Iterable[str], place: str) -> None:
    """Translate and print in chunks; a symbol that is not known is named with its place."""
    from tqdm import tqdm

    waiting, number = iter(sequences), 0
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    with tqdm(unit=" sequences", disable=not watched, dynamic_ncols=True) as bar:
        while chunk := list(islice(waiting, CHUNK)):
            known, error = _known(run, chunk)
            if known:
                print("\n".join(map(printable, run.translate(known))), flush=True)
            number += len(known)
            if error:
                raise UserError(f"{place} {number + 1}: {error}")
            bar.update(len(chunk))


def _known(run: "Run", sequences: list[str]) -> tuple[list[str], UnseenSymbol | None]:
    """The sequences before the first with a symbol that is not known, and what is wrong there."""
    for number, sequence in enumerate(sequences):
        try:
            run.vocabulary.encode(sequence.split())
        except UnseenSymbol as error:
            return sequences[:number], error
    return sequences, None


def _span(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high:
        raise UserError(f"--lengths {text}: write it as FROM:TO, say 1:400, or as one length")
    return low, high
