"""`toytrans eval`: one run measured, or several compared."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from toytrans.cli.common import (
    AsJson,
    Beam,
    Checkpoint,
    Device,
    Labelled,
    RunsArgument,
    TrustCode,
    parts_of,
    print_parts,
    print_summaries,
    rare,
)
from toytrans.cli.new_files import check_new, check_plot, write_new
from toytrans.cli.opening import newest, open_run
from toytrans.cli.terminal import Bar, note, output, plain, print_table
from toytrans.config.faults import fault_remark
from toytrans.data.pairs import Split
from toytrans.documents import csv_bytes
from toytrans.errors import UserError
from toytrans.files import json_text
from toytrans.outputs import Outputs
from toytrans.score_tables import group_lengths
from toytrans.scores import Scores
from toytrans.sweeps.comparison import Comparison, compare, of_one
from toytrans.sweeps.measure import Measure, Metric, Result, of_lengths, result_of
from toytrans.training.folder import is_run
from toytrans.training.run import Run

Take = Callable[[Path, Measure], Result]

SplitOption = Annotated[
    Literal["valid", "test"], typer.Option(help="Which data of the run to measure.")
]
Pairs = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="A file of pairs, tsv or jsonl, instead of a split. Twice: a file of sources, "
        "then one of targets, one a line.",
    ),
]
Lengths = Annotated[
    str | None, typer.Option(metavar="FROM:TO", help="Lengths to measure, say 1:400.")
]
LengthOf = Annotated[Literal["src", "tgt"], rare(help="Whether lengths are of sources or targets.")]
Examples = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=10**7, help="Number of pairs to measure, in all."),
]
Decode = Annotated[
    int | None,
    rare(metavar="N", min=1, max=10**7, help="Pairs of each length to decode. Default: all."),
]
MetricOption = Annotated[
    Metric,
    typer.Option(
        "--metric", metavar="METRIC", help=f"What is compared: {', '.join(get_args(Metric))}."
    ),
]
Csv = Annotated[
    Path | None, rare(metavar="FILE", help="Write a row for each run, length and metric.")
]
Save = Annotated[
    Path | None,
    rare(
        metavar="FILE.jsonl",
        help="Write source, target, output, right and score of each pair that is decoded.",
    ),
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the metric as a .png or .svg.")
]


def evaluate(
    paths: RunsArgument = None,
    split: SplitOption = "test",
    pairs: Pairs = None,
    lengths: Lengths = None,
    length_of: LengthOf = "src",
    examples: Examples = None,
    decode: Decode = None,
    beam: Beam = 1,
    metric: MetricOption = "exact_match",
    csv: Csv = None,
    save: Save = None,
    plot: Plot = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Measure a run, or compare several.

    Shown are exact match below, in and beyond the training lengths. One run: per
    length, with errors. Several runs, grouped by config: means over seeds with
    intervals, and differences over equal seeds. Runs that are unfinished or
    cannot be read are named, and never averaged in.
    """
    span = span_of("--lengths", lengths, "1:400")
    if pairs and len(pairs) > 2:
        raise UserError(f"{len(pairs)} times --pairs: give a file of pairs, or sources and targets")
    check_new(csv)
    check_new(save)
    check_plot(plot)
    wanted = of_lengths(span, examples).model_copy(update={"decode": decode, "side": length_of})
    files = None if not pairs else (pairs[0], pairs[1]) if pairs[1:] else pairs[0]
    scores: dict[Path, Scores] = {}
    outputs: Outputs | None = None

    def take(path: Path, wanted: Measure) -> Result:
        nonlocal outputs
        run = open_run(path, trust_code, checkpoint, device)
        if save:
            outputs = Outputs(run.model, run.vocabulary)
        scores[path] = _measured(run, files or split, wanted, beam, outputs)
        return result_of(run, scores[path], wanted)

    named = list({os.path.abspath(path): path for path in paths or [newest()]}.values())
    alone = len(named) == 1 and is_run(named[0])
    if save and not alone:
        raise UserError("--save writes the outputs of one run; name one")
    if alone:
        compared = of_one(Run.open(named[0]), take(named[0], wanted), metric)
    else:
        how = f"beam {beam}, " * (beam > 1) + f"checkpoint {checkpoint}, " * (checkpoint != "best")
        about = f"{how}{'given' if files else split} pairs"
        compared = _beside(named, metric, wanted, take, about)
    _write(compared, csv, plot)
    if save and outputs:
        write_new(save, outputs.as_jsonl())
        note(f"wrote {save}: {len(outputs.lines):,} pairs")
    if as_json:
        print(json_text((scores[named[0]] if alone else compared).to_dict()))
    elif alone:
        _print_run(scores[named[0]], beam)
    else:
        print_comparison(compared)
    if all(member.problem for member in compared.members):
        raise typer.Exit(1)


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


