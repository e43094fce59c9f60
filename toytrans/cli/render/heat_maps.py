"""Heat maps of attention, in the terminal and in a file."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from toytrans.cli.common import (
    check_new,
    columns,
    note,
    plain,
    printable,
    share,
    write_new,
)
from toytrans.cli.render.results import interval
from toytrans.cli.render.tables import print_beside
from toytrans.errors import UserError
from toytrans.inspection.table import CLOSED
from toytrans.tokens import PAD_ID, SPECIALS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

    from toytrans.inspection.heads import AttentionMaps, HeadMap, HeadReport

LEVELS = (0.05, 0.25, 0.5, 0.75)
"""Weights at which a darker block begins."""

BLOCKS = " ░▒▓█"
STYLES = ("", "blue", "cyan", "magenta", "bold")
MARKS = ("_", "^", "$")
"""PAD, BOS and EOS on the axes, unless a symbol is one of these."""

LONGEST = 8
"""Letters of a token on an axis."""

TITLES = {
    "encoder": "Encoder self-attention: the source down and across",
    "decoder": "Decoder self-attention: the tokens read down and across",
    "cross": "Cross-attention: the predicted tokens down, the source across",
}
MEANING = """\
Measured on {basis}. share: the share of queries whose largest weight is on the key of the rule;
only symbols count ({queries}). weight: the mean weight on that key. chance: the share for a key
picked at random. mirror place: n + 1 - t of n symbols; before and after mirror: the places beside
it. no rule: the interval of the best rule is not above the middle between chance and 1."""

INCHES = 0.19
"""The side of a cell in a picture."""

TALLEST = 400
"""The greatest height of a picture in inches; at DOTS per inch a PNG has room for 436."""

PAGE = ".html"


# In the terminal ------------------------------------------------------------------------------


def print_maps(console: Console, maps: "AttentionMaps", draw: bool) -> None:
    """Print the maps if `draw`, one line per head, and the legend. Errors come before output."""
    narrow, pairs = min(console.width, 100), range(len(maps.batch.src))
    drawn = [list(_blocks(maps, row, console.width)) for row in pairs if draw]
    console.print(plain(maps.run.title), soft_wrap=True)
    if draw:
        console.print(Text("; ".join(_legend(maps)), "dim"), width=narrow)
    for row, blocks in enumerate(drawn):
        console.print(Text("\n") + plain(maps.text(row)), soft_wrap=True)
        for part, group in groupby(blocks, lambda block: block[0]):
            console.print(Text("\n") + Text(TITLES[part], "bold"), soft_wrap=True)
            print_beside(console, [block for _, block in group])
    console.print(Text(), _table(maps.heads), Text(), sep="\n")
    counted = {head.part: head.queries for head in maps.heads}
    queries = ", ".join(f"{part} {count:,}" for part, count in counted.items())
    meaning = MEANING.format(basis=maps.basis, queries=queries).replace("\n", " ")
    console.print(Text(meaning, "dim"), width=narrow)


def _blocks(maps: "AttentionMaps", row: int, width: int) -> Iterator[tuple[str, Text]]:
    """The part and the map of each head on one pair. Raises UserError."""
    names = axis_names(maps.run.vocabulary.symbols)
    for shown in maps.of_pair(row, names.__getitem__):
        yield shown.head.part, map_of(shown, width)


def _legend(maps: "AttentionMaps") -> Iterator[str]:
    symbols = maps.run.vocabulary.symbols
    steps = zip(LEVELS, BLOCKS[1:], strict=True)
    scale = " ".join(f"< {level} <= {block}" for level, block in steps)
    yield f"weight: blank {scale}, {CLOSED} masked"
    yield "queries down, keys across; from one pass over the finished translation"
    if not set(MARKS) & set(symbols):
        yield ", ".join(f"{mark} {name}" for mark, name in zip(MARKS, SPECIALS, strict=True))
    if any(len(printable(symbol)) > LONGEST for symbol in symbols):
        yield "~ letters left out"
    yield "below a label its share of the queries, and in brackets the mean weight there"
    if any(PAD_ID in ids for ids in maps.batch):
        yield "rows of pads are left out"


def map_of(shown: "HeadMap", width: int) -> Text:
    """One head on one pair, below its label. Raises UserError where it does not fit the width."""
    cell = _cell_width(shown.keys, width - max(map(cell_len, shown.queries)) - 1)
    cells = [[_shade(weight, cell) for weight in weights] for weights in shown.weights]
    return grid_of(_title(shown.head), shown.queries, shown.keys, cells, cell)


def grid_of(
    titles: Sequence[Text],
    queries: Sequence[str],
    keys: Sequence[str],
    cells: Sequence[Sequence[tuple[str, str]]],
    width: int,
) -> Text:
    """A line for each query, and the keys upright above. cells: text of that width, and style."""
    left, tallest = max(map(cell_len, queries)) + 1, max(map(len, keys))
    lines = list(titles)
    for letters in zip(*(key.rjust(tallest) for key in keys), strict=True):
        heads = (letter + " " * (width - cell_len(letter)) for letter in letters)
        lines.append(Text(" " * left + "".join(heads)))
    for query, row in zip(queries, cells, strict=True):
        lines.append(Text.assemble(" " * (left - 1 - cell_len(query)), query, " ", *row))
    return Text("\n", no_wrap=True).join(lines)


def axis_names(symbols: Sequence[str]) -> list[str]:
    """The names of all ids on an axis."""
    marks = SPECIALS if set(MARKS) & set(symbols) else MARKS
    return [*marks, *(_cut(printable(symbol)) for symbol in symbols)]


def _cut(name: str) -> str:
    """A long name without its middle, since names mostly differ at an end."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}~{name[1 - half :]}"


