"""What was counted of some pairs, and its sums: the numbers of all of them, or of some lengths.

Counts stay those of single pairs until somebody asks for the numbers of some lengths. Everything is
summed then, and divided once at the end, so that numbers of any lengths fit together.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any, NamedTuple

from torch import Tensor

from toytrans.data.pairs import Side
from toytrans.metrics import ALL_OR_NOTHING, COUNTS, OF_PAIRS

PARTS = {"below": "below", "in_range": "in range", "beyond": "beyond"}
"""Where lengths lie beside the training lengths: key and label."""

MOST_SPANS = 50
"""Each length has numbers of its own, as long as there are no more than so many."""

Z_975 = 1.959963984540054
"""The 97.5% point of the normal distribution."""

Numbers = dict[str, Any]
"""The counts of some pairs and every metric of theirs, by name; a metric is None where there is
nothing that it could be divided by. free_less_forced_exact_match compares both over the pairs that
were decoded. intervals: the 95% interval of Wilson of each share of pairs."""

Columns = dict[str, Tensor]


@dataclass
class Scores:
    """What was counted of N pairs.

    columns: (N,) for each count and each metric, by name; those of free-running are 0 where a pair
    was not decoded. `length` is that of its source, or of its target. losses: nats, summed over the
    pairs of each length. train_length: the shortest and the longest training sequence. side: whose
    length counts.
    """

    columns: Columns
    losses: dict[int, float]
    train_length: tuple[int, int]
    side: Side = "src"

    @property
    def lengths(self) -> list[int]:
        """The lengths that there are."""
        return sorted(self.losses)

    def numbers(self, low: int = 0, high: int | None = None) -> Numbers:
        """The numbers of the pairs of lengths low to high; None = of all from low on."""
        lengths = self.columns["length"]
        chosen = lengths >= low
        if high is not None:
            chosen &= lengths <= high
        columns = {name: column[chosen] for name, column in self.columns.items()}
        sums = {name: float(column.sum()) for name, column in columns.items()}
        loss = sum(self.losses[n] for n in self.lengths if low <= n and (high is None or n <= high))
        numbers: Numbers = {name: int(sums[name]) for name in COUNTS}
        for name, metric in OF_PAIRS.items():
            total = loss if metric.count is None else sums[name]
            numbers[name] = metric.value(total, sums[metric.per])
        forced = float((columns["forced_exact_match"] * columns["decoded"]).sum())
        difference = sums["free_exact_match"] - forced
        numbers["free_less_forced_exact_match"] = (
            difference / sums["decoded"] if sums["decoded"] else None
        )
        numbers["intervals"] = {
            name: wilson_interval(sums[name], sums[metric.per])
            for name, metric in OF_PAIRS.items()
            if metric.form == ALL_OR_NOTHING
        }
        return numbers

    def part_of(self, length: int) -> str:
        """Where a length lies beside the training lengths: a key of PARTS."""
        return part_of(length, self.train_length)

    def parts(self) -> dict[str, Numbers]:
        """The numbers below, in and beyond the training lengths, where there are pairs; and of all
        pairs, as "all"."""
        low, high = self.train_length
        spans = {"below": (0, low - 1), "in_range": (low, high), "beyond": (high + 1, None)}
        found = {part: self.numbers(*span) for part, span in spans.items()}
        return {part: numbers for part, numbers in found.items() if numbers["pairs"]} | {
            "all": self.numbers()
        }


def part_of(length: int, train_length: tuple[int, int]) -> str:
    """The key of PARTS for a length."""
    low, high = train_length
    if length < low:
        return "below"
    return "beyond" if length > high else "in_range"


class Span(NamedTuple):
    """Lengths low to high, all of one part (a key of PARTS)."""

    low: int
    high: int
    part: str

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def spans_of(lengths: Iterable[int], train_length: tuple[int, int]) -> list[Span]:
    """Lengths in at most MOST_SPANS spans of 1, 2, 5, 10, 20, 50 and so on. No span crosses an end
    of the training lengths."""
    ordered = sorted(lengths)
    sizes = (digit * 10**power for power in count() for digit in (1, 2, 5))
    for size in sizes:
        keys = {n: (part_of(n, train_length), (n - 1) // size) for n in ordered}
        if len(set(keys.values())) <= MOST_SPANS:
            break
    spans = []
    for (part, _), members in groupby(ordered, keys.__getitem__):
        span = list(members)
        spans.append(Span(span[0], span[-1], part))
    return spans


def wilson_interval(right: float, total: float) -> tuple[float, float]:
    """The 95% score interval of a share (Wilson 1927); (0, 1) where nothing was counted."""
    if total == 0:
        return 0.0, 1.0
    z = Z_975
    share = right / total
    middle = share + z * z / (2 * total)
    half = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    scale = 1 + z * z / total
    low, high = (middle - half) / scale, (middle + half) / scale
    return max(0.0, min(low, share)), min(1.0, max(high, share))  # whatever rounding does
