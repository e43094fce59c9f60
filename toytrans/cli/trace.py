"""`toytrans trace`: every tensor of one attention and its layer, and what each of its heads does.

A batch -> one forward pass that is recorded -> tables of its tensors, and maps of its weights. The
rules of the heads are measured on validation pairs, so they are of runs alone.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from toytrans.cli.common import (
    path_and_sequences,
    run_or_config,
)
from toytrans.cli.inspected import batch_of, check_each_has_a_target
from toytrans.cli.new_files import check_plot, write_new
from toytrans.cli.opening import newest
from toytrans.cli.tables import (
    LONGEST,
    MARKS,
    axis_names,
    map_of,
    print_beside,
    print_names,
    print_panels,
    print_tables,
)
from toytrans.cli.terminal import note, output, plain, printable, show
from toytrans.errors import UserError, share
from toytrans.figures import drawn
from toytrans.files import json_text
from toytrans.inspection import trace as traces
from toytrans.inspection.heads import AttentionMaps, Choice, HeadMap, HeadReport, maps_of_batch
from toytrans.inspection.panels import CLOSED
from toytrans.inspection.shown import InspectedBatch
from toytrans.inspection.trace import Trace
from toytrans.table import Cell, Table, TextColumn
from toytrans.tokens import PAD_ID, SPECIALS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = {0.05: ("░", "blue"), 0.25: ("▒", "cyan"), 0.5: ("▓", "magenta"), 0.75: ("█", "bold")}
"""The block and the colour of a cell from a weight on; below the first it is blank."""

HEADS = "heads"
"""The panel that shows the maps of all heads."""

TITLES = {
    "encoder": "Encoder self-attention: the source down and across",
    "decoder": "Decoder self-attention: the tokens read down and across",
    "cross": "Cross-attention: the predicted tokens down, the source across",
}
MEANING = (
    "Measured on {basis}. share: how often the largest weight of a query is on the key that the "
    "rule names; only symbols count ({queries}). weight: the mean weight on that key. chance: the "
    "share if the key were picked at random. mirror place: n + 1 - t of n symbols; before and "
    "after mirror: the places beside it. A head has no rule if the interval of the best one is not "
    "above the middle between chance and 1."
)
INCHES, TALLEST = 0.19, 400
"""The side of a cell in a picture, and the greatest height of one, which a PNG has room for."""


def trace(
    words: list[str] | None,
    config: Path | None,
    tgt: list[str] | None,
    part: Literal["encoder", "decoder", "cross"],
    layer: int | None,
    head: int,
    panel: str | None,
    plot: Path | None,
    checkpoint: str,
    device: str,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Show every tensor of one attention and its layer."""
    check_plot(plot)
    path, sources = path_and_sequences(words)
    run, config = run_or_config(path, config)
    check_each_has_a_target(sources, tgt or ())
    pairs = (sources, tgt or []) if sources else None
    if sources and not (run or config):
        run = newest()
    inspected = batch_of(
        run, config, pairs, checkpoint=checkpoint, device=device, trust_code=trust_code
    )
    heads = inspected.model.settings.n_heads
    if head > heads:
        raise UserError(f"--head {head}: this model has {heads} of them; give 1 to {heads}")
    if plot is not None or panel == HEADS:
        _show_heads(inspected, Choice(part, layer), plot)
    else:
        traced = traces.trace(inspected, part, layer or 1)
        _show_tensors(traced, head, panel, as_json)


def _show_heads(inspected: InspectedBatch, choice: Choice, plot: Path | None) -> None:
    """The weights of all chosen heads as maps, on the terminal or in a picture, and their rules."""
    if inspected.run is None:
        raise UserError("rules are measured on a run; name one, or train this config")
    maps = maps_of_batch(inspected.run, inspected.batch, choice)
    if plot is None:
        _print_maps(maps)
    else:
        write_new(plot, _draw(plot, maps))
        note(f"wrote {plot}")
    _print_rules(maps)


