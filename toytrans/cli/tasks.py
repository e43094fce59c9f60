"""`toytrans tasks` and `toytrans schema`: the tasks, and the schema of a config."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from toytrans.cli.common import columns, output, plain
from toytrans.config.names import TaskName
from toytrans.errors import UserError, did_you_mean
from toytrans.files import json_text
from toytrans.user_code import is_reference, shown, trust

if TYPE_CHECKING:
    from toytrans.config.schema import Config
    from toytrans.data.tasks.base import TaskPairs


def tasks(
    name: Annotated[
        str | None, typer.Argument(help="Show the card of a task. Default: list all tasks.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Show the card of the task of a config.")
    ] = None,
) -> None:
    """List the tasks, or show one task's card with samples."""
    from toytrans.config.load import load_config

    names = get_args(TaskName)
    settings = load_config(config) if config else None
    if settings and name not in (None, settings.data.task):
        raise UserError(f"{config}: its task is {settings.data.task}, not {name}; name one of them")
    if settings:
        _card(settings)
    elif name is None:
        _list(names)
    elif name in names or is_reference(name):
        _card(_small(name, 10))
    else:
        raise UserError(f"no task {name!r}; {did_you_mean(name, names)}")


def schema() -> None:
    """Print the JSON Schema of a config file, for editors."""
    from toytrans.config.schema import Config

    print(json_text(Config.model_json_schema(), 1))


def _list(names: tuple[str, ...]) -> None:
    table = columns(("task", "rule", "example"), title="Tasks")
    for name in names:
        pairs = _opened(_small(name, 6))
        table.add_row(name, pairs.task.rule, _arrow(pairs.samples(5)[0], " -> "))
    console = output()
    console.print(table)
    console.print("`toytrans tasks NAME` shows a card; a config names one as data.task.")


def _card(config: "Config") -> None:
    if config.data.task is None:
        raise UserError("this config reads files; only a task has a card")

    from rich.table import Table

    from toytrans.data.tasks.lexicon import translations

    pairs, data = _opened(config), config.data
    symbols = pairs.facts.vocabulary.symbols
    named = symbols if len(symbols) <= 12 else (*symbols[:4], "...", *symbols[-4:])
    example, *samples = pairs.samples(5)
    lengths = "train {} to {}, test {} to {} source symbols"
    task = shown(config.data.task)
    console = output()
    grid = Table.grid(padding=(0, 2))
    for heading, text in (
        ("task", task),
        ("rule", pairs.task.rule),
        ("symbols", f"{len(symbols)}: {' '.join(named)}"),
        ("lengths", lengths.format(*data.lengths["train"], *data.lengths["test"])),
        ("metric", "exact match: the whole target right, through its end"),
        ("example", _arrow(example)),
        *(("", _arrow(sample)) for sample in samples),
    ):
        grid.add_row(f"[bold]{heading}[/bold]" if heading else "", plain(text))
    console.print(grid)
    if task == "lexicon":
        words = translations(pairs.symbols, config.data_seed)
        entries = ", ".join(f"{word} = {meaning}" for word, meaning in words)
        console.print(f"[bold]dictionary[/bold] (of seed {config.data_seed})  {entries}")
    console.print(f"\nTrain on it: a config with [bold]data: {{task: {task}}}[/bold]")


def _opened(config: "Config") -> "TaskPairs":
    from toytrans.data.open import open_dataset
    from toytrans.data.tasks.base import TaskPairs

    pairs = open_dataset(config)
    assert isinstance(pairs, TaskPairs)
    return pairs


def _arrow(sample: tuple[list[str], list[str]], arrow: str = "  ->  ") -> str:
    src, tgt = sample
    return f"{' '.join(src)}{arrow}{' '.join(tgt)}"


def _small(name: str, longest: int) -> "Config":
    from toytrans.config.load import check_config
    from toytrans.config.yaml import Tree

    config = check_config(Tree(name, {"data": {"task": name, "train_length": [1, longest]}}))
    trust(config.references.values())
    return config
