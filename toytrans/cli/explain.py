"""`toytrans explain` and `toytrans new`: what the names of a config mean, and a new config."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from toytrans.checks.rules import CAUSES, CHECKS
from toytrans.cli.new_files import write_new
from toytrans.cli.terminal import note, output, plain, plain_lines, print_table
from toytrans.config.faults import FAULTS
from toytrans.data.tasks import TASKS
from toytrans.files import json_text
from toytrans.glossary import LISTS, card, json_schema, keys, listed, new_config


def _names() -> list[str]:
    """What completes a NAME."""
    return [*TASKS, *FAULTS, *CHECKS, *CAUSES]


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=_names,
            help="A task, a fault, a check or why it fails, a config key or section; a "
            "FILE.py:TASK of yours, a config; or a list: tasks, faults, checks, causes, keys; or "
            "schema, the JSON Schema of a config, for editors.",
        ),
    ] = None,
) -> None:
    """Explain a task, a fault, a check or a config key, or list them."""
    if name is None:
        names = {
            "tasks": ", ".join(sorted(TASKS)),
            "faults": ", ".join(FAULTS),
            "checks": ", ".join(CHECKS),
            "causes": "why checks fail, such as future.mask_missing",
            "keys": ", ".join(key.path for key in keys() if key.default),
            "schema": "the JSON Schema of a config",
        }
        title = "toytrans explain NAME explains one; "
        title += "tasks, faults, checks, causes or keys lists them."
        _print_rows(title, names)
    elif name == "schema":
        print(json_text(json_schema(), 1))
    elif name in LISTS:
        headings, *rows = listed(name)
        print_table(headings, (), rows, box=None)
    else:
        print_card(name)


def print_card(name: str) -> None:
    """What there is to say of a name. Raises UserError."""
    _print_rows(name, card(name))


def _print_rows(title: str, rows: dict[str, str]) -> None:
    output().print(plain(title, "bold"))
    print_pairs(((Text(f"  {k}", "bold"), plain_lines(v)) for k, v in rows.items()))


def print_pairs(pairs: Iterable[tuple[Text, Text]]) -> None:
    """Print names, and beside each what there is to say of it."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in pairs:
        table.add_row(name, text)
    output().print(table)


def new(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="`toytrans explain tasks` lists them.")
    ] = "reverse",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a new file. Default: standard output."),
    ] = None,
) -> None:
    """Write a commented config that trains as it is."""
    text = new_config(task)
    if out is None:
        print(text, end="")
    else:
        write_new(out, text.encode())
        note(f"wrote {out}; train with: toytrans train {shlex.quote(str(out))}")
