"""`toytrans inspect-masks`: who may look at what."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toytrans.cli.common import output, printable
from toytrans.config import Config, load_config
from toytrans.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from toytrans.data.batches import Batch
    from toytrans.insight.mask_panels import Panel
    from toytrans.tokens import Vocabulary


def inspect_masks(
    config: Annotated[
        Path | None, typer.Option(help="Take the first training pairs of this config.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the config's.")
    ] = None,
    src: Annotated[
        list[str] | None, typer.Option(help='A source, say "5 7 9"; repeat for a padded batch.')
    ] = None,
    tgt: Annotated[list[str] | None, typer.Option(help="Its target; as many as --src.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Pairs to take from the config.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show the masks of a padded batch as matrices: 1 = may look.

    From a config's first training pairs, or from sequences given with --src and --tgt; with both,
    the config decides the vocabulary.
    """
    src, tgt = src or [], tgt or []
    if len(src) != len(tgt):
        raise UserError(f"{len(src)} --src and {len(tgt)} --tgt; give one --tgt for each --src")
    if config is None and not src:
        raise UserError('nothing to inspect; give --config FILE, or --src "5 7 9" --tgt "9 7 5"')
    settings = load_config(config, overrides or ()) if config else None

    from toytrans.insight import mask_panels

    pad_mask = settings.model.pad_mask if settings else "keys"
    batch, vocabulary = _batch(settings, src, tgt, rows)
    if as_json:
        print(json.dumps(mask_panels.masks_as_data(batch, pad_mask)))
        return
    console = output()
    closed = _closed_mark()
    _print_batch(console, batch, vocabulary, closed)
    for row in range(len(batch.src)):
        for panel in mask_panels.panels(batch, row, vocabulary, pad_mask):
            _print_panel(console, panel, f"pair {row + 1} of {len(batch.src)}", closed)


def _batch(
    settings: Config | None, src: list[str], tgt: list[str], rows: int
) -> "tuple[Batch, Vocabulary]":
    """The sequences given, in the config's vocabulary if there is one; else the config's pairs."""
    from toytrans.data import open_source
    from toytrans.insight.mask_panels import batch_of_config, batch_of_sequences

    if not src:
        assert settings
        return batch_of_config(settings, rows)
    if settings is None:
        return batch_of_sequences(src, tgt)
    vocabulary = open_source(settings).facts.vocabulary
    return batch_of_sequences(src, tgt, vocabulary, settings.marks_both_ends)


def _print_batch(console: "Console", batch: "Batch", vocabulary: "Vocabulary", closed: str) -> None:
    console.print(
        f"[bold]Masks[/bold]: 1 = may look, {closed} = may not; queries down, keys across"
    )
    for row in range(len(batch.src)):
        console.print(f"\n[bold]pair {row + 1}[/bold]")
        for name, ids in batch.named().items():
            words = " ".join(printable(vocabulary.name(i)) for i in ids[row].tolist())
            console.print(f"  {name:<8}{words}", markup=False)
    console.print("\nThe decoder's pads are read from tgt_in; the loss ignores pads of tgt_out.")


def _print_panel(console: "Console", panel: "Panel", of: str, closed: str) -> None:
    """A matrix; keys that do not fit the width go on below."""
    console.print(f"\n[bold]{panel.name}[/bold], {of}: {panel.says}")
    console.print(f"  {panel.shape}")
    from rich.cells import cell_len

    queries = [printable(token) for token in panel.queries]
    keys = [printable(token) for token in panel.keys]
    widths = [cell_len(key) for key in keys]
    left = max(map(cell_len, queries)) + 2
    lines: list[str] = []
    start = 0
    while start < len(keys):
        stop, width = start + 1, left + widths[start] + 1
        while stop < len(keys) and width + widths[stop] < console.width:
            width += widths[stop] + 1
            stop += 1
        if start:
            lines.append(f"  keys {start} to {stop - 1} of {len(keys)}, continued:")
        part = slice(start, stop)
        lines.append(" " * left + "".join(f" {key}" for key in keys[part]))
        for query, row in zip(queries, panel.mask, strict=True):
            cells = zip(row[part], widths[part], strict=True)
            marks = "".join(f" {'1' if seen else closed:>{width}}" for seen, width in cells)
            lines.append(" " * (left - cell_len(query)) + query + marks)
        start = stop
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _closed_mark() -> str:
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return "·" if unicode and os.environ.get("TERM") != "dumb" else "."
