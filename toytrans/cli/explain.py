"""`toytrans explain` and `toytrans new`: what the names of a config mean, and a new config."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from toytrans.checks.result import CHECKS
from toytrans.cli.new_files import write_new
from toytrans.cli.terminal import note, output, plain, plain_lines, print_pairs, print_table
from toytrans.config.faults import FAULTS
from toytrans.files import json_text


def _names() -> list[str]:
    """What completes a NAME."""
    from toytrans.data.tasks import TASKS

    return [*TASKS, *FAULTS, *CHECKS]


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=_names,
            help="A task, a fault, a check, a config key or section; a FILE.py:TASK of yours, a "
            "config; or a list: tasks, faults, checks, keys; or schema, the JSON Schema of a "
            "config, for editors.",
        ),
    ] = None,
) -> None:
    """Explain a task, a fault, a check or a config key, or list them."""
    from toytrans.data.tasks import TASKS
    from toytrans.glossary import LISTS, json_schema, keys, listed

    if name is None:
        names = {
            "tasks": ", ".join(sorted(TASKS)),
            "faults": ", ".join(FAULTS),
            "checks": ", ".join(CHECKS),
            "keys": ", ".join(key.path for key in keys() if key.default),
            "schema": "the JSON Schema of a config",
        }
        title = "toytrans explain NAME explains one; tasks, faults, checks or keys lists them."
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
    from toytrans.glossary import card

    _print_rows(name, card(name))


def _print_rows(title: str, rows: dict[str, str]) -> None:
    output().print(plain(title, "bold"))
    print_pairs(((Text(f"  {k}", "bold"), plain_lines(v)) for k, v in rows.items()))


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
    from toytrans.glossary import new_config

    text = new_config(task)
    if out is None:
        print(text, end="")
    else:
        write_new(out, text.encode())
        note(f"wrote {out}; train with: toytrans train {shlex.quote(str(out))}")