def _show_tensors(traced: Trace, head: int, panel: str | None, as_json: bool) -> None:
    """The tensors of one attention: one screen, some panels, or all of them as JSON. The screen and
    JSON have the rules of the heads too, if the model is a run's."""
    tables = traces.tables(traced, traced.inspected.most_padded, head - 1)
    if panel is not None and not as_json:
        print_panels(tables, panel)
        return
    run, maps = traced.inspected.run, None
    if run is not None:
        maps = maps_of_batch(run, traced.inspected.batch, Choice(traced.part, traced.layer))
    if as_json:
        found = {"heads": [each.to_dict() for each in maps.heads]} if maps else {}
        print(json_text(traced.to_dict() | found))
        return
    print_tables(traces.summary(tables))
    if maps is not None:
        _print_rules(maps)
    print_names(tables, *([HEADS] if maps else []))


# What each head does --------------------------------------------------------------------------


def _print_maps(maps: AttentionMaps) -> None:
    """Every head on every pair. Errors come before output."""
    console, names = output(), axis_names(maps.run.vocabulary.symbols)
    drawn = [
        [
            (each.head.part, map_of_head(each, console.width))
            for each in maps.of_pair(row, names.__getitem__)
        ]
        for row in range(len(maps.batch.src))
    ]
    console.print(plain(maps.run.title), soft_wrap=True)
    console.print(Text("; ".join(_legend(maps)), "dim"), width=min(console.width, 100))
    for row, blocks in enumerate(drawn):
        console.print(Text("\n") + plain(maps.text(row)), soft_wrap=True)
        for part, group in groupby(blocks, lambda block: block[0]):
            console.print(Text("\n") + Text(TITLES[part], "bold"), soft_wrap=True)
            print_beside([block for _, block in group])


def _print_rules(maps: AttentionMaps) -> None:
    """One line for each head, and what the numbers mean."""
    console, rows = output(), list[list[str]]()
    console.print()
    for each in maps.heads:
        best, counts = each.best, bool(each.queries)
        interval = f"{best.low:.3f}..{best.high:.3f}"
        numbers = (share(best.share), interval, share(best.weight), f"{best.chance:.3f}")
        label = Cell(_label(each), "strong" if best.holds else "faint")
        place = each.part, str(each.layer), str(each.head)
        rows.append([*place, label, *(numbers if counts else "----")])
    texts = map(TextColumn, ("part", "layer", "head", "what it does"))
    show(Table("", [*texts, "share", "95%", "weight", "chance"], rows), box=None)
    counted = {each.part: each.queries for each in maps.heads}
    queries = ", ".join(f"{part} {count:,}" for part, count in counted.items())
    meaning = MEANING.format(basis=maps.basis, queries=queries)
    console.print(Text(f"\n{meaning}", "dim"), width=min(console.width, 100))


def _legend(maps: AttentionMaps) -> Iterator[str]:
    symbols = maps.run.vocabulary.symbols
    scale = " ".join(f"< {level} <= {block}" for level, (block, _) in SHADES.items())
    yield f"weight: blank {scale}, {CLOSED} masked"
    yield "queries down, keys across; from one pass over the finished translation"
    if not set(MARKS) & set(symbols):
        yield ", ".join(f"{mark} {name}" for mark, name in zip(MARKS, SPECIALS, strict=True))
    if any(len(printable(symbol)) > LONGEST for symbol in symbols):
        yield "~ letters left out"
    yield "below a label its share of the queries, and in brackets the mean weight there"
    if any(PAD_ID in ids for ids in maps.batch.named().values()):
        yield "rows of pads are left out"


