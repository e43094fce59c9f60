"""Heat maps of attention, in the terminal and in a file."""

import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from toytrans.cli.common import broken, check_new, note, plain, printable, share, write_new
from toytrans.cli.render.results import interval
from toytrans.cli.render.tables import CLOSED, GAP, fitting, has_unicode
from toytrans.errors import UserError
from toytrans.tokens import EOS_ID, PAD_ID, SPECIALS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure
    from rich.table import Table
    from torch import Tensor

    from toytrans.data.batches import Batch
    from toytrans.insight.attention.heads import Head, Seen
    from toytrans.training.run import Run

LEVELS = (0.05, 0.25, 0.5, 0.75)
"""Weights at which a darker block begins."""

BLOCKS = " ░▒▓█"
STYLES = ("", "blue", "cyan", "magenta", "bold")
MARKS = ("_", "^", "$")
"""PAD, BOS and EOS on the axes, unless a symbol is one of these."""

LONGEST = 8
"""Letters of a token on an axis."""

WORDS = {
    "encoder": "Encoder self-attention: the source down and across",
    "decoder": "Decoder self-attention: the tokens read down and across",
    "cross": "Cross-attention: the tokens said down, the source across",
}
MEANING = """\
measured on {basis}. share: of the queries that are a symbol (in the decoder read, in
cross-attention said; {queries}), those whose largest weight is on the key of the rule; weight: the
mean one there; chance: the share of a key picked at random. mirror place: n + 1 - t of n symbols;
before and after mirror: the places beside it.
no rule: the interval of the best rule is not above the middle between chance and 1"""

INCHES = 0.19
"""Side of a drawn cell."""

TALLEST = 400
"""Inches of a drawing; at DOTS an inch a PNG has room for 436."""

DOTS = 150


@dataclass(frozen=True)
class Found:
    """A run's translations of a batch, the weights on the way, what each head does, and what that
    was measured on."""

    run: "Run"
    batch: "Batch"
    seen: "list[Seen]"
    heads: "list[Head]"
    basis: str

    def maps(self) -> "Iterator[tuple[Head, Seen, Tensor]]":
        """Each head, its attention, and its weights (B, Tq, Tk)."""
        of = {(seen.part, seen.layer): seen for seen in self.seen}
        for head in self.heads:
            seen = of[head.part, head.layer]
            yield head, seen, seen.weights[:, seen.heads.index(head.head)]

    def pair(self, row: int) -> str:
        """A source and what was said to it."""
        src, said = self.batch.src[row].tolist(), self.batch.tgt_out[row].tolist()
        vocabulary = self.run.vocabulary
        # decode stops at EOS, and begins past BOS
        text = "  ->  ".join(" ".join(vocabulary.decode(ids)) for ids in (src, said))
        return text if EOS_ID in said else f"{text}  (cut off: it did not end)"

    def tokens(
        self, head: "Head", row: int, names: list[str]
    ) -> tuple[list[str], list[str], list[bool]]:
        """Queries and keys of one pair by their names, and which queries are pads."""
        from toytrans.insight.attention.heads import axes

        queries, keys = (ids[row].tolist() for ids in axes(head.part, self.batch))
        return [names[i] for i in queries], [names[i] for i in keys], [i == PAD_ID for i in queries]

    def largest_on_a_pad(self) -> float | None:
        """The largest weight that a token which is no pad puts on one; None without pads."""
        from toytrans.insight.attention.heads import axes

        largest = []
        for head, _, weights in self.maps():
            queries, keys = axes(head.part, self.batch)
            cells = (queries != PAD_ID)[:, :, None] & (keys == PAD_ID)[:, None]
            largest += [float(weights[cells].max())] if bool(cells.any()) else []
        return max(largest, default=None)

    def document(self) -> dict[str, Any]:
        """Everything as plain values; ids and weights with their pads."""
        about = {"run": str(self.run.path), "checkpoint": self.run.step}
        ids = {name: found.tolist() for name, found in self.batch.named().items()}
        heads = [head.document() | {"weights": w.tolist()} for head, _, w in self.maps()]
        rest = {"fault": self.run.config.fault, "measured_on": self.basis, "heads": heads}
        return about | ids | rest


# In the terminal ------------------------------------------------------------------------------

Block = list[Text]
"""Lines of one width."""


def print_maps(console: Console, found: Found, maps: bool) -> None:
    """The maps, a line a head, and what its numbers mean; all of it is made before any is shown."""
    lines = list(_Maps(found, console.width).lines()) if maps else []
    title = f"{found.run.path}, step {found.run.step}{broken(found.run.config.fault)}"
    console.print(plain(fitting(title)), soft_wrap=True)
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print(Text(), _table(found.heads), Text(), sep="\n")
    counted = {head.part: head.queries for head in found.heads}
    queries = ", ".join(f"{part} {count:,}" for part, count in counted.items())
    meaning = MEANING.format(basis=found.basis, queries=queries)
    for text in _wrapped(meaning, console.width):
        console.print(Text(text, "dim"), soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, max(20, min(width, 100)), break_on_hyphens=False)


