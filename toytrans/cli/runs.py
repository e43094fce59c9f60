"""`toytrans runs`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import AsJson, Progress, columns, note, output, plain, share
from toytrans.config.sealed import fault_remark
from toytrans.errors import UserError
from toytrans.files import json_text

if TYPE_CHECKING:
    from toytrans.training.run import ListedRun

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

    progress = Progress()
    listed = list_runs(folder, progress)
    if as_json:
        print(json_text({"folder": str(folder), "runs": [run.to_dict() for run in listed]}))
    elif not listed:
        note(f"{folder}: no runs here")
    else:
        _print(listed)


def _print(listed: "list[ListedRun]") -> None:
    table = columns(("run", "state"), ("exact match", "age", "size"), box=None, pad_edge=False)
    table.caption = "exact match: the best on validation pairs, free-running"
    for run in listed:
        cells = _cells(run)
        table.add_row(*map(plain, cells[:2]), *cells[2:])
    output().print(table)


def _cells(run: "ListedRun") -> tuple[str, str, str, str, str]:
    state, best = run.state, run.state.exact_match
    problem = state.problem.removeprefix(f"{run.path}: ").removeprefix(f"{run.path}/")
    more = f": {problem}" if problem else ""
    if state.fault:
        more = f"; {fault_remark(state.fault)}"
    return (
        str(run.path),
        f"{state}{more}",
        "-" if best is None else share(best),
        _age(run.age_s),
        _size(run.size),
    )


def _age(seconds: float) -> str:
    """A duration in its largest unit: 3 d."""
    length, unit = next((u for u in UNITS if seconds >= u[0]), UNITS[-1])
    return f"{int(seconds / length)} {unit}"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
