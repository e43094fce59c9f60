"""`toytrans board`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import AsJson, columns, note, output, share
from toytrans.cli.trials import follow
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.boards.definition import Board
    from toytrans.boards.jobs import Job
    from toytrans.boards.results import Block


def board(
    name: Annotated[str | None, typer.Argument(help="A board. Default: list all boards.")] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK", help="Tasks of the board. Default: all."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, few steps, no results file.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the data files of the board.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train published tasks over five seeds, and compare with the published numbers."""
    from toytrans.boards.definition import load_board, only

    if name is None:
        return _list(as_json)
    whole = load_board(name)
    chosen = only(whole, name, tasks) if tasks else whole
    from toytrans.boards import jobs, results

    todo = jobs.jobs_of(name, chosen, quick=quick, files=data)
    if not quick:
        results.tasks_kept(name)  # refused before the training, not after it
    waiting = [job for job in todo if job.result() is None]
    follow(len(todo), waiting, jobs.run_jobs(waiting), lambda job, _: job.label)
    about = results.to_dict(name, chosen, todo)
    if not quick:
        note(f"results: {results.write_results(name, whole, about)}")
    if as_json:
        print(json_text(about))
    else:
        _print(chosen, results.blocks(chosen, todo), todo, quick)


def _list(as_json: bool) -> None:
    """The boards and their tasks."""
    from toytrans.boards.definition import board_names, load_board

    boards = {name: load_board(name) for name in board_names()}
    if as_json:
        print(json_text({name: list(board.tasks) for name, board in boards.items()}))
        return
    table = columns(("board", "tasks", "from"), box=None, pad_edge=False)
    for name, chosen in boards.items():
        table.add_row(name, ", ".join(chosen.tasks), chosen.source)
    output().print(table)


def _print(board: "Board", blocks: "Sequence[Block]", jobs: "Sequence[Job]", quick: bool) -> None:
    console = output()
    console.print(f"{board.title} ({board.source})", style="bold", markup=False)
    for sentence in (f"Our positions know: {board.knows}", *board.notes):
        console.print(sentence, markup=False)
    if quick:
        console.print(
            "Quick: one seed, few steps, few pairs. It shows that the board runs; the published "
            "numbers are of whole trainings.",
            style="bold",
        )
    for block in blocks:
        measure = block.measure
        where = f", lengths {measure.lengths[0]} to {measure.lengths[1]}" if measure.lengths else ""
        aim = f" (aim {measure.aim})" if measure.aim is not None else ""
        metric = measure.metric.replace("_", " ")
        console.print(f"\n{block.task}{where}: {metric}{aim}", style="bold", markup=False)
        table = columns(("",), ("mean", "steps", "pairs"), box=None, pad_edge=False)
        table.add_column("seeds", overflow="fold")
        for line in block.lines:
            seeds = " ".join(_number(v, measure.metric) for v in line.values)
            several = len(line.values) > 1
            counts = (f"{count:,}" if count else "" for count in (line.steps, line.pairs))
            mean = _number(line.mean, measure.metric)
            table.add_row(line.who, mean, *counts, seeds if several else "")
        console.print(table)
    _print_seconds(jobs)


def _number(value: float, metric: str) -> str:
    return f"{value:.4f}" if metric == "perplexity" else share(value)


def _print_seconds(jobs: "Sequence[Job]") -> None:
    """How long one training took, on one core."""
    results = [result for job in jobs if (result := job.result())]
    seconds = [result["train_s"] for result in results if "train_s" in result]
    if seconds:
        span = f"{min(seconds):.0f} to {max(seconds):.0f} s"
        output().print(f"\none training on one core: {span}; {len(results)} runs", markup=False)
