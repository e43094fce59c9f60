"""Scores as tables: lengths in a few groups, each beside the training lengths, and what a notebook
shows of it."""

from collections.abc import Iterable
from itertools import count, groupby
from typing import NamedTuple

from toytrans.config.faults import fault_remark
from toytrans.html import Shown
from toytrans.scores import Scores, part_of

MOST_GROUPS = 25
"""Rows of lengths that a table may have."""

TABLE_CELLS = {
    "pairs": "{examples:,}",
    "free-running exact match": "{exact_match:.3f}",
    "95%": "{low:.3f}..{high:.3f}",
    "token accuracy": "{token_accuracy:.3f}",
    "loss": "{loss:.4f}",
}
"""What a table shows of a summary, by its headings."""


def table_of(scores: Scores) -> Shown:
    """The parts, and every group of lengths."""
    rows = scores.labelled()
    for low, high, _ in group_lengths(scores.lengths, scores.train_length):
        label = f"{low} to {high}" if low < high else f"length {low}"
        rows.append((label, scores.summary(low, high)))
    cells = [
        [label, *(cell.format(**summary) for cell in TABLE_CELLS.values())]
        for label, summary in rows
    ]
    return Shown(_title(scores), [""], list(TABLE_CELLS), rows=cells)


def _title(scores: Scores) -> str:
    """The run, its checkpoint, its fault if it has one, and the split."""
    about = scores.about
    if not about:
        return "scores"
    title = f"{about['run']}, step {about['checkpoint']}"
    if remark := fault_remark(about["fault"]):
        title += f"; {remark}"
    return f"{title}: {about['split']}"


class LengthGroup(NamedTuple):
    """Measured lengths low .. high, all of one part (a key of PARTS)."""

    low: int
    high: int
    part: str


def group_lengths(
    lengths: Iterable[int], train_length: tuple[int, int], most: int = MOST_GROUPS
) -> list[LengthGroup]:
    """Lengths in at most so many groups of 1, 2, 5, 10, 20, 50 and so on. No group crosses an end
    of the training lengths."""
    ordered = sorted(lengths)
    group_sizes = (digit * 10**power for power in count() for digit in (1, 2, 5))
    for size in group_sizes:
        keys = {n: (part_of(n, train_length), (n - 1) // size) for n in ordered}
        if len(set(keys.values())) <= most:
            break
    groups = []
    for (part, _), members in groupby(ordered, keys.__getitem__):
        group = list(members)
        groups.append(LengthGroup(group[0], group[-1], part))
    return groups
