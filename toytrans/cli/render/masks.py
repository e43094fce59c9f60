"""The masks of one pair on one screen."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from toytrans.cli.common import plain, printable
from toytrans.cli.render.heat_maps import axis_names, grid_of
from toytrans.cli.render.tables import STYLES, print_beside
from toytrans.inspection.shown import ATTENTIONS, InspectedBatch
from toytrans.inspection.table import CLOSED
from toytrans.tokens import PAD_ID


def print_overview(console: Console, inspected: InspectedBatch, row: int) -> None:
    """The pair, its three masks side by side, and what to read off them."""
    blocks = [_block(inspected, *attention, row) for attention in ATTENTIONS.items()]
    pairs = len(inspected.batch.src)
    which = f"Pair {row + 1} of {pairs}" + (", the one with the most pads" if pairs > 1 else "")
    console.print(plain(f"{which}; {inspected.weights}"), soft_wrap=True)
    for name, ids in inspected.batch.named().items():
        symbols = " ".join(printable(symbol) for symbol in inspected.names(ids[row]))
        console.print(Text(f"{name:8} {symbols}"))
    console.print(Text())
    print_beside(console, blocks)
    console.print(Text())
    facts = " ".join(_facts(inspected, row))
    console.print(Text(f"1 = may attend, {CLOSED} = masked. {facts}"))


def _block(inspected: InspectedBatch, name: str, title: str, row: int) -> Text:
    """One mask, two columns a cell."""
    names = axis_names(inspected.vocabulary.symbols)
    queries, keys = ([names[i] for i in ids[row].tolist()] for ids in inspected.ids(name))
    reasons = [[x if x in "1!?" else CLOSED for x in line] for line in inspected.reasons(name)[row]]
    cells = [[(cell.ljust(2), STYLES.get(cell, "")) for cell in line] for line in reasons]
    return grid_of([Text(title, "bold")], queries, keys, cells, 2)


def _facts(inspected: InspectedBatch, row: int) -> Iterator[str]:
    """What the masks do right, or the cells that are wrong."""
    grids = {name: inspected.reasons(name)[row] for name in ATTENTIONS}
    cells = {name: [cell for line in grid for cell in line] for name, grid in grids.items()}
    wrong = {name: (each.count("!"), each.count("?")) for name, each in cells.items()}
    if any(opened or closed for opened, closed in wrong.values()):
        for name, (opened, closed) in wrong.items():
            title = ATTENTIONS[name]
            yield from [f"{title}: {opened} cells (!) are open on a pad or the future."] * (
                opened > 0
            )
            yield from [f"{title}: {closed} cells (?) are closed for no reason."] * (closed > 0)
        return
    pads = [
        int((ids[row] == PAD_ID).sum()) for ids in (inspected.batch.src, inspected.batch.tgt_in)
    ]
    if any(pads):
        yield f"No query sees a pad; src has {pads[0]}, tgt_in {pads[1]}."
    else:
        yield "The pair has no pads."
    yield "The decoder sees no later token. Cross-attention sees every real source token."
