"""`toytrans runs`, `translate`, `report` and `export`: which runs there are, and their use."""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from toytrans import export as exports
from toytrans.cli.common import (
    AsJson,
    Checkpoint,
    Device,
    RunArgument,
    RunsArgument,
    TrustCode,
    warn_of_fault,
)
from toytrans.cli.new_files import check_new, free_name, write_new
from toytrans.cli.terminal import Progress, note, print_table, printable
from toytrans.config.faults import fault_remark
from toytrans.errors import UnseenSymbol, UserError, listed, share
from toytrans.export import ExportFormat
from toytrans.figures import check_matplotlib
from toytrans.files import json_text
from toytrans.report import sections
from toytrans.report.page import lacking, page
from toytrans.training.devices import choose_device, tune_process
from toytrans.training.listing import list_runs, newest_run
from toytrans.training.run import Run

UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}

CHUNK = 4096
"""Number of sequences that are translated together and held in memory."""

LONGEST_LINE = 2**16
"""Bytes of a line of standard input, which may have no end."""

CHECKED, LONGEST = 8, 20
"""Sequences that are decoded after an export, and their longest, in symbols."""


# The run that a command reads -----------------------------------------------------------------


def open_run(
    path: Path | None, trust_code: bool, checkpoint: str = "best", device: str = "cpu"
) -> Run:
    """The run of a path, or the newest one, whose fault is noted. Raises UserError.

    trust_code: whether code that the run names may run
    """
    tune_process()
    run = Run.open(path or newest(), trust_code, checkpoint, device)
    assert run.model, "errors of a checkpoint come before anything else is said"
    warn_of_fault(run.config.fault)
    for sentence in run.notes:
        note(sentence)
    return run


def newest() -> Path:
    """The newest run, named in a note. Raises UserError."""
    path = newest_run()
    rest = Run.open(path).unfinished
    note(f"run: {path}, the newest" + (f"; training is unfinished: {rest}" if rest else ""))
    return path


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


# The commands ----------------------------------------------------------------------------------


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to look, and below.")
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs: state, best exact match, age, size."""
    if not os.path.isdir(folder):
        problem = "this is a file" if os.path.exists(folder) else "no such folder"
        raise UserError(f"{folder}: {problem}; name a folder of runs, as `toytrans train` makes it")
    listed = list_runs(folder, Progress())
    if as_json:
        described = [
            {"run": str(run.path)}
            | asdict(run.state)
            | {"age_s": round(run.age_s), "bytes": run.size}
            for run in listed
        ]
        print(json_text({"folder": str(folder), "runs": described}))
        return
    if not listed:
        note(f"{folder}: no runs here")
        return
    rows = []
    for run in listed:
        state = run.state
        problem = state.problem.removeprefix(f"{run.path}: ").removeprefix(f"{run.path}/")
        more = f"; {fault_remark(state.fault)}" if state.fault else f": {problem}" * bool(problem)
        best = "-" if state.exact_match is None else share(state.exact_match)
        unit = next((unit for unit, length in UNITS.items() if run.age_s >= length), "s")
        since = f"{int(run.age_s / UNITS[unit])} {unit}"
        rows.append((str(run.path), f"{state}{more}", best, since, f"{run.size / 1e6:,.1f} MB"))
    caption = "exact match: the best on validation pairs, free-running"
    numbers = ("exact match", "age", "size")
    print_table(("run", "state"), numbers, rows, box=None, caption=caption)


def translate(
    sequences: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] SEQUENCE",
            help='Run directory, then sequences such as "5 7 9". Default: the newest run, and one '
            "sequence per line of standard input.",
        ),
    ] = None,
    device: Device = "auto",
    trust_code: TrustCode = False,
) -> None:
    """Translate sequences of symbols with a run."""
    path, sequences = run_and_sequences(sequences)
    run = open_run(path, trust_code, device=device)
    typed = not sequences and sys.stdin.isatty()
    if typed:
        note("one sequence a line, Ctrl-D ends:")
    place = "argument" if sequences else "standard input, line"
    known = set(run.vocabulary.symbols)
    waiting, number, progress = iter(sequences or _lines()), 0, Progress()
    while chunk := list(islice(waiting, 1 if typed else CHUNK)):
        try:
            for sequence in chunk:
                number += 1
                run.vocabulary.encode(sequence.split())
                strange = [repr(symbol) for symbol in sequence.split() if symbol not in known]
                if strange:  # only a vocabulary with a symbol for all others encodes these
                    what = f"read as {run.vocabulary.unknown}: {listed(strange)}"
                    note(f"{place} {number}: {what}")
        except UnseenSymbol as error:
            if not typed:
                raise UserError(f"{place} {number}: {error}") from None
            note(f"toytrans: {error}")
            continue
        print("\n".join(map(printable, run.translate(chunk))), flush=True)
        if not sys.stdout.isatty():
            progress(f"{number:,} sequences")


def _lines() -> Iterator[str]:
    """The lines of standard input. Raises UserError."""
    read_line = partial(sys.stdin.buffer.readline, LONGEST_LINE + 1)
    for number, raw in enumerate(iter(read_line, b""), 1):
        if len(raw) > LONGEST_LINE:
            raise UserError(f"standard input, line {number}: longer than {LONGEST_LINE:,} bytes")
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"standard input, line {number}: not text in UTF-8") from None


def report(
    paths: RunsArgument = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: report.html, report-2.html and so on."),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write one HTML page about a run, or about several.

    The page holds everything it needs and opens in any browser. One run: curves,
    exact match by length, translations, checks, configuration. Several runs: the
    same curves together, and the tables of eval.
    """
    check_new(out)
    check_matplotlib()
    tune_process()
    views = sections.views_of(paths or [newest()], trust_code)
    title = views[0].name if len(views) == 1 else f"{len(views)} runs"
    parts = list(sections.sections_of(views, Progress()))
    text = page(f"toytrans: {title}", parts)
    out = out or free_name("report", ".html")
    write_new(out, text.encode())
    print(f"wrote {printable(str(out))}")
    for sentence in lacking(parts):
        note(sentence)