def _measured(
    run: Run,
    pairs_of: Split | Path | tuple[Path, Path],
    wanted: Measure,
    beam: int,
    outputs: Outputs | None,
) -> Scores:
    """The scores of a run, below a bar."""
    with Bar(delay=2) as bar:

        def follow(done: int, total: int) -> None:
            bar.show(done / total, str(run.path))

        return run.measure(pairs_of, wanted.selection, wanted.decode, beam, follow, outputs)


def _beside(
    paths: Sequence[Path], metric: Metric, wanted: Measure, take: Take, about: str
) -> Comparison:
    """Several runs; numbers that a sweep has measured are taken where they are what is asked for.
    Raises UserError where none can be measured, all for one reason."""
    usual = about == "test pairs"  # those that a sweep measures
    asked = None if usual and wanted == Measure(decode=None) else wanted
    compared = compare(paths, metric, asked, about="" if usual else about, take=take)
    reasons = set(compared.problems.values())
    if all(member.problem for member in compared.members) and len(reasons) == 1:
        raise UserError(reasons.pop())
    return compared


def _write(compared: Comparison, csv: Path | None, plot: Path | None) -> None:
    if csv is not None:
        write_new(csv, csv_bytes(compared.table()))
        note(f"wrote {csv}")
    if plot is not None:
        write_new(plot, compared.picture("", plot.suffix[1:].lower()))
        note(f"wrote {plot}")


def _print_run(scores: Scores, beam: int) -> None:
    of, search = scores.about, "greedy search" if beam == 1 else f"beam {beam}"
    title = f"{of['run']}, step {of['checkpoint']}, {search}"
    print_scores("; ".join(filter(None, (title, fault_remark(of["fault"])))), scores)


# Tables ---------------------------------------------------------------------------------------

BOTH_WAYS = (
    *("decoded", "exact", "interval", "forced", "difference"),
    *("free tokens", "forced tokens", "token difference"),
)
ERRORS = ("decoded", "wrong", "median", "earliest", "early", "late", "never")


def print_scores(title: str, scores: Scores) -> None:
    """One run: its parts, then each length both ways, then errors."""
    split = scores.about["split"]
    parts = parts_of(split, scores)
    print_parts(title, parts if len(parts) == 1 else [*parts, (f"{split}, all", scores.summary())])
    rows: list[Labelled | None] = []
    before = ""
    for low, high, part in group_lengths(scores.lengths, scores.train_length):
        rows += [None] * (before not in ("", part))
        rows.append((f"{low}-{high}" if low < high else str(low), scores.summary(low, high)))
        before = part
    rows += [None, *scores.labelled()]
    side = "source" if scores.side == "src" else "target"
    caption = "diff.: free-running less teacher-forced, over the pairs that were decoded"
    title = f"per {side} length: free-running, and the same teacher-forced"
    print_summaries(title, "length", BOTH_WAYS, rows, caption=caption)
    if wrong := [row for row in rows if row and row[1]["wrong"]]:
        title = f"errors per {side} length; the first token is at place 1"
        print_summaries(title, "length", ERRORS, wrong)
    else:
        output().print("errors: none, no output is wrong\n")


def print_comparison(compared: Comparison) -> None:
    """The tables of several runs, and the lines about them."""
    for shown in compared.tables():
        # on a line of its own: a title of a narrow table would be folded
        output().print(plain(shown.title), style="bold" if shown.rows else "", soft_wrap=True)
        if shown.rows:
            print_table(shown.names, shown.numbers, shown.rows, shown.last, pad_edge=True)
