"""One screen by default, one panel, or everything."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from toytrans.cli.render.tables import print_tables
from toytrans.errors import UserError
from toytrans.inspection.table import Table

Panel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Show a panel: its number or a part of its title; or all."),
]


def print_panels(
    console: Console,
    tables: Iterable[Table],
    panel: str | None,
    *,
    one_screen: Sequence[Table] = (),
) -> None:
    """Print the tables that are asked for, in a pager where they are longer than the terminal.

    panel: a number, a part of a title, or all. one_screen: printed where no panel is asked for,
    with a line that names the panels. Raises UserError for an unknown panel.
    """
    tables = list(tables)
    if panel not in (None, "all"):
        tables = _chosen(tables, panel)
    elif panel is None and one_screen:
        print_tables(console, one_screen)
        print_names(console, tables)
        return
    with paged(console):
        print_tables(console, tables)


def print_names(console: Console, tables: Iterable[Table]) -> None:
    """Print the names of the panels, and how to ask for them."""
    text = f"Panels: {', '.join(_names(tables))}. --panel NAME shows one, --panel all every one."
    console.print(Text(), Text(text, "dim"), sep="\n")


def _chosen(tables: list[Table], panel: str) -> list[Table]:
    """The tables of a number, or of a name in the list, or whose title has a text in it.

    The name of the run in a title is not searched.
    """
    chosen = [table for table in tables if panel in (table.number, _label(table))]
    wanted = panel.casefold()
    chosen = chosen or [
        table for table in tables if wanted in table.name.partition(", weights of ")[0].casefold()
    ]
    if not chosen:
        raise UserError(f"--panel {panel}: no such panel; there are {', '.join(_names(tables))}")
    return chosen


def _names(tables: Iterable[Table]) -> list[str]:
    """Each number with the start of its first title."""
    names: dict[str, str] = {}
    for table in tables:
        names.setdefault(table.number, _label(table))
    return list(names.values())


def _label(table: Table) -> str:
    return f"{table.number} {table.name.partition(',')[0].partition(':')[0]}"


@contextlib.contextmanager
def paged(console: Console) -> Iterator[None]:
    """Send what is printed through the pager, if a person can use it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    os.environ.setdefault("LESS", "FRX")  # short output stays on the screen, colours are kept
    with console.pager(styles=True):
        yield
