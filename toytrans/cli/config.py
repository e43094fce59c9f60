"""`toytrans config`: write a new config, explain its keys."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import argument, columns, note, output, plain, write_new

if TYPE_CHECKING:
    from toytrans.config.explain import Key

app = typer.Typer(no_args_is_help=True, help="Write a new config, or explain its keys.")


@app.command()
def new(
    task: Annotated[str, typer.Argument(help="A task; see `toytrans tasks`.")] = "reverse",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a new file. Default: standard output."),
    ] = None,
) -> None:
    """Write a commented config with the usual keys. It trains as it is."""
    from toytrans.config.new import new_config

    text = new_config(task)
    if out is None:
        print(text, end="")
    else:
        write_new("--out", out, text.encode())
        note(f"wrote {out}; train with: toytrans train {argument(out)}")


@app.command()
def explain(
    key: Annotated[
        str | None, typer.Argument(help="A key or section, say train.lr. Default: all keys.")
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables of Markdown.")
    ] = False,
) -> None:
    """Explain a key: meaning, type, default and range. A section lists its keys."""
    from toytrans.config.explain import explain_key, keys, markdown

    matching = explain_key(key) if key else list(keys())
    if as_markdown:
        print(markdown(matching), end="")
    elif len(matching) == 1:
        _print_key(matching[0])
    else:
        _print_keys(matching)


def _print_key(key: "Key") -> None:
    from rich.table import Table

    from toytrans.config.explain import is_derived

    meaning, null = key.parts
    rows = {
        "meaning": meaning,
        "type": key.type,
        "default": f"null: {null}" if null and key.default == "null" else key.default,
        "null": "" if key.default == "null" else null,
        "range": key.range.replace("`", ""),
    }
    if is_derived(key):
        rows["derived"] = "from other keys, in training; config.yaml of a run holds the value"
    grid = Table.grid(padding=(0, 2))
    for heading, text in rows.items():
        if text:
            grid.add_row(f"  [bold]{heading}[/bold]", plain(text))
    console = output()
    console.print(f"[bold]{key.path}[/bold]")
    console.print(grid)


def _print_keys(matching: "list[Key]") -> None:
    table = columns(("key", "default", "meaning"))
    for key in matching:
        table.add_row(key.path, key.default or "a section", plain(key.meaning))
    console = output()
    console.print(table)
    console.print("`toytrans config explain KEY` shows type and range.")