def export(
    format: Annotated[ExportFormat, typer.Option("--format", help="The runtime to write for.")],
    run: RunArgument = None,
    out: Annotated[
        Path | None, typer.Option(help="What to write. Default: the run's name and the format's.")
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    trust_code: TrustCode = False,
) -> None:
    """Write the model of a run for another runtime.

    The tokens of both are compared. A model that a format cannot express is
    refused. docs/export.md shows how each is used.

    safetensors: one file for plain PyTorch.
    huggingface: a folder for transformers.
    ctranslate2: a folder for CTranslate2.
    onnx: a folder for ONNX runtimes.
    """
    check_new(out)
    chosen = choose_device(device)
    exports.check_installed(format)
    loaded = open_run(run, trust_code, checkpoint)
    path = out or exports.default_path(loaded, format)
    check_new(path)
    exports.export(loaded, format, path)
    rest = loaded.unfinished
    training = f"; training is unfinished: {rest}" if rest else ""
    print(printable(f"wrote {path} from {loaded.path}, step {loaded.step}{training}"))
    loaded.model.to(chosen)
    sources = exports.random_sources(loaded, CHECKED, LONGEST)
    if not exports.FORMATS[format].reads_empty:
        sources = [source for source in sources if loaded.vocabulary.decode(source)]
        if len(sources) < CHECKED:
            note(f"not compared: an empty source, which {format} answers with nothing")
    pairs = exports.compare(loaded, format, path, sources)
    equal = sum(ours == theirs for ours, theirs in pairs)
    print(f"decoded with it: {equal} of {len(pairs)} sequences give the tokens of this run")
    for source, (ours, theirs) in zip(sources, pairs, strict=True):
        if ours != theirs:
            texts = (" ".join(loaded.vocabulary.decode(ids)) for ids in (source, ours, theirs))
            src, here, there = map(printable, texts)
            note(f"differs: {src!r} gives {here!r} here and {there!r} there")
    if equal < len(pairs):
        raise typer.Exit(1)
