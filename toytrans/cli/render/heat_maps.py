"""Heat maps of attention, in the terminal and in a file."""

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from io import BytesIO
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
from toytrans.cli.render.tables import fitting, has_unicode, print_beside, wrapped
from toytrans.errors import UserError, how_to_install
from toytrans.inspection.table import CLOSED
from toytrans.tokens import EOS_ID, PAD_ID, SPECIALS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure
    from rich.table import Table
    from torch import Tensor

    from toytrans.inspection.heads import AttentionMaps, HeadReport

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

DOTS = 150


# In the terminal ------------------------------------------------------------------------------


def print_maps(console: Console, maps: "AttentionMaps", draw: bool) -> None:
    """Print the maps if `draw`, one line per head, and the legend. Errors come before output."""
    on_screen, narrow = _Maps(maps, console.width), min(console.width, 100)
    drawn = list(on_screen.pairs()) if draw else []
    console.print(plain(fitting(maps.run.title)), soft_wrap=True)
    if draw:
        _print_dim(console, "; ".join(on_screen.legend()), narrow)
    for pair, parts in drawn:
        console.print(Text("\n") + plain(fitting(pair)), soft_wrap=True)
        for title, blocks in parts:
            console.print(Text("\n") + Text(title, "bold"), soft_wrap=True)
            print_beside(console, blocks)
    console.print(Text(), _table(maps.heads), Text(), sep="\n")
    counted = {head.part: head.queries for head in maps.heads}
    queries = ", ".join(f"{part} {count:,}" for part, count in counted.items())
    _print_dim(console, MEANING.format(basis=maps.basis, queries=queries), narrow)


def _print_dim(console: Console, text: str, width: int) -> None:
    for line in wrapped(text, width):
        console.print(Text(line, "dim"), soft_wrap=True)


def map_of(maps: "AttentionMaps", head: "HeadReport", row: int, width: int) -> Text:
    """The map of one head on one pair. Raises UserError where it does not fit the width."""
    weights, visible = next((w[row], a.visible[row]) for h, a, w in maps.maps() if h is head)
    return _Maps(maps, width).block(head, weights, visible, row)


def _pair(maps: "AttentionMaps", row: int) -> str:
    """A source and its translation."""
    src, tgt_out = maps.batch.src[row].tolist(), maps.batch.tgt_out[row].tolist()
    decode = maps.run.vocabulary.decode  # it stops at EOS and leaves BOS out
    text = "  ->  ".join(" ".join(decode(ids)) for ids in (src, tgt_out))
    return text if EOS_ID in tgt_out else f"{text}  (cut off: it did not end)"


def _tokens(
    maps: "AttentionMaps", head: "HeadReport", row: int, names: list[str]
) -> tuple[list[str], list[str], list[bool]]:
    """Queries and keys of one pair by their names, and which queries are pads."""
    from toytrans.inspection.heads import axes

    queries, keys = (ids[row].tolist() for ids in axes(head.part, maps.batch))
    return [names[i] for i in queries], [names[i] for i in keys], [i == PAD_ID for i in queries]


class _Maps:
    """Heat maps for a terminal of some width."""

    def __init__(self, maps: "AttentionMaps", width: int) -> None:
        self.maps, self.width = maps, width
        symbols = maps.run.vocabulary.symbols
        self.names, self.cut = axis_names(symbols)
        self.marks = tuple(self.names[: len(MARKS)])

    def pairs(self) -> Iterator[tuple[str, list[tuple[str, list[Text]]]]]:
        """Each pair, and the titles and maps of its parts. Raises UserError."""
        for row in range(len(self.maps.batch.src)):
            blocks: dict[str, list[Text]] = {}
            for head, attention, weights in self.maps.maps():
                block = self.block(head, weights[row], attention.visible[row], row)
                blocks.setdefault(TITLES[head.part], []).append(block)
            yield _pair(self.maps, row), list(blocks.items())

    def legend(self) -> Iterator[str]:
        if has_unicode():
            steps = zip(LEVELS, BLOCKS[1:], strict=True)
            scale = " ".join(f"< {level} <= {block}" for level, block in steps)
            yield f"weight: blank {scale}, {CLOSED} masked"
        else:
            yield "weight: in tenths, blank below 0.05, 9 from 0.85, . masked"
        yield "queries down, keys across; from one pass over the finished translation"
        if self.marks == MARKS:
            yield ", ".join(f"{mark} {name}" for mark, name in zip(MARKS, SPECIALS, strict=True))
        if self.cut:
            yield "~ letters left out"
        yield "below a label its share of the queries, and in brackets the mean weight there"
        if (largest := self.maps.largest_on_a_pad()) is not None:
            yield f"rows of pads are left out, the largest weight on a pad is {largest:.2g}"

    def block(self, head: "HeadReport", weights: "Tensor", visible: "Tensor", row: int) -> Text:
        """One head on one pair: weights and visible (Tq, Tk), below its label."""
        queries, keys, pads = _tokens(self.maps, head, row, self.names)
        left = max(map(cell_len, queries)) + 1
        cell = _cell_width(keys, self.width - left)
        lines = _title(head)
        lines += [Text(" " * left + letters) for letters in column_heads(keys, cell)]
        rows = zip(queries, pads, weights.tolist(), visible.tolist(), strict=True)
        for query, pad, values, allowed in rows:
            line = Text(" " * (left - 1 - cell_len(query)) + query + " ")
            for value, is_visible in zip(values, allowed, strict=True):
                line.append(*_shade(value, is_visible, cell))
            lines += [] if pad else [line]
        return Text("\n", no_wrap=True).join(lines)


