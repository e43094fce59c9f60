"""`toytrans eval`."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toytrans.cli.common import (
    AsJson,
    Checkpoint,
    Lengths,
    Progress,
    TrustCode,
    open_run,
    output,
    span_of,
    warn_of_fault,
)
from toytrans.cli.render.results import print_scores
from toytrans.errors import UserError
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.config.schema import Config
    from toytrans.evaluation import Scores
    from toytrans.training.run import Run

Device = Annotated[str, typer.Option(help="auto | cpu | cuda | cuda:N | mps")]


def evaluate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run directories. Default: the newest run."),
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
    checkpoint: Checkpoint = "best",
    trust_code: TrustCode = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure runs: exact match with its interval, per length, below, in range and beyond.

    Each run is measured once. Runs of one config with different seeds are also averaged.
    """
    span = span_of(lengths)
    files: Path | tuple[Path, Path] | None = None
    if pairs and len(pairs) > 2:
        raise UserError(f"{len(pairs)} times --pairs: give a file of pairs, or sources and targets")
    if pairs:
        files = (pairs[0], pairs[1]) if len(pairs) == 2 else pairs[0]

    from toytrans.data.selection import Selection
    from toytrans.training.measured import measure

    once = {os.path.abspath(path): path for path in paths or ()}
    runs = [_load(path, checkpoint, device) for path in once.values() or [None]]
    wanted = Selection(span, examples, length_of)
    groups: dict[Config, list[Scores]] = {}  # runs of a group differ in seeds and device at most
    measured = []
    for loaded in runs:
        with _watched(loaded.path) as follow:
            scores = measure(loaded, files or split, wanted, decode, beam, follow)
        measured.append(scores)
        groups.setdefault(loaded.config.without_seeds(), []).append(scores)
    if as_json:
        print(json_text(_to_dict(measured, list(groups.values()))))
        return
    search = "greedy search" if beam == 1 else f"beam {beam}"
    for group in groups.values():
        print_scores(output(), group, search)


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


def _to_dict(measured: "list[Scores]", groups: "list[list[Scores]]") -> dict[str, Any]:
    """One run as plain values; several runs, and the averages of each group.

    over_runs: the averages of all runs, null if there are several groups.
    """
    from toytrans.evaluation import average_runs

    runs = [scores.to_dict() for scores in measured]
    if len(runs) == 1:
        return runs[0]
    averages = [
        {"paths": [scores.about["run"] for scores in group]}
        | average_runs([scores.to_dict() for scores in group])
        for group in groups
    ]
    return {
        "runs": runs,
        "over_runs": average_runs(runs) if len(groups) == 1 else None,
        "groups": averages,
    }


def _load(path: Path | None, checkpoint: str, device: str) -> "Run":
    """The run of a path, or the newest one. Raises UserError."""
    from toytrans.training.devices import tune_process

    tune_process()
    run = open_run(path, checkpoint, device)
    warn_of_fault(run.config.fault)
    return run
