"""`toytrans board`."""

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import AsJson, columns, note, output
from toytrans.cli.trials import follow, raise_internal
from toytrans.errors import UserError
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.sweeps.board import Board
    from toytrans.sweeps.sweep import Sweep


def board(
    name: Annotated[str | None, typer.Argument(help="A board. Default: list all boards.")] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK", help="Tasks of the board. Default: all."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few steps, few pairs.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the data files of the board.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train published tasks, and compare with their numbers."""
    from toytrans.sweeps.board import lines_of, load_board, of_tasks, plan_board, write_board

    if name is None:
        return _list(as_json)
    chosen = load_board(name)
    whole = plan_board(name, quick=quick, files=data)
    asked = of_tasks(whole, name, tasks) if tasks else whole
    failures = follow(asked, lambda trial: "measured")
    for path in write_board(chosen, whole):
        note(f"written: {path}")
    if as_json:
        numbers: dict[str, dict[str, object]] = {}
        for task, key, _ in chosen.measures():
            lines = lines_of(chosen, whole, task, key)
            numbers.setdefault(task, {})[key] = [line._asdict() for line in lines]
        print(json_text({"board": name, "title": chosen.title, "tasks": numbers}))
    else:
        _print(chosen, asked, quick)
    raise_internal(failures)
    for failure in failures.values():
        raise UserError(failure.reason)


def _list(as_json: bool) -> None:
    """The boards and their tasks."""
    from toytrans.sweeps.board import board_names, load_board

    boards = {name: load_board(name) for name in board_names()}
    if as_json:
        print(json_text({name: list(board.tasks) for name, board in boards.items()}))
        return
    table = columns(("board", "tasks", "from"), box=None, pad_edge=False)
    for name, chosen in boards.items():
        table.add_row(name, ", ".join(chosen.tasks), chosen.source)
    output().print(table)


def _print(board: "Board", sweep: "Sweep", quick: bool) -> None:
    from toytrans.sweeps.board import lines_of
    from toytrans.sweeps.measure import number

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
    there = {trial.about["task"] for trial in sweep.trials}
    for task, name, measure in board.measures():
        if task not in there:
            continue
        where = f", lengths {measure.lengths[0]} to {measure.lengths[1]}" if measure.lengths else ""
        aim = f" (aim {measure.aim})" if measure.aim is not None else ""
        console.print(
            f"\n{task}{where}: {measure.label(measure.metric)}{aim}", style="bold", markup=False
        )
        table = columns(("",), ("mean", "steps", "pairs"), box=None, pad_edge=False)
        table.add_column("seeds", overflow="fold")
        for line in lines_of(board, sweep, task, name):
            seeds = " ".join(number(value, measure.metric) for value in line.values)
            counts = (f"{count:,}" if count else "" for count in (line.steps, line.pairs))
            mean = number(fmean(line.values), measure.metric)
            table.add_row(line.who, mean, *counts, seeds if len(line.values) > 1 else "")
        console.print(table)
    seconds = [found.seconds for trial in sweep.trials if (found := trial.eval())]
    if seconds:
        span = f"{min(seconds):.0f} to {max(seconds):.0f} s"
        console.print(f"\none training on one core: {span}; {len(seconds)} runs", markup=False)
