"""`toytrans eval`: one run measured, or several compared."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import typer

from toytrans.cli.new_files import check_new, check_plot, write_new
from toytrans.cli.opening import newest, open_run
from toytrans.cli.terminal import Bar, note, output, plain, show
from toytrans.documents import csv_bytes
from toytrans.errors import UserError
from toytrans.files import json_text
from toytrans.measure import Measure, check_longest
from toytrans.measurement import Result
from toytrans.outputs import Outputs
from toytrans.sweeps.comparison import Comparison, compare, labels_of, measures_of, of_one
from toytrans.sweeps.sweep_file import SweepMeasure
from toytrans.training.folder import is_run
from toytrans.training.run import Run


def evaluate(
    paths: list[Path] | None,
    split: Literal["valid", "test"],
    pairs: list[Path] | None,
    lengths: str | None,
    length_of: Literal["src", "tgt"],
    examples: int | None,
    decode: int | None,
    beam: int,
    metric: str | None,
    csv: Path | None,
    save: Path | None,
    plot: Path | None,
    checkpoint: str,
    device: str,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Measure a run, or compare several."""
    for file in (csv, save):
        check_new(file)
    check_plot(plot)
    span = span_of("--lengths", lengths, "1:400")
    check_longest(span)
    asked = SweepMeasure(
        split=split,
        files=files_of(pairs),
        lengths=span,
        length_of=length_of,
        examples=examples,
        decode=decode,
        beam=beam,
        checkpoint=checkpoint,
    )
    named = list({os.path.abspath(path): path for path in paths or [newest()]}.values())
    alone = len(named) == 1 and is_run(named[0])
    _check_number_of_runs(alone, save, metric, plot)
    wanted = measures_of(named) if asked == SweepMeasure() else {"": asked}
    taker = Taker(trust_code, device, save is not None)
    found: dict[str, Result] | dict[str, Comparison]
    if alone:
        found = _of_one(named[0], wanted, taker)
        compared = [of_one(Run.open(named[0]), result, metric) for result in found.values()]
    else:
        found = {name: _beside(named, metric, each, taker) for name, each in wanted.items()}
        compared = list(found.values())
    _write(compared[0], csv, plot)
    if save and taker.outputs:
        write_new(save, taker.outputs.as_jsonl())
        note(f"wrote {save}: {len(taker.outputs.lines):,} pairs")
    _print(found, as_json)
    if all(member.problem for each in compared for member in each.members):
        raise typer.Exit(1)


def _check_number_of_runs(
    alone: bool, save: Path | None, metric: str | None, plot: Path | None
) -> None:
    """Refuse what only one run has, and say what only several have."""
    if save and not alone:
        raise UserError("--save writes the outputs of one run; name one")
    if metric and alone and not plot:
        note("--metric says by what runs are compared or drawn; of one run --json has every metric")


def _of_one(path: Path, wanted: Mapping[str, SweepMeasure], take: "Taker") -> dict[str, Result]:
    """The results of a run, by the names of its measures: those that its sweep has kept, or what is
    measured now."""
    labels = labels_of(path)
    named = {name: each for name, each in wanted.items() if not labels or each.is_of(labels)}
    found = {}
    for name, each in (named or wanted).items():
        found[name] = take.kept(path, each.measure) or take(path, each.measure)
    return found


def _print(found: Mapping[str, Result] | Mapping[str, Comparison], as_json: bool) -> None:
    """One document, or the tables; of several measures each below its name."""
    if as_json:
        documents = {name: each.to_dict() for name, each in found.items()}
        several = {"measures": documents}
        print(json_text(several if len(documents) > 1 else next(iter(documents.values()))))
        return
    for name, each in found.items():
        if len(found) > 1:
            print()
            output().print(plain(name), style="bold underline")
        for table in each.tables():
            show(table)


class Taker:
    """Measures runs, each below a bar. keeps: whether the outputs of a run are kept."""

    def __init__(self, trust_code: bool, device: str, keeps: bool) -> None:
        self.trust_code, self.device, self.keeps = trust_code, device, keeps
        self.outputs: Outputs | None = None

    def kept(self, path: Path, wanted: Measure) -> Result | None:
        """What a sweep has kept of a run, where nothing else is needed."""
        return None if self.keeps else Run.open(path).kept_result(wanted)

    def __call__(self, path: Path, wanted: Measure) -> Result:
        """Measure a run now. Raises UserError."""
        run = open_run(path, self.trust_code, wanted.checkpoint, self.device)
        if self.keeps:
            self.outputs = Outputs(run.model, run.vocabulary)
        with Bar(delay=2) as bar:

            def follow(done: int, total: int) -> None:
                bar.show(done / total, str(run.path))

            return run.measure(wanted, follow, self.outputs)


def files_of(pairs: list[Path] | None) -> tuple[str, ...] | None:
    """The files of --pairs. Raises UserError for more than two."""
    if pairs and len(pairs) > 2:
        raise UserError(f"{len(pairs)} times --pairs: give a file of pairs, or sources and targets")
    return tuple(map(str, pairs)) if pairs else None


def span_of(option: str, text: str | None, example: str) -> tuple[int, int] | None:
    """The ends of FROM:TO, which one number stands for too; None where it is not given.

    example: of a right one, for the UserError of another.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high or high >= 2**31:
        raise UserError(f"{option} {text}: write them as FROM:TO, say {example}, or as one number")
    return low, high


def _beside(
    paths: Sequence[Path], metric: str | None, wanted: SweepMeasure, take: Taker
) -> Comparison:
    """Several runs. Raises UserError where none can be measured, all for one reason."""
    compared = compare(paths, metric, wanted, take)
    reasons = set(compared.problems.values())
    if all(member.problem for member in compared.members) and len(reasons) == 1:
        raise UserError(reasons.pop())
    return compared


def _write(compared: Comparison, csv: Path | None, plot: Path | None) -> None:
    if csv is not None:
        table = compared.table()
        write_new(csv, csv_bytes([table.headings, *table.rows]))
        note(f"wrote {csv}")
    if plot is not None:
        write_new(plot, compared.picture("", plot.suffix[1:].lower()))
        note(f"wrote {plot}")
