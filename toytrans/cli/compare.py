"""`toytrans compare`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from toytrans.cli.common import (
    AsJson,
    Examples,
    Lengths,
    TrustCode,
    check_new,
    output,
    span_of,
    write_new,
)
from toytrans.cli.evaluate import Device
from toytrans.cli.render.groups import print_comparison
from toytrans.cli.sweep import MetricOption
from toytrans.files import json_text, to_bytes


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Run directories, folders of runs, names of sweeps."),
    ],
    lengths: Lengths = None,
    examples: Examples = None,
    metric: MetricOption = "exact_match",
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A row for each run, length and metric."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it as a .png or .svg.")
    ] = None,
    trust_code: TrustCode = False,
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

    from toytrans.sweeps.comparison import Comparison, find_runs, measure_here
    from toytrans.sweeps.groups import group
    from toytrans.sweeps.measure import of_lengths
    from toytrans.sweeps.picture import draw
    from toytrans.training.devices import tune_process

    tune_process()
    found = find_runs(runs)
    measure = of_lengths(span, examples) if span or examples else found.measure
    measure = measure.model_copy(update={"metric": metric})
    hidden = not sys.stderr.isatty()
    with tqdm(found.runs.items(), unit="run", delay=2, leave=False, disable=hidden) as watched:
        members = [measure_here(path, config, measure, device) for path, config in watched]
    compared = Comparison("", measure, group(members), found.unread)
    if csv is not None:
        write_new("--csv", csv, to_bytes(compared.table().csv()))
    if plot is not None:
        write_new("--plot", plot, draw(compared, "", plot.suffix[1:].lower()))
    if as_json:
        print(json_text(compared.to_dict()))
    else:
        print_comparison(output(), compared)
    if all(member.problem for member in members):
        raise typer.Exit(1)
