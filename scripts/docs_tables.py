"""Writes the tables of docs/ that are made from the program: python scripts/docs_tables.py

They stand in the pages, between two comments, so that whoever reads the files without the site has
them too. A test compares them with the program, and names this script where they differ.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from toytrans.checks.rules import CHECKS
from toytrans.cli.app import COMMANDS, imported
from toytrans.data.tasks import TASKS
from toytrans.glossary import keys

DOCS = Path(__file__).parents[1] / "docs"
SECTIONS = {
    "": "Top level",
    "data": "Section `data`",
    "data.files": "Section `data.files`",
    "model": "Section `model`",
    "train": "Section `train`",
}


def table_of_keys() -> str:
    """A table for each section of a config."""
    parts = []
    for section, title in SECTIONS.items():
        head = "| key | description | type | default | range |\n|---|---|---|---|---|"
        parts += [f"### {title}\n", head]
        for key in (key for key in keys() if key.section == section):
            shown = key.default in ("", "required")
            default = key.default if shown else f"`{key.default}`"
            meaning = key.meaning.replace("|", "\\|")
            span = ", ".join(f"`{name}`" for name in key.names) or key.range
            parts.append(f"| `{key.name}` | {meaning} | {key.type} | {default} | {span} |")
        parts.append("")
    return "\n".join(parts).rstrip()


def table_of_checks() -> str:
    """What each check demands, and how it is asked."""
    head = "| check | what must hold | how it is asked |\n|---|---|---|"
    return "\n".join([head, *(f"| {c.name} | {c.title} | {c.how} |" for c in CHECKS.values())])


def table_of_tasks() -> str:
    """The rule of each task, and how many symbols it has unless a config says so."""
    head = "| task | rule | symbols |\n|---|---|---|"
    rows = (f"| {name} | {task.rule} | {task.symbols:,} |" for name, task in TASKS.items())
    return "\n".join([head, *rows])


def tables_of_commands() -> str:
    """A table of arguments and options for each command, and for each command of a group."""
    parts = []
    for name in COMMANDS:
        for words, command in commands_in(name, imported(name)):
            context = typer.Context(command, info_name=f"toytrans {words}")
            parts += [f"### `toytrans {words}`\n", f"{command.get_short_help_str(200)}\n"]
            parts += [f"`{context.get_usage().removeprefix('Usage: ').strip()}`\n"]
            parts += ["| argument or option | meaning |", "|---|---|"]
            for parameter in command.params:
                option, meaning = parameter.get_help_record(context) or ("", "")
                if option:
                    cells = (text.replace("|", "\\|") for text in (option, meaning))
                    parts.append("| `{}` | {} |".format(*cells))
            parts.append("")
    return "\n".join(parts).rstrip()


def commands_in(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command of Typer's, or those of a group, each with the words that call it."""
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, inner in command.commands.items():
        yield from commands_in(f"{words} {name}", inner)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "checks.md": ("checks", table_of_checks),
    "commands.md": ("commands", tables_of_commands),
    "configuration.md": ("keys", table_of_keys),
    "own.md": ("tasks", table_of_tasks),
}
"""By page: the name of its comments, and what stands between them."""


def with_table(text: str, name: str, table: str) -> str:
    """A page whose table is that of the program."""
    between = rf"(<!-- {name}: [^>]*-->\n).*?(<!-- end of {name} -->)"
    changed, count = re.subn(
        between, lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text, flags=re.DOTALL
    )
    assert count == 1, f"the comments of {name} stand in the page once"
    return changed


def pages() -> dict[Path, str]:
    """The pages that have tables, as they should be."""
    return {
        DOCS / page: with_table((DOCS / page).read_text(), name, table())
        for page, (name, table) in TABLES.items()
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
