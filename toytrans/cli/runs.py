"""`toytrans runs`: which runs there are."""

import os
from dataclasses import asdict
from pathlib import Path

from toytrans.cli.terminal import Progress, note, show
from toytrans.config.faults import fault_remark
from toytrans.errors import UserError, share
from toytrans.files import json_text
from toytrans.table import Table, TextColumn
from toytrans.training.listing import list_runs

UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
"""Seconds of the units in which ages are shown."""


def runs(
    folder: Path,
    as_json: bool,
) -> None:
    """List runs: state, best exact match, age, size."""
    if not os.path.isdir(folder):
        problem = "this is a file" if os.path.exists(folder) else "no such folder"
        raise UserError(f"{folder}: {problem}; name a folder of runs, as `toytrans train` makes it")
    listed = list_runs(folder, Progress())
    if as_json:
        described = [
            {"run": str(run.path)}
            | asdict(run.state)
            | {"age_s": round(run.age_s), "bytes": run.size}
            for run in listed
        ]
        print(json_text({"folder": str(folder), "runs": described}))
        return
    if not listed:
        note(f"{folder}: no runs here")
        return
    rows = []
    for run in listed:
        state = run.state
        problem = state.problem.removeprefix(f"{run.path}: ").removeprefix(f"{run.path}/")
        more = f"; {fault_remark(state.fault)}" if state.fault else f": {problem}" * bool(problem)
        best = "-" if state.exact_match is None else share(state.exact_match)
        unit = next((unit for unit, length in UNITS.items() if run.age_s >= length), "s")
        since = f"{int(run.age_s / UNITS[unit])} {unit}"
        rows.append((str(run.path), f"{state}{more}", best, since, f"{run.size / 1e6:,.1f} MB"))
    caption = "exact match: the best on validation pairs, free-running"
    columns = TextColumn("run"), TextColumn("state"), "exact match", "age", "size"
    show(Table("", columns, rows, [caption]), box=None)
