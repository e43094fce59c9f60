"""`toytrans compare`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from toytrans.cli.common import AsJson, Examples, Lengths, check_new, output, span_of, write_new
from toytrans.cli.evaluate import Device
from toytrans.cli.render.groups import measured, print_groups, print_unread
from toytrans.files import json_text, to_bytes


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Run directories, folders of runs, names of sweeps."),
    ],
    lengths: Lengths = None,
    examples: Examples = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A row for each run, or for each run and length."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it as a .png or .svg.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare runs, grouped by config: means over seeds, intervals, and pairs of equal seeds.

    Runs that are unfinished or cannot be read are named, and never averaged in.
    """
    span = span_of(lengths)
    if csv is not None:
        check_new("--csv", csv)
    if plot is not None:
        from toytrans.cli.render.heat_maps import check_plot

        check_plot(plot)
    from tqdm import tqdm

    from toytrans.sweeps.groups import group
    from toytrans.sweeps.measure import ExactMatch
    from toytrans.sweeps.outcomes import find_runs, measure_here
    from toytrans.sweeps.picture import draw
    from toytrans.sweeps.results import lengths_csv, runs_csv, to_dict
    from toytrans.training.devices import tune_process

    tune_process()
    selected = find_runs(runs)
    measure = ExactMatch(span, examples) if span or examples else selected.measure
    hidden = not sys.stderr.isatty()
    with tqdm(selected.runs, unit="run", delay=2, leave=False, disable=hidden) as watched:
        members = [measure_here(path, config, measure, device) for path, config in watched]
    groups = group(members)
    if csv is not None:
        text = lengths_csv(groups) if measure.lengths else runs_csv(groups)
        write_new("--csv", csv, to_bytes(text))
    if plot is not None:
        write_new("--plot", plot, draw(groups, "", plot.suffix[1:].lower()))
    if as_json:
        unread = [{"run": str(path), "trouble": why} for path, why in selected.unread]
        print(json_text(measure.to_dict() | to_dict(groups) | {"unread": unread}))
    else:
        print_groups(output(), groups, measured(measure, groups))
        print_unread(output(), selected.unread)
    if all(member.trouble for member in members):
        raise typer.Exit(1)
