"""`toytrans sweep`: many runs, followed until they end, and compared."""

import contextlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer

from toytrans.cli.common import one_config
from toytrans.cli.evaluate import span_of
from toytrans.cli.terminal import Bar, note, output, plain, show
from toytrans.config.yaml import parse_yaml
from toytrans.data.open import open_dataset
from toytrans.errors import UserError
from toytrans.figures import check_matplotlib
from toytrans.files import json_text
from toytrans.measure import check_longest
from toytrans.metrics import METRICS
from toytrans.scores import PARTS
from toytrans.sweeps.choices import narrowed, read_grid
from toytrans.sweeps.comparison import Comparison
from toytrans.sweeps.plan import plan
from toytrans.sweeps.sweep import SWEEPS, Sweep, write
from toytrans.sweeps.sweep_file import Plan, SweepMeasure, plan_of
from toytrans.sweeps.trial import Failure, Trial
from toytrans.training.run import Run
from toytrans.training.signals import collect_signals, exit_if_signalled


def sweep(
    argument: Path | None,
    option: Path | None,
    seeds: str | None,
    sets: list[str] | None,
    lengths: str | None,
    examples: int | None,
    metric: str | None,
    jobs: int | None,
    on: Literal["local", "ray"],
    out: Path | None,
    dry_run: bool,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Train all combinations of values and seeds, and compare them."""
    path = one_config(argument, option)
    if path is None:
        raise UserError("no config; name one, say `toytrans sweep reverse`")
    asked = _asked(path, seeds, sets or (), lengths, examples, on)
    asked = replace(asked, trust_code=trust_code)
    planned = plan(out or SWEEPS / path.stem, asked)
    waiting = planned.waiting()
    if dry_run:
        more = ["--lengths", lengths] if lengths else []
        more += ["--examples", str(examples)] if examples else []
        more += ["--trust-code"] * trust_code
        commands = [command_of(path, trial, planned, more) for trial in waiting]
        for line in [json_text({"commands": commands})] if as_json else commands:
            print(line)
        return
    note(planned.beginning(waiting))
    for sentence in _notes_on_files(planned):
        note(sentence)
    failures = _follow(planned, waiting, partial(_numbers, metric), jobs, on)
    compared = write(planned, metric)
    first = next(iter(compared.values()))
    for file in first.files:
        note(f"written: {file}")
    _note_matplotlib()
    if as_json:
        print(json_text({"folder": str(planned.folder), "measures": _as_dicts(planned, compared)}))
    else:
        _print(planned, compared)
    _raise_internal(failures)
    if failures or any(trial.path in first.problems for trial in planned.trials):
        raise typer.Exit(1)


def _asked(
    path: Path,
    seeds: str | None,
    sets: Sequence[str],
    lengths: str | None,
    examples: int | None,
    on: Literal["local", "ray"],
) -> Plan:
    """What the command asks for: a config with what the options say, or what a sweep file says as
    far as no option says otherwise. Raises UserError."""
    grid, asked = read_grid(sets), plan_of(path)
    ends = span_of("--seeds", seeds, "0:9")
    span = span_of("--lengths", lengths, "1:400")
    check_longest(span)
    measures = asked.measures
    if span or examples:
        measures = {"test": SweepMeasure(lengths=span, examples=examples)}
    return replace(
        asked,
        grid=narrowed(asked.grid, grid),
        seeds=range(ends[0], ends[1] + 1) if ends else asked.seeds,
        measures=measures,
        origin="--set",
        checks_device=on == "local",
    )


def _notes_on_files(planned: Sweep) -> list[str]:
    """What a person should know of the files that the runs read, each sentence once."""
    settings = [trial.settings for trial in planned.trials if trial.settings.data.files is not None]
    distinct = {each.data.model_dump_json(): each for each in settings}
    notes = [sentence for each in distinct.values() for sentence in open_dataset(each).notes]
    return list(dict.fromkeys(notes))


def _note_matplotlib() -> None:
    try:
        check_matplotlib()
    except UserError as error:
        note(f"no picture: {error}")


# One training as a command -----------------------------------------------------------------------


def command_of(path: Path, trial: Trial, sweep: Sweep, more: Sequence[str]) -> str:
    """The command that trains and measures one run of a sweep, in its folder."""
    words = ["toytrans", "sweep", str(path)]
    for name, label in trial.labels.items():
        if name != "seed":
            words += ["--set", f"{name}={_as_option(label)}"]
    seed = trial.labels["seed"]
    words += ["--seeds", f"{seed}:{seed}", *more, "--out", str(sweep.folder)]
    return shlex.join(words)


def _as_option(value: Any) -> str:
    """A value as --set takes it."""
    if isinstance(value, str):
        with contextlib.suppress(UserError):
            if "," not in value and parse_yaml(value, "", numbered=False)[0] == value:
                return value
    return json.dumps(value)


# What is printed ---------------------------------------------------------------------------------


def _numbers(metric: str | None, sweep: Sweep, trial: Trial) -> str:
    """The numbers of a run that has ended, by the first measure that it has."""
    name, asked = next((n, m) for n, m in sweep.measures.items() if m.is_of(trial.labels))
    result = Run.open(trial.path).kept_result(asked.measure)
    if result is None:
        return "measured"
    shown_name = metric or asked.metric or asked.measure.main_metric
    shown = METRICS[shown_name]
    parts = [(label, result.number(shown_name, part)) for part, label in PARTS.items()]
    known = [f"{label} {shown.written(value)}" for label, value in parts if value is not None]
    text = ", ".join(known) or shown.written(result.number(shown_name))
    which = f"{name}: " if len(sweep.measures) > 1 else ""
    return f"{which}{shown.label}: {text} ({result.seconds:.0f} s)"


def _as_dicts(sweep: Sweep, compared: Mapping[str, Comparison]) -> dict[str, Any]:
    """Each measure with the numbers that were published."""
    return {
        name: {"aim": asked.aim, "published": asked.published} | compared[name].to_dict()
        for name, asked in sweep.measures.items()
    }


def _print(sweep: Sweep, compared: Mapping[str, Comparison]) -> None:
    """What the file says, and the tables of each measure, with the numbers that were published."""

    def say(text: str, style: str = "") -> None:
        output().print(plain(text), style=style, soft_wrap=True)

    for sentence in sweep.about:
        say(sentence)
    for name, asked in sweep.measures.items():
        if len(sweep.measures) > 1:
            print()
            say(name, "bold underline")
        for table in compared[name].tables():
            show(table)
        written = METRICS[compared[name].metric].written
        if asked.aim is not None:
            say(f"aim: {written(asked.aim)}")
        if asked.published:
            numbers = ", ".join(f"{who} {written(value)}" for who, value in asked.published.items())
            say(f"published: {numbers}")


# What goes on ------------------------------------------------------------------------------------


def _follow(
    sweep: Sweep,
    waiting: Sequence[Trial],
    describe: Any,
    jobs: int | None,
    on: Literal["local", "ray"],
) -> dict[Path, Failure]:
    """Train what is missing of a sweep: one bar, and a line for each run that ends. Returns why
    runs failed, by their paths.

    The first signal lets all trainings save and end. A second one ends this process at once; the
    trainings then save by themselves.
    """
    running = {trial.path: trial for trial in waiting}
    failures: dict[Path, Failure] = {}
    total = len(sweep.trials)

    def done() -> float:
        started = sum(trial.share_done() for trial in running.values())
        return (total - len(running) + started) / total

    rounds = sweep.train(waiting, jobs, on)
    with collect_signals() as received:
        with contextlib.closing(rounds), Bar(done(), quiet=True) as bar:
            for ended in rounds:
                for trial, failure in ended:
                    del running[trial.path]
                    if failure is not None:
                        failures[trial.path] = failure
                    what = f"failed: {failure.reason}" if failure else describe(sweep, trial)
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