def map_of_head(shown: HeadMap, width: int) -> Text:
    """One head on one pair, below its label. Raises UserError where it does not fit the width."""
    head, room = shown.head, width - max(map(cell_len, shown.queries)) - 1
    narrowest = max(cell_len(letter) for key in shown.keys for letter in key)
    cell = next((x for x in (2, 1) if narrowest <= x and len(shown.keys) * x <= room), None)
    if cell is None:
        raise UserError(
            f"{len(shown.keys)} tokens do not fit the {room} columns that are left for them; "
            "shorten the sequence, widen the terminal (or set COLUMNS), or use --plot FILE.svg or "
            "--json"
        )
    fit = f"{share(head.best.share)} ({share(head.best.weight)})"
    if not head.best.holds:  # the nearest rule
        fit = f"{head.best.rule} {head.best.share:.2f}" if head.queries else "no queries"
    titles = [
        Text(f"layer {head.layer} head {head.head}"),
        Text(head.label, "bold" if head.best.holds else "dim"),
        Text(fit, "dim"),
    ]
    cells = [[_shaded(weight, cell) for weight in weights] for weights in shown.weights]
    return map_of(titles, shown.queries, shown.keys, cells, cell)


def _shaded(weight: float | None, width: int) -> tuple[str, str]:
    """One cell and its style."""
    if weight is None:
        return CLOSED.ljust(width), "dim"
    reached = [shade for level, shade in SHADES.items() if weight >= level]
    block, style = reached[-1] if reached else (" ", "")
    return block * width, style


def _label(head: HeadReport) -> str:
    """The label; without a rule, with the nearest one."""
    if head.best.holds or not head.queries:
        return head.label
    return f"{head.label}: {head.best.rule}"


# In a file ------------------------------------------------------------------------------------


def _draw(path: Path, maps: AttentionMaps) -> bytes:
    """All maps in one picture: a block per pair, in it a row per layer and a column per head.
    Raises UserError."""
    layers = len({(head.part, head.layer) for head in maps.shown})
    heads, pairs = len(maps.shown) // layers, len(maps.batch.src)
    side = max(1.9, INCHES * max(maps.batch.src.shape[1], maps.batch.tgt_in.shape[1]))
    height = pairs * (layers * (side + 0.7) + 0.5)
    if height > TALLEST:
        raise UserError(
            f"--plot {path}: {pairs} x {layers} rows of maps are too many for one "
            "picture; choose one with --layer, or give fewer sequences"
        )
    names = [*SPECIALS, *axis_names(maps.run.vocabulary.symbols)[len(SPECIALS) :]]

    def draw(figure: "Figure") -> None:
        """Each pair is a part of the figure, and each of its heads an image in the part's grid."""
        figure.suptitle(printable(f"{maps.run.title}; labels measured on {maps.basis}"), fontsize=8)
        for row, part in enumerate(figure.subfigures(pairs, 1, squeeze=False)[:, 0]):
            part.suptitle(printable(maps.text(row)), fontsize=9, fontweight="bold")
            grid = part.subplots(layers, heads, squeeze=False)
            for axes, shown in zip(grid.flat, maps.of_pair(row, names.__getitem__), strict=True):
                head, best = shown.head, shown.head.best
                cells = np.array(shown.weights, dtype=float)  # None becomes NaN
                image = axes.imshow(cells, vmin=0, vmax=1, interpolation="nearest")
                axes.set_facecolor("lightgrey")
                axes.set_xticks(range(len(shown.keys)), shown.keys, rotation=90, fontsize=6)
                axes.set_yticks(range(len(shown.queries)), shown.queries, fontsize=6)
                axes.tick_params(length=0)
                axes.xaxis.tick_top()
                fit = f"{_label(head)} {share(best.share)} ({share(best.weight)})"
                title = f"{head.part}, layer {head.layer}, head {head.head}\n{fit}"
                axes.set_title(title, fontsize=6)
            part.colorbar(image, ax=grid, fraction=0.02, label="weight; grey: masked")

    inches = heads * (side + 0.5) + 1.2, height + 0.4
    return drawn(inches, draw, path.suffix[1:].lower())
