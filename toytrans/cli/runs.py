"""`toytrans runs`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from toytrans.cli.common import AsJson
from toytrans.cli.terminal import Progress, note, print_table
from toytrans.config.names import fault_remark
from toytrans.errors import UserError
from toytrans.files import json_text
from toytrans.rounding import share

UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder to look in, and below.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs: state, best exact match, age, size."""
    if not os.path.isdir(folder):
        problem = "this is a file" if os.path.exists(folder) else "no such folder"
        raise UserError(f"{folder}: {problem}; name a folder of runs, as `toytrans train` makes it")
    from toytrans.training.run import list_runs

    listed = list_runs(folder, Progress())
    if as_json:
        described = [
            {"run": str(path)} | asdict(state) | {"age_s": round(age), "bytes": size}
            for path, state, age, size in listed
        ]
        print(json_text({"folder": str(folder), "runs": described}))
        return
    if not listed:
        note(f"{folder}: no runs here")
        return
    rows = []
    for path, state, age, size in listed:
        problem = state.problem.removeprefix(f"{path}: ").removeprefix(f"{path}/")
        more = f"; {fault_remark(state.fault)}" if state.fault else f": {problem}" * bool(problem)
        best = "-" if state.exact_match is None else share(state.exact_match)
        rows.append((str(path), f"{state}{more}", best, _age(age), f"{size / 1e6:,.1f} MB"))
    caption = "exact match: the best on validation pairs, free-running"
    numbers = ("exact match", "age", "size")
    print_table(("run", "state"), numbers, rows, box=None, caption=caption)


def _age(seconds: float) -> str:
    """A duration in its largest unit: 3 d."""
    unit = next((unit for unit, length in UNITS.items() if seconds >= length), "s")
    return f"{int(seconds / UNITS[unit])} {unit}"
