"""`toytrans eval` and `toytrans translate`."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import (
    AsJson,
    Checkpoint,
    Lengths,
    MetricOption,
    Progress,
    check_new,
    newest,
    note,
    open_run,
    output,
    printable,
    run_and_sequences,
    span_of,
    warn_of_fault,
    write_new,
)
from toytrans.cli.render.results import print_comparison, print_scores
from toytrans.errors import UnseenSymbol, UserError
from toytrans.files import json_text, to_bytes

if TYPE_CHECKING:
    from toytrans.evaluation import Scores
    from toytrans.training.run import Run

CHUNK = 4096
"""Number of sequences that are translated together and held in memory."""

LONGEST_LINE = 2**16
"""Bytes of a line of standard input, which may have no end."""

Device = Annotated[str, typer.Option(help="auto | cpu | cuda | cuda:N | mps")]


def evaluate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN", help="Run directories, or folders of them. Default: the newest run."
        ),
    ] = None,
    split: Annotated[
        Literal["valid", "test"], typer.Option(help="Which data of the run to measure.")
    ] = "test",
    pairs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A file of pairs, tsv or jsonl, instead of a split. Twice: a file of sources, "
            "then one of targets, one a line.",
        ),
    ] = None,
    lengths: Lengths = None,
    length_of: Annotated[
        Literal["src", "tgt"], typer.Option(help="Whether lengths are of sources or targets.")
    ] = "src",
    examples: Annotated[
        int | None, typer.Option(min=1, max=10**7, help="Number of pairs to measure, in all.")
    ] = None,
    decode: Annotated[
        int | None,
        typer.Option(min=1, max=10**7, help="Pairs of each length to decode. Default: all."),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, max=1000, help="Beam width. 1 is greedy search.")] = 1,
    metric: MetricOption = "exact_match",
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a row for each run, length and metric."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the metric as a .png or .svg.")
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure a run, or compare several: exact match below, in and beyond the training lengths.

    One run: per length, with errors. Several runs, grouped by config: means over seeds with
    intervals, and differences over equal seeds. Runs that are unfinished or cannot be read are
    named, and never averaged in.
    """
    span = span_of(lengths)
    files: Path | tuple[Path, Path] | None = None
    if pairs and len(pairs) > 2:
        raise UserError(f"{len(pairs)} times --pairs: give a file of pairs, or sources and targets")
    if pairs:
        files = (pairs[0], pairs[1]) if len(pairs) == 2 else pairs[0]
    if csv is not None:
        check_new("--csv", csv)
    if plot is not None:
        from toytrans.cli.render.heat_maps import check_plot

        check_plot(plot)

    from toytrans.sweeps.comparison import Comparison, compare, group
    from toytrans.sweeps.measure import Eval, Measure, Member, eval_of, result_of
    from toytrans.sweeps.picture import draw
    from toytrans.training.measured import measure
    from toytrans.training.run import RunFolder, is_run

    scores: dict[Path, Scores] = {}

    def take(path: Path, wanted: Measure) -> Eval:
        loaded = _load(path, checkpoint, device)
        with _watched(path) as follow:
            selection = wanted.selection()
            found = measure(loaded, files or split, selection, wanted.decode, beam, follow)
        scores[path] = found
        return eval_of(loaded, test=result_of(found, wanted))

    named = list({os.path.abspath(path): path for path in paths or [newest()]}.values())
    run = named[0] if len(named) == 1 and is_run(named[0]) else None
    wanted = Measure(lengths=span, pairs=examples, decode=decode, side=length_of)
    search = "greedy search" if beam == 1 else f"beam {beam}"
    if run is not None:
        member = Member(run, RunFolder.open(run).config, take(run, wanted))
        compared = Comparison(wanted, metric, "", group([member]))
    else:
        about = f"{search}, " * (beam > 1) + f"checkpoint {checkpoint}, " * (checkpoint != "best")
        about += f"{'given' if files else split} pairs"
        usual = about == "test pairs"  # those that a sweep measures
        asked = None if usual and wanted == Measure(decode=None) else wanted
        about = "" if usual else about
        compared = compare(named, metric, asked, about=about, take=take, kept=usual)
    lost = all(member.problem for member in compared.members)
    if lost and len(reasons := set(compared.problems.values())) == 1:
        raise UserError(reasons.pop())
    if csv is not None:
        write_new("--csv", csv, to_bytes(compared.table().csv()))
    if plot is not None:
        write_new("--plot", plot, draw(compared, "", plot.suffix[1:].lower()))
    if as_json:
        print(json_text(scores[run].to_dict() if run else compared.to_dict()))
    elif run:
        print_scores(output(), scores[run], search)
    else:
        print_comparison(output(), compared)
    if lost:
        raise typer.Exit(1)


@contextlib.contextmanager
def _watched(run: Path) -> "Iterator[Callable[[int, int], None]]":
    """A progress bar on a terminal and lines elsewhere, after two seconds."""
    from tqdm import tqdm

    shape = "{desc} {bar} {percentage:3.0f}% {remaining} left"
    hidden, progress, so_far = not sys.stderr.isatty(), Progress(), 0
    with tqdm(
        desc=str(run), delay=2, leave=False, disable=hidden, dynamic_ncols=True, bar_format=shape
    ) as bar:

        def follow(done: int, total: int) -> None:
            nonlocal so_far
            so_far += done
            bar.total = total
            bar.update(done)
            if hidden:
                progress(f"{run}, {so_far / total:.0%}")

        yield follow


def translate(
    sequences: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] SEQUENCE",
            help='Run directory, then sequences such as "5 7 9". Default: the newest run, and one '
            "sequence per line of standard input.",
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Translate sequences of symbols with a run."""
    run, sequences = run_and_sequences(sequences)
    loaded = _load(run, checkpoint, device)
    if sequences:
        _translate_all(loaded, sequences, "argument")
    elif sys.stdin.isatty():
        note("one sequence a line, Ctrl-D ends:")
        for line in _lines():
            try:
                print(printable(loaded.translate([line])[0]), flush=True)
            except UnseenSymbol as error:
                note(f"toytrans: {error}")
    else:
        _translate_all(loaded, _lines(), "standard input, line")


def _load(path: Path | None, checkpoint: str, device: str) -> "Run":
    """The run of a path, or the newest one. Raises UserError."""
    from toytrans.training.devices import tune_process

    tune_process()
    run = open_run(path, checkpoint, device)
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
    """Translate and print in chunks. An unknown symbol is reported with its place."""
    from tqdm import tqdm

    waiting, number = iter(sequences), 0
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    with tqdm(
        unit=" sequences", delay=2, leave=False, disable=not watched, dynamic_ncols=True
    ) as bar:
        while chunk := list(islice(waiting, CHUNK)):
            known, error = _known(run, chunk)
            if known:
                print("\n".join(map(printable, run.translate(known))), flush=True)
            number += len(known)
            if error:
                raise UserError(f"{place} {number + 1}: {error}")
            bar.update(len(chunk))


def _known(run: "Run", sequences: list[str]) -> tuple[list[str], UnseenSymbol | None]:
    """The sequences before the first with an unknown symbol, and the error of that one."""
    for number, sequence in enumerate(sequences):
        try:
            run.vocabulary.encode(sequence.split())
        except UnseenSymbol as error:
            return sequences[:number], error
    return sequences, None
