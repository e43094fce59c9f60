"""`toytrans explain`: what a name means, of a task, a fault, a check, a metric or a config key."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.table import Table as Grid
from rich.text import Text

from toytrans.cli.terminal import output, plain, plain_lines, show
from toytrans.errors import UserError
from toytrans.files import json_text
from toytrans.glossary import KINDS, card, card_of_config, json_schema, listed
from toytrans.table import Table, TextColumn


def explain(
    name: str | None,
    config: Path | None,
    trust_code: bool,
) -> None:
    """Explain a task, a fault, a check, a metric or a config key, or list them."""
    if config is not None:
        if name is not None:
            raise UserError(f"{name} and --config {config}: give one of them")
        print_rows(str(config), card_of_config(config, trust_code))
    elif name is None:
        names = {kind: ", ".join(each.names()) for kind, each in KINDS.items()}
        names["causes"] = "why checks fail, such as future.mask_missing"
        names["schema"] = "the JSON Schema of a config"
        *others, last = KINDS
        title = "toytrans explain NAME explains one; "
        title += f"{', '.join(others)} or {last} lists them."
        print_rows(title, names)
    elif name == "schema":
        print(json_text(json_schema(), 1))
    elif name in KINDS:
        headings, *rows = listed(name)
        show(Table("", list(map(TextColumn, headings)), rows), box=None)
    else:
        print_card(name, trust_code)


def print_card(name: str, trust_code: bool = False) -> None:
    """What there is to say of a name. Raises UserError."""
    print_rows(name, card(name, trust_code))


def print_rows(title: str, rows: Mapping[str, str]) -> None:
    """Print a title, and below it names with what there is to say of each."""
    output().print(plain(title, "bold"))
    print_pairs(((Text(f"  {k}", "bold"), plain_lines(v)) for k, v in rows.items()))


def print_pairs(pairs: Iterable[tuple[Text, Text]]) -> None:
    """Print names, and beside each what there is to say of it."""
    table = Grid.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in pairs:
        table.add_row(name, text)
    output().print(table)
