"""`toytrans explain` and `toytrans new`: what the names of a config mean, and a new config."""

from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.text import Text

from toytrans.cli.common import argument, columns, note, output, plain, print_pairs, write_new
from toytrans.config.names import FaultName, TaskName

SCHEMA = "schema"


def _names() -> list[str]:
    return [*get_args(TaskName), *get_args(FaultName)]


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            autocompletion=_names,
            help="A task, a fault, a config key or section; a FILE.py:TASK of yours, a config; or "
            "a list: tasks, faults, keys; or schema, the JSON Schema of a config, for editors.",
        ),
    ] = None,
) -> None:
    """Explain a task, a fault or a config key, or list them."""
    from toytrans.glossary import LISTS, listed

    if name is None:
        _print_overview()
    elif name == SCHEMA:
        from toytrans.config.schema import Config
        from toytrans.files import json_text

        print(json_text(Config.model_json_schema(), 1))
    elif name in LISTS:
        headings, *rows = listed(name)
        table = columns(headings)
        for row in rows:
            table.add_row(*map(plain, row))
        output().print(table)
    else:
        print_card(name)


def print_card(name: str) -> None:
    """What there is to say of a name. Raises UserError."""
    from toytrans.glossary import card

    _print_rows(name, card(name))


def _print_overview() -> None:
    from toytrans.config.explain import keys

    _print_rows(
        "toytrans explain NAME explains one of these; tasks, faults or keys lists them.",
        {
            "tasks": ", ".join(get_args(TaskName)),
            "faults": ", ".join(get_args(FaultName)),
            "keys": ", ".join(key.path for key in keys() if key.default),
            SCHEMA: "the JSON Schema of a config",
        },
    )


def _print_rows(title: str, rows: dict[str, str]) -> None:
    console = output()
    console.print(plain(title, "bold"))
    lines = Text("\n")
    pairs = ((f"  {name}", lines.join(map(plain, text.split("\n")))) for name, text in rows.items())
    print_pairs(console, ((Text(name, "bold"), text) for name, text in pairs))


def new(
    task: Annotated[
        str, typer.Argument(help="A task; `toytrans explain tasks` lists them.")
    ] = "reverse",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a new file. Default: standard output."),
    ] = None,
) -> None:
    """Write a commented config that trains as it is."""
    from toytrans.config.new import new_config

    text = new_config(task)
    if out is None:
        print(text, end="")
    else:
        write_new("--out", out, text.encode())
        note(f"wrote {out}; train with: toytrans train {argument(out)}")
