"""`toytrans runs`."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import AsJson, Progress, columns, note, output, plain, share
from toytrans.config.sealed import fault_remark
from toytrans.errors import UserError
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.training.run import RunState

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


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
    elif not listed:
        note(f"{folder}: no runs here")
    else:
        _print(listed)


def _print(listed: "Sequence[tuple[Path, RunState, float, int]]") -> None:
    table = columns(("run", "state"), ("exact match", "age", "size"), box=None, pad_edge=False)
    table.caption = "exact match: the best on validation pairs, free-running"
    for path, state, age, size in listed:
        best = "-" if state.exact_match is None else share(state.exact_match)
        size_in_mb = f"{size / 1e6:,.1f} MB"
        table.add_row(plain(str(path)), plain(_described(path, state)), best, _age(age), size_in_mb)
    output().print(table)


def _described(path: Path, state: "RunState") -> str:
    """The state, with what is wrong or broken on purpose."""
    problem = state.problem.removeprefix(f"{path}: ").removeprefix(f"{path}/")
    more = f": {problem}" if problem else ""
    if state.fault:
        more = f"; {fault_remark(state.fault)}"
    return f"{state}{more}"


def _age(seconds: float) -> str:
    """A duration in its largest unit: 3 d."""
    length, unit = next((u for u in UNITS if seconds >= u[0]), UNITS[-1])
    return f"{int(seconds / length)} {unit}"
