"""`toytrans runs`."""

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

try:
    import termios
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]

import typer

from toytrans.cli.common import AsJson, Progress, columns, note, output, plain, printable, share
from toytrans.errors import UserError
from toytrans.safe_io import json_text
from toytrans.sealed import fault_remark

if TYPE_CHECKING:
    from toytrans.training.listing import ListedRun

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder to look in, and below.")] = Path("runs"),
    prune: Annotated[
        bool, typer.Option("--prune", help="Ask for each run whether to delete it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List runs: state, best exact match, age, size.

    --prune asks for each run in turn, and deletes only what training wrote. Other
    files stay. A run that is being written is never deleted.
    """
    if prune and as_json:
        raise UserError("--json lists runs and --prune asks for each; give one")
    if prune and not sys.stdin.isatty():
        raise UserError("--prune asks for each run, and standard input is no terminal")
    if not os.path.isdir(folder):
        problem = "this is a file" if os.path.exists(folder) else "no such folder"
        raise UserError(f"{folder}: {problem}; name a folder of runs, as `toytrans train` makes it")
    from toytrans.training.listing import list_runs

    progress = Progress()
    listed = list(list_runs(folder, progress))
    if as_json:
        print(json_text({"folder": str(folder), "runs": [run.to_dict() for run in listed]}))
    elif not listed:
        note(f"{folder}: no runs here")
    elif prune:
        _prune(listed)
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


def _prune(listed: "list[ListedRun]") -> None:
    """Ask for one run after the other, the oldest first."""
    for run in reversed(listed):
        path, state, best, age, size = map(printable, _cells(run))
        line = f"{path}  {state}  exact match {best}  {age}  {size}"
        if run.state.state == "being written":
            print(f"{line}\n  kept: a training is writing here")
            continue
        answer = _ask(f"{line}\n  delete it? [y/N/q] ")
        if answer == "q":
            return
        if answer == "y":
            _delete(run.path)


def _ask(question: str) -> str:
    """The first letter of the answer; q at the end of the input.

    What was typed before the question is dropped.
    """
    if termios is not None:
        with contextlib.suppress(OSError, termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    try:
        return input(question).strip().lower()[:1]
    except EOFError:
        print()
        return "q"


def _delete(path: Path) -> None:
    """Delete a run as far as training wrote it, and report what stays."""
    from toytrans.training.run_folder import delete_run

    try:
        kept = delete_run(path)
    except UserError as error:
        print(f"  kept: {printable(str(error))}")
        return
    stays = f"; kept {printable(', '.join(kept))}" if kept else ""
    print(f"  deleted what training wrote{stays}" if kept else "  deleted")
