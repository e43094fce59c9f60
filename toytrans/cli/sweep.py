"""`toytrans sweep`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import (
    ConfigOption,
    Examples,
    Lengths,
    either,
    note,
    output,
    share,
    span_of,
)
from toytrans.cli.render.groups import measured, print_groups
from toytrans.cli.trials import follow
from toytrans.errors import UserError

if TYPE_CHECKING:
    from toytrans.sweeps.failures import Failure
    from toytrans.sweeps.sweep import Sweep
    from toytrans.sweeps.trial import Trial


def sweep(
    path: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="YAML file that describes the runs.")
    ] = None,
    config: ConfigOption = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="FROM:TO", help="Seeds: 0:2 is 0, 1 and 2. Default: one."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE,VALUE", help="Values of a config key; may be repeated."
        ),
    ] = None,
    lengths: Lengths = None,
    examples: Examples = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=10**4, help="Runs at once, one a core at most.")
    ] = None,
    on: Annotated[
        Literal["local", "ray"], typer.Option(help="This machine, or a Ray cluster.")
    ] = "local",
    gpu_share: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Share of a GPU for a run, with --on ray. Default: 1."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the sweep. Default: that of the config.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder. Default: runs/sweeps/NAME.")
    ] = None,
) -> None:
    """Train every combination of values with every seed, and compare them.

    The same command goes on where it was stopped.
    """
    from toytrans.config.load import load_config

    file = either(path, config, "config")
    if file is None:
        raise UserError("no config; name one, say `toytrans sweep reverse`")
    numbers = None if seeds is None else range_of(seeds)
    span = span_of(lengths)
    if gpu_share is not None and on != "ray":
        raise UserError("--gpu-share: a run on this machine has the whole GPU; add --on ray")
    from toytrans.sweeps.measure import ExactMatch
    from toytrans.sweeps.on_ray import check_ray
    from toytrans.sweeps.outcomes import SWEEPS
    from toytrans.sweeps.results import check_results
    from toytrans.sweeps.sweep import plan

    if on == "ray":
        check_ray()
    title = _name(name or (out.name if out else file.stem))
    planned = plan(
        title,
        out or SWEEPS / title,
        lambda changes: load_config(file, changes),
        sets or (),
        numbers,
        ExactMatch(span, examples),
        here=on == "local",
    )
    check_results(title, planned.folder)
    run(planned, jobs, on, gpu_share)


def run(sweep: "Sweep", jobs: int | None, on: str, gpu_share: float | None) -> None:
    """Run what is missing, write the results and print them. Exits with 1 if a run failed."""
    from toytrans.sweeps.groups import group
    from toytrans.sweeps.on_ray import run_on_ray
    from toytrans.sweeps.picture import check_matplotlib
    from toytrans.sweeps.processes import run_trials, workers_for
    from toytrans.sweeps.results import write_results

    failures: dict[Path, Failure] = {}

    def ended(trial: "Trial", failure: "Failure | None") -> str:
        if failure is not None:
            failures[trial.path] = failure
        return _line(sweep, trial, failure)

    with sweep.held() as notes:
        for sentence in notes:
            note(sentence)
        waiting = sweep.waiting()
        if on == "ray":
            rounds = run_on_ray(waiting, jobs, gpu_share)
        else:
            at_once = workers_for(waiting, jobs)
            if jobs and jobs > at_once:
                note(f"--jobs {jobs}: {at_once} at once, one a core")
            rounds = run_trials(waiting, at_once)
        follow(len(sweep.trials), waiting, rounds, ended)
        groups = group(sweep.members(failures))
        for path in write_results(sweep, groups):
            note(f"results: {path}")
    try:
        check_matplotlib()
    except UserError as error:
        note(f"no picture: {error}")
    print_groups(output(), groups, measured(sweep.measure, groups))
    for failure in failures.values():
        if failure.traceback:
            raise failure.error()
    if any(member.trouble for each in groups for member in each.members):
        raise typer.Exit(1)


def _line(sweep: "Sweep", trial: "Trial", failure: "Failure | None") -> str:
    """The line of a run that has ended."""
    if failure is not None:
        return f"{sweep.title(trial)}: failed: {failure.reason}"
    from toytrans.sweeps.groups import PARTS
    from toytrans.sweeps.outcomes import TEST

    result = trial.result() or {"measures": {TEST: {}}}
    taken = result["measures"][TEST]
    parts = {PARTS[part]: taken[part] for part in PARTS if taken.get(part) is not None}
    if len(parts) > 2:
        del parts[PARTS["value"]]
    matches = ", ".join(f"{name} {share(value)}" for name, value in parts.items())
    match = f"{sweep.measure.decoding} exact match: {matches}"
    return f"{sweep.title(trial)}: {match} ({result.get('train_s', 0):.0f} s)"


def range_of(text: str) -> range:
    """The seeds of --seeds, both ends included. Raises UserError."""
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high or high >= 2**31:
        raise UserError(f"--seeds {text}: write them as FROM:TO, say 0:9, or as one seed")
    return range(low, high + 1)


def _name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.\-]{0,100}", name):
        raise UserError(
            f"--name {name}: give a name of letters, digits, dots, dashes and underscores"
        )
    if name.endswith("-lengths"):
        raise UserError(f"--name {name}: results of lengths are called so; give another name")
    return name
