"""`toytrans eval` and `toytrans translate`."""

import json
import re
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toytrans.cli.common import broken, note, output, warn_of_fault
from toytrans.cli.results import length_table, ranges, results_table
from toytrans.errors import UnseenSymbol, UserError

if TYPE_CHECKING:
    from toytrans.data.pairs import Pairs
    from toytrans.training.run import Run

CHUNK = 4096
"""Sequences translated at a time; no more than these are held in memory."""

Device = Annotated[str, typer.Option(help="auto | cpu | cuda | cuda:N | mps")]


def evaluate(
    run: Annotated[Path | None, typer.Argument(help="A run directory; the newest one.")] = None,
    split: Annotated[Literal["valid", "test"], typer.Option()] = "test",
    src_file: Annotated[Path | None, typer.Option(help="Sources, one a line.")] = None,
    tgt_file: Annotated[Path | None, typer.Option(help="Their targets.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Source lengths, say 1:400.")] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Pairs.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beams; 1 = greedy search.")] = 1,
    checkpoint: Annotated[str, typer.Option(help="best | last | STEP")] = "best",
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Measure a run: exact match with its interval, per length, in range and beyond."""
    span = _span(lengths) if lengths else None
    if (src_file is None) != (tgt_file is None):
        raise UserError("--src-file and --tgt-file go together; give both")

    from toytrans.evaluation import evaluate as measure

    loaded = _load(run, checkpoint, device)
    if src_file and tgt_file:
        pairs, data = _pairs_of_files(loaded, src_file, tgt_file, span, examples), "files"
    else:
        pairs, data = _pairs_of_split(loaded, split, span, examples), split
    report = measure(
        loaded.model, pairs, loaded.facts, both_ends=loaded.config.marks_both_ends, beam=beam
    )
    found = report.document(loaded.facts.train_length)
    if as_json:
        document = {"split": data, "checkpoint": loaded.step, "fault": loaded.config.fault}
        print(json.dumps(document | found))
        return
    console = output()
    search = "greedy search" if beam == 1 else f"beam {beam}"
    title = f"{loaded.path}, step {loaded.step}, {search}{broken(loaded.config.fault)}"
    rows = ranges(data, report, loaded.facts)
    if len(rows) != 1:
        rows.append((f"{data}, all", report.total().summary()))
    console.print(results_table(title, rows))
    console.print(length_table(found["by_length"]))


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
        for line in sys.stdin:
            try:
                print(loaded.translate([line])[0], flush=True)
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
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode()
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
                print("\n".join(run.translate(known)), flush=True)
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


def _pairs_of_split(
    run: "Run",
    split: Literal["valid", "test"],
    span: tuple[int, int] | None,
    examples: int | None,
) -> "Pairs":
    from toytrans.data import open_source
    from toytrans.data.pairs import all_pairs

    config = run.config
    changes: dict[str, Any] = {}
    if config.data.task is not None:
        if span:
            changes[f"{split}_length"] = list(span)
        if examples:
            changes[f"{split}_examples"] = examples
    config = _changed(run, changes)
    pairs = all_pairs(open_source(config, run.facts), split)
    return pairs if config.data.task is not None else _selected(pairs, span, examples)


def _changed(run: "Run", changes: dict[str, Any]) -> Any:
    """The run's config with other data settings, checked like any config."""
    from toytrans.config import check_config
    from toytrans.yaml_tree import Tree

    values = run.config.model_dump(mode="json")
    values["data"] |= changes
    return check_config(Tree(str(run.path), values))


def _pairs_of_files(
    run: "Run", src: Path, tgt: Path, span: tuple[int, int] | None, examples: int | None
) -> "Pairs":
    from toytrans.data.files import encode_pairs, read_pairs

    text = read_pairs((str(src), str(tgt)), "text")
    return _selected(encode_pairs(text, run.vocabulary), span, examples)


def _selected(pairs: "Pairs", span: tuple[int, int] | None, examples: int | None) -> "Pairs":
    import torch

    low, high = span or (0, torch.iinfo(torch.int64).max)
    rows = ((pairs.src_length >= low) & (pairs.src_length <= high)).nonzero()[:, 0]
    if not len(rows):
        raise UserError(f"--lengths {low}:{high}: the data holds no source of such a length")
    return pairs.take(rows[:examples])
