"""`toytrans eval`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import (
    AsJson,
    Checkpoint,
    Lengths,
    MetricOption,
    TrustCode,
    check_new,
    check_plot,
    newest,
    open_run,
    rare,
    span_of,
    write_new,
)
from toytrans.cli.results import print_comparison, print_scores
from toytrans.cli.terminal import Bar, note
from toytrans.config.sealed import fault_remark
from toytrans.errors import UserError
from toytrans.files import csv_text, json_text, to_bytes

if TYPE_CHECKING:
    from toytrans.evaluation import Scores
    from toytrans.sweeps.comparison import Comparison


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
        Literal["src", "tgt"], rare(help="Whether lengths are of sources or targets.")
    ] = "src",
    examples: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=10**7, help="Number of pairs to measure, in all."),
    ] = None,
    decode: Annotated[
        int | None,
        rare(metavar="N", min=1, max=10**7, help="Pairs of each length to decode. Default: all."),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, max=1000, help="Beam width. 1 is greedy search.")] = 1,
    metric: MetricOption = "exact_match",
    csv: Annotated[
        Path | None, rare(metavar="FILE", help="Write a row for each run, length and metric.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the metric as a .png or .svg.")
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Annotated[str, rare(help="auto | cpu | cuda | cuda:N | mps")] = "auto",
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
    if csv is not None:
        check_new(csv)
    if plot is not None:
        check_plot(plot)
    from toytrans.sweeps.comparison import Comparison, Member, compare, group
    from toytrans.sweeps.measure import Measure, Result, of_lengths, result_of
    from toytrans.training.run import RunFolder, is_run

    wanted = of_lengths(span, examples).model_copy(update={"decode": decode, "side": length_of})
    files = (pairs[0], pairs[1]) if pairs and len(pairs) == 2 else pairs[0] if pairs else None
    scores: dict[Path, Scores] = {}

    def take(path: Path, wanted: Measure) -> Result:
        run = open_run(path, checkpoint, device)
        with Bar(delay=2) as bar:
            scores[path] = run.measure(
                files or split,
                wanted.selection,
                wanted.decode,
                beam,
                lambda count, total: bar.show(bar.done + count / total, str(path)),
            )
        return result_of(run, scores[path], wanted)

    named = list({os.path.abspath(path): path for path in paths or [newest()]}.values())
    if len(named) == 1 and is_run(named[0]):
        member = Member(named[0], RunFolder.open(named[0]).config, take(named[0], wanted))
        compared = Comparison(wanted, metric, "", group([member]))
        _write(compared, csv, plot)
        _print_run(scores[named[0]], beam, as_json)
        return
    about = f"beam {beam}, " * (beam > 1) + f"checkpoint {checkpoint}, " * (checkpoint != "best")
    about += f"{'given' if files else split} pairs"
    usual = about == "test pairs"  # those that a sweep measures
    asked = None if usual and wanted == Measure(decode=None) else wanted
    compared = compare(named, metric, asked, about="" if usual else about, take=take, kept=usual)
    lost = all(member.problem for member in compared.members)
    if lost and len(reasons := set(compared.problems.values())) == 1:
        raise UserError(reasons.pop())
    _write(compared, csv, plot)
    if as_json:
        print(json_text(compared.to_dict()))
    else:
        print_comparison(compared)
    if lost:
        raise typer.Exit(1)


def _write(compared: "Comparison", csv: Path | None, plot: Path | None) -> None:
    if csv is not None:
        write_new(csv, to_bytes(csv_text(compared.table())))
        note(f"wrote {csv}")
    if plot is not None:
        write_new(plot, compared.picture("", plot.suffix[1:].lower()))
        note(f"wrote {plot}")


def _print_run(scores: "Scores", beam: int, as_json: bool) -> None:
    if as_json:
        print(json_text(scores.to_dict()))
        return
    of, search = scores.about, "greedy search" if beam == 1 else f"beam {beam}"
    title = f"{of['run']}, step {of['checkpoint']}, {search}"
    print_scores("; ".join(filter(None, (title, fault_remark(of["fault"])))), scores)
