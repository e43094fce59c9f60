"""`toytrans sweep` and `toytrans board`: many runs, followed until they end, and compared."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from toytrans.cli.common import AsJson, ConfigArgument, ConfigOption, one_config
from toytrans.cli.evaluate import Lengths, MetricOption, span_of
from toytrans.cli.terminal import Bar, note, output, print_table, show
from toytrans.config.load import load_config
from toytrans.errors import UserError
from toytrans.figures import check_matplotlib
from toytrans.files import json_text
from toytrans.measurement import Measure, check_longest
from toytrans.metrics import METRICS
from toytrans.scores import PARTS
from toytrans.sweeps.board import Board, board_names, load_board, measured, plan_board, write_board
from toytrans.sweeps.comparison import Comparison
from toytrans.sweeps.sweep import SWEEPS, Sweep, plan, write
from toytrans.sweeps.trial import Failure, Trial
from toytrans.training.run import Run
from toytrans.training.signals import collect_signals, exit_if_signalled


def sweep(
    argument: ConfigArgument = None,
    option: ConfigOption = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Seeds: 0:2 is 0, 1 and 2. Default: one.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE,VALUE", help="Values of a key; repeatable."),
    ] = None,
    lengths: Lengths = None,
    examples: Annotated[
        int | None, typer.Option(min=1, max=10**7, help="Number of test pairs of a run, in all.")
    ] = None,
    metric: MetricOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once, one a core at most.")
    ] = None,
    on: Annotated[
        Literal["local", "ray"], typer.Option(help="This machine, or a Ray cluster.")
    ] = "local",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder. Default: runs/sweeps/ and the config's name."),
    ] = None,
) -> None:
    """Train all combinations of values and seeds, and compare them.

    The same command goes on where it was stopped.
    """
    path = one_config(argument, option)
    if path is None:
        raise UserError("no config; name one, say `toytrans sweep reverse`")
    ends = span_of("--seeds", seeds, "0:9")
    span = span_of("--lengths", lengths, "1:400")
    check_longest(span)
    planned = plan(
        out or SWEEPS / path.stem,
        lambda changes: load_config(path, changes),
        sets or (),
        range(ends[0], ends[1] + 1) if ends else None,
        Measure(lengths=span, examples=examples) if span or examples else None,
        on=on,
    )
    failures = _follow(planned, partial(_numbers, metric), jobs, on)
    compared = write(planned, metric)
    for file in compared.files:
        note(f"written: {file}")
    try:
        check_matplotlib()
    except UserError as error:
        note(f"no picture: {error}")
    for table in compared.tables():
        show(table)
    _raise_internal(failures)
    if failures or any(trial.path in compared.problems for trial in planned.trials):
        raise typer.Exit(1)


def _numbers(metric: str | None, trial: Trial) -> str:
    """The numbers of a run that has ended."""
    (measure,) = trial.measures
    result = Run.open(trial.path).kept_result(measure)
    assert result is not None, "it was just measured"
    name = metric or measure.main_metric
    shown = METRICS[name]
    parts = [(label, result.number(name, part)) for part, label in PARTS.items()]
    known = [f"{label} {shown.written(value)}" for label, value in parts if value is not None]
    text = ", ".join(known) or shown.written(result.number(name))
    return f"{shown.label}: {text} ({result.seconds:.0f} s)"


def board(
    name: Annotated[
        str | None, typer.Argument(metavar="BOARD", help="Default: list all boards.")
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="TASK", help="Tasks of the board. Default: all.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the data files of the board.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train published tasks, and compare with their numbers."""
    if name is None:
        boards = {name: load_board(name) for name in board_names()}
        if as_json:
            print(json_text({name: list(each.tasks) for name, each in boards.items()}))
        else:
            rows = [(name, ", ".join(each.tasks), each.source) for name, each in boards.items()]
            print_table(("board", "tasks", "from"), (), rows, box=None)
        return
    chosen, whole = load_board(name), plan_board(name, data)
    failures = _follow(plan_board(name, data, tasks or ()), lambda trial: "measured")
    for path in write_board(chosen, whole):
        note(f"written: {path}")
    found = [each for each in measured(chosen, whole) if not tasks or each[0] in tasks]
    if as_json:
        numbers: dict[str, dict[str, object]] = {}
        for task, key, compared in found:
            numbers.setdefault(task, {})[key] = compared.to_dict()
        print(json_text({"board": name, "title": chosen.title, "tasks": numbers}))
    else:
        _print_board(chosen, found)
    _raise_internal(failures)
    if failures:
        raise typer.Exit(1)


def _print_board(board: Board, found: list[tuple[str, str, Comparison]]) -> None:
    def say(text: str, style: str = "") -> None:
        output().print(text, style=style, markup=False)

    say(f"{board.title} ({board.source})", "bold")
    for sentence in (f"Our positions know: {board.knows}", *board.notes):
        say(sentence)
    for task, key, compared in found:
        table, measure = compared.part("all"), board.measures[task][key]
        aim = f" (aim {measure.aim})" if measure.aim is not None else ""
        say("")
        show(replace(table, title=f"{task}: {table.title}{aim}"), box=None)
        form = METRICS[compared.metric].written
        numbers = (f"{who} {form(value)}" for who, value in measure.published.items())
        if measure.published:
            say(f"published: {', '.join(numbers)}")


def _follow(
    sweep: Sweep,
    describe: Callable[[Trial], str],
    jobs: int | None = None,
    on: Literal["local", "ray"] = "local",
) -> dict[Path, Failure]:
    """Train what is missing of a sweep: one bar, and a line for each run that ends. Returns why
    runs failed, by their paths.

    The first signal lets all trainings save and end. A second one ends this process at once; the
    trainings then save by themselves.
    """
    note(sweep.beginning())
    running = {trial.path: trial for trial in sweep.waiting()}
    failures: dict[Path, Failure] = {}
    total = len(sweep.trials)

    def done() -> float:
        started = sum(trial.share_done() for trial in running.values())
        return (total - len(running) + started) / total

    rounds = sweep.train(jobs, on)
    with collect_signals() as received:
        with contextlib.closing(rounds), Bar(done(), quiet=True) as bar:
            for ended in rounds:
                for trial, failure in ended:
                    del running[trial.path]
                    if failure is not None:
                        failures[trial.path] = failure
                    what = f"failed: {failure.reason}" if failure else describe(trial)
                    bar.write(f"{total - len(running)}/{total} {trial.title}: {what}")
                bar.show(done(), f"{total - len(running)}/{total} runs")
                if received:
                    break
        if received:
            note("stopped and saved; the same command goes on")
            exit_if_signalled(received)
    return failures


def _raise_internal(failures: dict[Path, Failure]) -> None:
    """Raise the first internal error of a run, once everything else is shown."""
    for failure in failures.values():
        if failure.traceback:
            raise RuntimeError(f"{failure.reason}\n{failure.traceback}")
