"""`toytrans board`."""

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.options import AsJson
from toytrans.cli.sweep import follow, raise_internal
from toytrans.cli.terminal import note, output, print_table
from toytrans.errors import UserError
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.sweeps.board import Board
    from toytrans.sweeps.sweep import Sweep


def board(
    name: Annotated[str | None, typer.Argument(help="A board. Default: list all boards.")] = None,
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="TASK", help="Tasks of the board. Default: all.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few steps, few pairs.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the data files of the board.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train published tasks, and compare with their numbers."""
    from toytrans.sweeps.board import (
        board_names,
        lines_of,
        load_board,
        of_tasks,
        plan_board,
        write_board,
    )

    if name is None:
        boards = {name: load_board(name) for name in board_names()}
        if as_json:
            print(json_text({name: list(each.tasks) for name, each in boards.items()}))
        else:
            rows = [(name, ", ".join(each.tasks), each.source) for name, each in boards.items()]
            print_table(("board", "tasks", "from"), (), rows, box=None)
        return
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


def _print(board: "Board", sweep: "Sweep", quick: bool) -> None:
    from toytrans.sweeps.board import lines_of
    from toytrans.sweeps.measure import number

    def say(text: str, style: str = "") -> None:
        output().print(text, style=style, markup=False)

    say(f"{board.title} ({board.source})", "bold")
    for sentence in (f"Our positions know: {board.knows}", *board.notes):
        say(sentence)
    if quick:
        say(
            "Quick: one seed, few steps, few pairs. It shows that the board runs; the published "
            "numbers are of whole trainings.",
            "bold",
        )
    there = {trial.about["task"] for trial in sweep.trials}
    for task, name, measure in board.measures():
        if task not in there:
            continue
        where = f", lengths {measure.lengths[0]} to {measure.lengths[1]}" if measure.lengths else ""
        aim = f" (aim {measure.aim})" if measure.aim is not None else ""
        say(f"\n{task}{where}: {measure.label(measure.metric)}{aim}", "bold")
        rows = []
        for line in lines_of(board, sweep, task, name):
            seeds = [number(value, measure.metric) for value in line.values]
            counts = [f"{count:,}" if count else "" for count in (line.steps, line.pairs)]
            mean = number(fmean(line.values), measure.metric)
            rows.append((line.who, mean, *counts, " ".join(seeds) if len(seeds) > 1 else ""))
        print_table(("",), ("mean", "steps", "pairs"), rows, "seeds", box=None)
    seconds = [found.seconds for trial in sweep.trials if (found := trial.eval())]
    if seconds:
        span = f"{min(seconds):.0f} to {max(seconds):.0f} s"
        say(f"\none training on one core: {span}; {len(seconds)} runs")