class _Maps:
    """Heat maps for a terminal of some width."""

    def __init__(self, found: Found, width: int) -> None:
        self.found, self.width = found, width
        symbols = found.run.vocabulary.symbols
        texts = [fitting(printable(symbol)) for symbol in symbols]
        self.cut = any(len(text) > LONGEST for text in texts)
        self.marks = SPECIALS if set(MARKS) & set(symbols) else MARKS
        self.names = [*self.marks, *map(_cut, texts)]

    def lines(self) -> Iterator[Text]:
        """How to read the maps; then those of each pair, part by part, as many beside each other
        as fit."""
        for text in _wrapped("; ".join(self._legend()), self.width):
            yield Text(text, "dim")
        for row in range(len(self.found.batch.src)):
            yield from (Text(), plain(fitting(self.found.pair(row))))
            for part, words in WORDS.items():
                blocks = [
                    self._block(head, weights[row], seen.visible[row], row)
                    for head, seen, weights in self.found.maps()
                    if head.part == part
                ]
                if blocks:
                    yield from (Text(), Text(words, "bold"))
                    yield from _beside(blocks, self.width)

    def _legend(self) -> Iterator[str]:
        if has_unicode():
            steps = zip(LEVELS, BLOCKS[1:], strict=True)
            scale = " ".join(f"< {level} <= {block}" for level, block in steps)
            yield f"weight: blank {scale}, {CLOSED} closed"
        else:
            yield "weight: in tenths, blank below 0.05, 9 from 0.85, . closed"
        yield "queries down, keys across; from one pass over the finished translation"
        if self.marks == MARKS:
            yield ", ".join(f"{mark} {name}" for mark, name in zip(MARKS, SPECIALS, strict=True))
        if self.cut:
            yield "~ letters left out"
        yield "below a label its share of the queries, and in brackets the mean weight there"
        if (largest := self.found.largest_on_a_pad()) is not None:
            yield f"rows of pads are left out, the largest weight on a pad is {largest:.2g}"

    def _block(self, head: "Head", weights: "Tensor", visible: "Tensor", row: int) -> Block:
        """One head on one pair: weights and visible (Tq, Tk), under its label."""
        queries, keys, pads = self.found.tokens(head, row, self.names)
        left = max(map(cell_len, queries)) + 1
        cell = _cell_width(keys, self.width - left)
        lines, tallest = _title(head), max(map(len, keys))
        for letters in zip(*(key.rjust(tallest) for key in keys), strict=True):
            cells = (letter + " " * (cell - cell_len(letter)) for letter in letters)
            lines.append(Text(" " * left + "".join(cells)))
        cells_of = zip(queries, pads, weights.tolist(), visible.tolist(), strict=True)
        for query, pad, values, opened in cells_of:
            line = Text(" " * (left - 1 - cell_len(query)) + query + " ")
            for value, is_open in zip(values, opened, strict=True):
                line.append(*_shade(value, is_open, cell))
            lines += [] if pad else [line]
        widest = max(line.cell_len for line in lines)
        for line in lines:
            line.pad_right(widest - line.cell_len)
        return lines


def _cut(name: str) -> str:
    """A long name without its middle: names that differ mostly do so at an end."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}~{name[1 - half :]}"


def _cell_width(keys: list[str], room: int) -> int:
    """Columns of a cell: 2, or 1 where only that fits. Raises UserError."""
    narrowest = max(cell_len(letter) for key in keys for letter in key)
    for cell in (2, 1):
        if narrowest <= cell and len(keys) * cell <= room:
            return cell
    raise UserError(
        f"{len(keys)} tokens do not fit the {room} columns that are left for them; shorten the "
        "sequence, widen the terminal (or set COLUMNS), or take --plot FILE.svg or --json"
    )


def _title(head: "Head") -> Block:
    """Which head, what it does and how surely; where no rule holds, the nearest one."""
    best = head.best
    numbers = f"{share(best.share)} ({share(best.weight)})"
    if not head.queries:
        numbers = "no queries"
    elif not best.holds:
        numbers = f"{best.rule} {best.share:.2f}"
    return [
        Text(f"layer {head.layer} head {head.head}"),
        Text(head.label, "bold" if best.holds else "dim"),
        Text(numbers, "dim"),
    ]


def _words(head: "Head") -> str:
    """The label; where no rule holds, with the nearest one."""
    if head.best.holds or not head.queries:
        return head.label
    return f"{head.label}: {head.best.rule}"


def _shade(value: float, is_open: bool, width: int) -> tuple[str, str]:
    """One cell and its style."""
    if not is_open:
        return fitting(CLOSED).ljust(width), "dim"
    level = sum(value >= step for step in LEVELS)
    if has_unicode():
        return BLOCKS[level] * width, STYLES[level]
    tenths = str(min(9, int(10 * value + 0.5))) if level else ""
    return tenths.ljust(width), STYLES[level]


def _beside(blocks: list[Block], width: int) -> Iterator[Text]:
    """Blocks from left to right, and an empty line before those that go on below."""
    while blocks:
        count, used = 1, blocks[0][0].cell_len
        while count < len(blocks):
            used += len(GAP) + blocks[count][0].cell_len
            if used > width:
                break
            count += 1
        beside, blocks = blocks[:count], blocks[count:]
        for parts in zip(*beside, strict=True):
            line = Text(GAP).join(parts)
            line.rstrip()
            yield line
        if blocks:
            yield Text()


def _table(heads: "list[Head]") -> "Table":
    """A line a head: the rule that fits it best, and how well."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("part", "layer", "head", "what it does"):
        table.add_column(heading, no_wrap=True)
    for heading in ("share", "95%", "weight", "chance"):
        table.add_column(heading, justify="right", no_wrap=True)
    for head in heads:
        best = head.best
        numbers = (share(best.share), interval(asdict(best)), share(best.weight))
        table.add_row(
            *(head.part, str(head.layer), str(head.head)),
            Text(_words(head), "bold" if best.holds else "dim"),
            *(numbers if head.queries else "---"),
            f"{best.chance:.3f}" if head.queries else "-",
        )
    return table