def axis_names(symbols: Sequence[str]) -> tuple[list[str], bool]:
    """The names of all ids on an axis, and whether letters of one are left out."""
    texts = [fitting(printable(symbol)) for symbol in symbols]
    marks = SPECIALS if set(MARKS) & set(symbols) else MARKS
    return [*marks, *map(_cut, texts)], any(len(text) > LONGEST for text in texts)


def column_heads(keys: Sequence[str], cell: int) -> Iterator[str]:
    """Lines in which names stand upright above columns of a width."""
    tallest = max(map(len, keys))
    for letters in zip(*(key.rjust(tallest) for key in keys), strict=True):
        yield "".join(letter + " " * (cell - cell_len(letter)) for letter in letters)


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


def _shade(value: float, is_visible: bool, width: int) -> tuple[str, str]:
    """One cell and its style."""
    if not is_visible:
        return fitting(CLOSED).ljust(width), "dim"
    level = sum(value >= step for step in LEVELS)
    if has_unicode():
        return BLOCKS[level] * width, STYLES[level]
    tenths = str(min(9, int(10 * value + 0.5))) if level else ""
    return tenths.ljust(width), STYLES[level]


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


def check_plot(path: Path) -> None:
    """Raise UserError if no picture can be drawn into a file of that name."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"--plot {path}: end the name with .png or .svg")
    if not os.path.isdir(path.parent):
        raise UserError(f"--plot {path}: {path.parent} is no directory; make it, or name another")
    check_new("--plot", path)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError(
            f"--plot draws with matplotlib, which is not installed; {how_to_install('matplotlib')}"
        ) from None


def draw(path: Path, maps: "AttentionMaps") -> None:
    """Draw all maps in one picture: a block per pair, a row per layer, a column per head."""
    import matplotlib.style
    from matplotlib.figure import Figure

    heads, layers = max(len(each.heads) for each in maps.attentions), len(maps.attentions)
    src, tgt_in, _ = maps.batch
    side = max(1.9, INCHES * max(src.shape[1], tgt_in.shape[1]))
    block, pairs = layers * (side + 0.7) + 0.5, len(src)
    if pairs * block > TALLEST:
        raise UserError(
            f"--plot {path}: {pairs} x {layers} rows of maps are too many for one "
            "picture; choose with --part, --layer or --head, or give fewer sequences"
        )
    plain_text = matplotlib.style.context(
        ["default", {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "toytrans"}]
    )
    with plain_text, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = Figure((heads * (side + 0.5) + 1.2, pairs * block + 0.4), layout="constrained")
        for row, part in enumerate(figure.subfigures(pairs, 1, squeeze=False)[:, 0]):
            _draw_pair(part, maps, row, heads)
        title = f"{maps.run.title}; labels measured on {maps.basis}"
        figure.suptitle(printable(title), fontsize=8)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        picture = BytesIO()
        figure.savefig(picture, dpi=DOTS, metadata=metadata, format=path.suffix[1:].lower())
    write_new("--plot", path, picture.getvalue())
    if any("missing from" in str(warning.message) for warning in caught):
        note("the font lacks some symbols; a .svg shows them where the viewer has a font for them")


def _draw_pair(part: "SubFigure", maps: "AttentionMaps", row: int, heads: int) -> None:
    """Draw one pair: a row for each attention, a column for each of its heads."""
    part.suptitle(printable(_pair(maps, row)), fontsize=9, fontweight="bold")
    grid = part.subplots(len(maps.attentions), heads, squeeze=False)
    names = [*SPECIALS, *(_cut(printable(symbol)) for symbol in maps.run.vocabulary.symbols)]
    for axes, (head, attention, weights) in zip(grid.flat, maps.maps(), strict=True):
        queries, keys, pads = _tokens(maps, head, row, names)
        real = [place for place, pad in enumerate(pads) if not pad]
        cells = weights[row][real].masked_fill(~attention.visible[row][real], float("nan"))
        image = _draw_map(axes, cells.tolist(), [queries[place] for place in real], keys)
        fit = f"{share(head.best.share)} ({share(head.best.weight)})"
        title = f"{head.part}, layer {head.layer}, head {head.head}\n{_label(head)} {fit}"
        axes.set_title(title, fontsize=6)
    part.colorbar(image, ax=grid, fraction=0.02, label="weight; grey: masked")


def _draw_map(axes: "Axes", cells: list[list[float]], queries: list[str], keys: list[str]) -> Any:
    """Draw cells (Tq, Tk), NaN where masked; queries down, keys across."""
    image = axes.imshow(cells, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axes.set_facecolor("lightgrey")
    axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=6)
    axes.set_yticks(range(len(queries)), queries, fontsize=6)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    return image
