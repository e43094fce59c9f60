"""`toytrans sweep`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toytrans.cli.common import (
    Examples,
    Lengths,
    MetricOption,
    note,
    output,
    share,
    span_of,
)
from toytrans.cli.render.results import print_comparison
from toytrans.cli.trials import follow, raise_internal
from toytrans.errors import UserError

if TYPE_CHECKING:
    from toytrans.sweeps.trials import Trial


def sweep(
    path: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="YAML file that describes the runs.")
    ] = None,
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
    metric: MetricOption = "exact_match",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once, one a core at most.")
    ] = None,
    on: Annotated[
        Literal["local", "ray"], typer.Option(help="This machine, or a Ray cluster.")
    ] = "local",
    gpu_share: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Share of a GPU for a run, with --on ray. Default: 1."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder. Default: runs/sweeps/ and the config's name."),
    ] = None,
) -> None:
    """Train all combinations of values and seeds, and compare them.

    The same command goes on where it was stopped.
    """
    from toytrans.config.load import load_config

    if path is None:
        raise UserError("no config; name one, say `toytrans sweep reverse`")
    numbers = None if seeds is None else range_of(seeds)
    span = span_of(lengths)
    if gpu_share is not None and on != "ray":
        raise UserError("--gpu-share: a run on this machine has the whole GPU; add --on ray")
    from toytrans.figures import check_matplotlib
    from toytrans.sweeps.measure import of_lengths
    from toytrans.sweeps.sweep import SWEEPS, plan, write
    from toytrans.sweeps.trials import check_ray, processes_for

    if on == "ray":
        check_ray()
    planned = plan(
        out or SWEEPS / path.stem,
        lambda changes: load_config(path, changes),
        sets or (),
        numbers,
        of_lengths(span, examples),
        here=on == "local",
    )
    if on == "local" and jobs and jobs > (at_once := processes_for(planned.trials, jobs)):
        note(f"--jobs {jobs}: {at_once} at once, one a core")
    failures = follow(planned, _numbers, jobs, on, gpu_share)
    compared = write(planned, metric)
    for written in compared.files:
        note(f"written: {written}")
    try:
        check_matplotlib()
    except UserError as error:
        note(f"no picture: {error}")
    print_comparison(output(), compared)
    raise_internal(failures)
    if any(trial.path in compared.problems for trial in planned.trials):
        raise typer.Exit(1)


def _numbers(trial: "Trial") -> str:
    """The numbers of a run that has ended."""
    from toytrans.sweeps.groups import Member
    from toytrans.sweeps.measure import PARTS

    member = Member(trial.path, trial.config, trial.eval())
    if member.eval is None or member.result is None:
        return "no numbers"
    values = {part: member.value("exact_match", part) for part in PARTS if part != "all"}
    matches = (f"{PARTS[part]} {share(v)}" for part, v in values.items() if v is not None)
    what = f"{member.result.measure.decoding} exact match: {', '.join(matches)}"
    return f"{what} ({member.eval.seconds:.0f} s)"


def range_of(text: str) -> range:
    """The seeds of --seeds, both ends included. Raises UserError."""
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high or high >= 2**31:
        raise UserError(f"--seeds {text}: write them as FROM:TO, say 0:9, or as one seed")
    return range(low, high + 1)