def _cell_width(keys: list[str], room: int) -> int:
    """The width of a cell: 2 columns, or 1 if only that fits. Raises UserError."""
    narrowest = max(cell_len(letter) for key in keys for letter in key)
    for cell in (2, 1):
        if narrowest <= cell and len(keys) * cell <= room:
            return cell
    raise UserError(
        f"{len(keys)} tokens do not fit the {room} columns that are left for them; shorten the "
        "sequence, widen the terminal (or set COLUMNS), or use --plot FILE.svg or --json"
    )


def _title(head: "HeadReport") -> list[Text]:
    """The head, its label and how well it fits; without a rule, the nearest one."""
    best = head.best
    fit = f"{share(best.share)} ({share(best.weight)})"
    if not head.queries:
        fit = "no queries"
    elif not best.holds:
        fit = f"{best.rule} {best.share:.2f}"
    return [
        Text(f"layer {head.layer} head {head.head}"),
        Text(head.label, "bold" if best.holds else "dim"),
        Text(fit, "dim"),
    ]


def _label(head: "HeadReport") -> str:
    """The label; without a rule, with the nearest one."""
    if head.best.holds or not head.queries:
        return head.label
    return f"{head.label}: {head.best.rule}"


def _shade(weight: float | None, width: int) -> tuple[str, str]:
    """One cell and its style."""
    if weight is None:
        return CLOSED.ljust(width), "dim"
    level = sum(weight >= step for step in LEVELS)
    return BLOCKS[level] * width, STYLES[level]


def _table(heads: "list[HeadReport]") -> "Table":
    """One line per head: the rule that fits it best, and how well."""
    headings = ("part", "layer", "head", "what it does"), ("share", "95%", "weight", "chance")
    table = columns(*headings, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for head in heads:
        best = head.best
        numbers = (share(best.share), interval(asdict(best)), share(best.weight))
        table.add_row(
            *(head.part, str(head.layer), str(head.head)),
            Text(_label(head), "bold" if best.holds else "dim"),
            *(numbers if head.queries else "---"),
            f"{best.chance:.3f}" if head.queries else "-",
        )
    return table


# In a file ------------------------------------------------------------------------------------


def check_plot(path: Path, endings: Sequence[str] = (".png", ".svg")) -> None:
    """Raise UserError if nothing can be drawn into a file of that name."""
    check_new("--plot", path, endings)
    if path.suffix.lower() != PAGE:
        from toytrans.figures import check_matplotlib

        check_matplotlib()


def draw(path: Path, maps: "AttentionMaps") -> None:
    """Draw all maps in one picture, or as a page for a browser."""
    if path.suffix.lower() == PAGE:
        from toytrans.report.page import page
        from toytrans.report.sections import attention_of

        made = page("toytrans attention", [attention_of(maps)])
        write_new("--plot", path, made.encode(errors="replace"))
        return
    from toytrans.figures import drawn

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        picture = drawn((1, 1), lambda figure: _fill(figure, path, maps), path.suffix[1:].lower())
    write_new("--plot", path, picture)
    if any("missing from" in str(warning.message) for warning in caught):
        note("the font lacks some symbols; a .svg shows them where the viewer has a font for them")


def _fill(figure: "Figure", path: Path, maps: "AttentionMaps") -> None:
    """A block per pair, in it a row per layer and a column per head. Raises UserError."""
    layers = len({(head.part, head.layer) for head in maps.shown})
    heads = len(maps.shown) // layers
    src, tgt_in, _ = maps.batch
    side = max(1.9, INCHES * max(src.shape[1], tgt_in.shape[1]))
    block, pairs = layers * (side + 0.7) + 0.5, len(src)
    if pairs * block > TALLEST:
        raise UserError(
            f"--plot {path}: {pairs} x {layers} rows of maps are too many for one "
            "picture; choose with --part, --layer or --head, or give fewer sequences"
        )
    figure.set_size_inches(heads * (side + 0.5) + 1.2, pairs * block + 0.4)
    figure.suptitle(printable(f"{maps.run.title}; labels measured on {maps.basis}"), fontsize=8)
    names = [*SPECIALS, *(_cut(printable(symbol)) for symbol in maps.run.vocabulary.symbols)]
    for row, part in enumerate(figure.subfigures(pairs, 1, squeeze=False)[:, 0]):
        part.suptitle(printable(maps.text(row)), fontsize=9, fontweight="bold")
        grid = part.subplots(layers, heads, squeeze=False)
        for axes, shown in zip(grid.flat, maps.of_pair(row, names.__getitem__), strict=True):
            image = _draw_map(axes, shown)
        part.colorbar(image, ax=grid, fraction=0.02, label="weight; grey: masked")


def _draw_map(axes: "Axes", shown: "HeadMap") -> Any:
    """Draw one head: queries down, keys across."""
    import numpy as np

    cells = np.array(shown.weights, dtype=float)  # None becomes NaN
    image = axes.imshow(cells, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axes.set_facecolor("lightgrey")
    axes.set_xticks(range(len(shown.keys)), shown.keys, rotation=90, fontsize=6)
    axes.set_yticks(range(len(shown.queries)), shown.queries, fontsize=6)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    head = shown.head
    fit = f"{share(head.best.share)} ({share(head.best.weight)})"
    title = f"{head.part}, layer {head.layer}, head {head.head}\n{_label(head)} {fit}"
    axes.set_title(title, fontsize=6)
    return image