# In a file ------------------------------------------------------------------------------------


def check_plot(path: Path) -> None:
    """Raises UserError where nothing can be drawn into a file of that name."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"--plot {path}: end the name with .png or .svg")
    if not os.path.isdir(path.parent):
        raise UserError(f"--plot {path}: {path.parent} is no directory; make it, or name another")
    check_new("--plot", path)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError(
            "--plot draws with matplotlib, which is not installed; pip install 'toytrans[plot]'"
        ) from None


def draw(path: Path, found: Found) -> None:
    """All maps in one picture: a block a pair, in it a row a layer, in that a column a head."""
    import matplotlib
    from matplotlib.figure import Figure

    heads = max(len(seen.heads) for seen in found.seen)
    src, tgt_in, _ = found.batch
    side = max(1.9, INCHES * max(src.shape[1], tgt_in.shape[1]))
    block = len(found.seen) * (side + 0.7) + 0.5
    pairs = len(src)
    if pairs * block > TALLEST:
        raise UserError(
            f"--plot {path}: {pairs} x {len(found.seen)} rows of maps are too many for one "
            "picture; choose with --part, --layer or --head, or give fewer sequences"
        )
    plain_text = matplotlib.rc_context(
        {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "toytrans"}
    )
    with plain_text, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        figure = Figure((heads * (side + 0.5) + 1.2, pairs * block + 0.4), layout="constrained")
        for row, part in enumerate(figure.subfigures(pairs, 1, squeeze=False)[:, 0]):
            _draw_pair(part, found, row, heads)
        about = f"{found.run.path}, step {found.run.step}{broken(found.run.config.fault)}"
        figure.suptitle(printable(f"{about}; labels measured on {found.basis}"), fontsize=8)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        drawn = BytesIO()
        figure.savefig(drawn, dpi=DOTS, metadata=metadata, format=path.suffix[1:].lower())
    write_new("--plot", path, drawn.getvalue())
    if any("missing from" in str(warning.message) for warning in said):
        note("the font lacks some symbols; a .svg shows them where the viewer has a font for them")


def _draw_pair(part: "SubFigure", found: Found, row: int, heads: int) -> None:
    """One pair: a row for each attention, a column for each of its heads."""
    part.suptitle(printable(found.pair(row)), fontsize=9, fontweight="bold")
    grid = part.subplots(len(found.seen), heads, squeeze=False)
    names = [*SPECIALS, *(_cut(printable(symbol)) for symbol in found.run.vocabulary.symbols)]
    for axes, (head, seen, weights) in zip(grid.flat, found.maps(), strict=True):
        queries, keys, pads = found.tokens(head, row, names)
        real = [place for place, pad in enumerate(pads) if not pad]
        cells = weights[row][real].masked_fill(~seen.visible[row][real], float("nan"))
        image = _draw_map(axes, cells.tolist(), [queries[place] for place in real], keys)
        numbers = f"{share(head.best.share)} ({share(head.best.weight)})"
        title = f"{head.part}, layer {head.layer}, head {head.head}\n{_words(head)} {numbers}"
        axes.set_title(title, fontsize=6)
    part.colorbar(image, ax=grid, fraction=0.02, label="weight; grey: closed")


def _draw_map(axes: "Axes", cells: list[list[float]], queries: list[str], keys: list[str]) -> Any:
    """Cells (Tq, Tk), NaN where closed; queries down, keys across."""
    image = axes.imshow(cells, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axes.set_facecolor("lightgrey")
    axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=6)
    axes.set_yticks(range(len(queries)), queries, fontsize=6)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    return image
