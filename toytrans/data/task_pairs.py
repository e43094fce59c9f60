"""What a task is, and the pairs of one.

A task works on symbols numbered from 0; `TaskPairs` turns them into ids and deals out the splits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from toytrans.config.schema import DataConfig
from toytrans.data.hashing import draw, fingerprint, mix, row_keys
from toytrans.data.pairs import SPLITS, DataFacts, Pairs, Sequences, Split, longest_of, padded
from toytrans.errors import UserError
from toytrans.tokens import FIRST_SYMBOL_ID, Vocabulary

HELD_OUT_ONE_IN = 16
"""One source in 16 belongs to valid, one in 16 to test, the others to train."""

FEWEST_SOURCES = 10_000
"""Lengths with fewer possible sources than this are shared by all splits."""

LONG_ENOUGH = 14
"""Sources are counted as if none were longer: 2^14 is more than FEWEST_SOURCES."""

MOST_TRIES = 600
"""Sources that are drawn for one pair before the task is refused: one in 16 should do."""

ZIPF_EXPONENT = 1.3
"""The k-th most frequent symbol of a sentence has a share in proportion to k^-ZIPF_EXPONENT."""

_WHOLE = 2**53
"""Numbers below it are looked up in a table of cumulative shares. The table too has whole numbers,
so that draws are the same on every device."""


def numbers(symbols: int, seed: int) -> Vocabulary:
    return Vocabulary(tuple(str(k) for k in range(symbols)))


def uniform_length(keys: Tensor, span: tuple[int, int]) -> Tensor:
    low, high = span
    return low + draw(keys, 1, high - low + 1)


def uniform_symbols(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
    length = shape[:, 0]
    return draw(keys, longest_of(length), symbols), length


def normal_length(keys: Tensor, span: tuple[int, int]) -> Tensor:
    """Lengths (N, 1) around half of the span's end, a tenth of it their standard deviation.

    A normal number is rounded up, and what falls outside the span goes to its nearer end.
    """
    low, high = span
    normal = NormalDist(high / 2, max(high, 1) / 10)
    shares = torch.tensor([normal.cdf(n) for n in range(low, high)], dtype=torch.float64)
    return low + _looked_up(draw(keys, 1, _WHOLE), shares)


def zipf_symbols(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
    """Symbols in the order of their frequency, 0 the most frequent; shape (N, 1) holds lengths."""
    length = shape[:, 0]
    shares = torch.arange(1, symbols + 1, dtype=torch.float64).pow(-ZIPF_EXPONENT).cumsum(0)
    numbers = draw(keys, longest_of(length), _WHOLE)
    return _looked_up(numbers, (shares / shares[-1])[:-1]), length


def _looked_up(numbers: Tensor, shares: Tensor) -> Tensor:
    """How many of the cumulative shares (fp64, ascending) each number, a share of 2^53, reaches."""
    table = (shares * _WHOLE).long().to(numbers.device)
    return torch.searchsorted(table, numbers, right=True)


def power(symbols: int, length: int) -> int:
    """symbols^length, as far as LONG_ENOUGH."""
    return int(symbols ** min(length, LONG_ENOUGH))


def compacted(values: Tensor, kept: Tensor) -> Sequences:
    """Of each row of values (N, W) those that are kept, (N, W) bool, in their order."""
    place = kept.cumsum(1).masked_fill(~kept, 0)
    rows = values.new_zeros(len(values), values.shape[1] + 1)
    rows.scatter_(1, place, values)  # place 0 collects the others
    length = kept.sum(1)
    return rows[:, 1 : 1 + longest_of(length)], length


@dataclass(frozen=True)
class Task:
    """A rule in words and in tensors; all but the targets have a usual form.

    targets(src, length, symbols, seed) -> Sequences.
    vocabulary(symbols, seed) -> the names of symbols.
    draw_shape(keys, span) -> what fixes a source's length, (N, k), k = 1 for the length alone.
    sources(keys, shape, symbols) -> Sequences.
    count(symbols, length) -> how many sources of a length there are, as far as LONG_ENOUGH.
    """

    rule: str
    targets: Callable[[Tensor, Tensor, int, int], Sequences]
    vocabulary: Callable[[int, int], Vocabulary] = numbers
    draw_shape: Callable[[Tensor, tuple[int, int]], Tensor] = uniform_length
    sources: Callable[[Tensor, Tensor, int], Sequences] = uniform_symbols
    count: Callable[[int, int], int] = power


class TaskPairs:
    """The pairs of a synthetic task. Pair i of a split depends on (seed, split, i) alone."""

    def __init__(self, task: Task, data: DataConfig, seed: int) -> None:
        assert data.symbols and data.train_length
        self.task, self.symbols, self.seed, self.disjoint = task, data.symbols, seed, data.disjoint
        self.facts = DataFacts(task.vocabulary(data.symbols, seed), data.train_length)
        self._spans, self._sizes = data.lengths, data.examples
        longest = max(high for _, high in data.lengths.values())
        counts = [task.count(data.symbols, n) for n in range(longest + 1)]
        self._shared = torch.tensor([count < FEWEST_SOURCES for count in counts])
        self.notes = tuple(self._note_shared(counts))

    def _note_shared(self, counts: list[int]) -> list[str]:
        low, high = self.facts.train_length
        shared = [n for n in range(low, high + 1) if 0 < counts[n] < FEWEST_SOURCES]
        if not self.disjoint:
            return ["data.disjoint is false: a source may be in several splits"]
        if not shared:
            return []
        span = f"{shared[0]}" if len(shared) == 1 else f"{shared[0]} to {shared[-1]}"
        return [
            f"length {span}: fewer than {FEWEST_SOURCES:,} possible sources, so all splits share "
            "them; longer sources belong to one split each"
        ]

    def size(self, split: Split) -> int | None:
        return self._sizes[split]

    def pairs(self, split: Split, indices: Tensor) -> Pairs:
        """The pairs at some indices (N,) of a split, whatever else is asked for."""
        src, src_length = self.sources(split, indices)
        tgt, tgt_length = self.task.targets(src, src_length, self.symbols, self.seed)
        return Pairs(
            padded(src + FIRST_SYMBOL_ID, src_length),
            src_length,
            padded(tgt + FIRST_SYMBOL_ID, tgt_length),
            tgt_length,
        )

    def samples(self, count: int) -> list[tuple[list[str], list[str]]]:
        """Symbols of a few training pairs, those with about six source symbols first."""
        pairs = self.pairs("train", torch.arange(4 * count))
        pairs = pairs.take((pairs.src_length - 6).abs().argsort(stable=True)[:count])
        decode = self.facts.vocabulary.decode
        sides = pairs.src.tolist(), pairs.tgt.tolist()
        return [(decode(src), decode(tgt)) for src, tgt in zip(*sides, strict=True)]

    def sources(self, split: Split, indices: Tensor) -> Sequences:
        """Symbols of the sources at some indices (N,) of a split.

        Each is drawn until it belongs to the split; its length is drawn only once.
        """
        keys = row_keys(indices, self.seed, SPLITS.index(split))
        shape = self.task.draw_shape(keys, self._spans[split])
        src, length = self.task.sources(mix(keys), shape, self.symbols)
        waiting = (~self._belongs(src, length, split)).nonzero()[:, 0]
        tried = 1
        while len(waiting):
            tries = min(64, max(1, 2048 // len(waiting)))
            numbers = torch.arange(tried, tried + tries, device=keys.device)
            attempts = mix(keys[waiting, None] + numbers).flatten()
            again, again_length = self.task.sources(
                mix(attempts), shape[waiting].repeat_interleave(tries, 0), self.symbols
            )
            good = self._belongs(again, again_length, split).view(-1, tries)
            drawn = good.any(1)
            first = good.int().argmax(1) + torch.arange(len(waiting), device=keys.device) * tries
            src[waiting[drawn], : again.shape[1]] = again[first[drawn]]
            length[waiting[drawn]] = again_length[first[drawn]]
            waiting, tried = waiting[~drawn], tried + tries
            if tried > MOST_TRIES and len(waiting):
                raise UserError(
                    f"data.task: draws too few different sources of {int(length[waiting[0]])} "
                    f"symbols to keep the {split} data apart; take longer ones, or data.disjoint: "
                    "false"
                )
        return src, length

    def _belongs(self, src: Tensor, length: Tensor, split: Split) -> Tensor:
        """Which sources (N, S) a split may use: (N,) bool."""
        if not self.disjoint:
            return torch.ones_like(length, dtype=torch.bool)
        lot = fingerprint(src, length, self.seed) % HELD_OUT_ONE_IN
        mine = {"train": lot > 1, "valid": lot == 0, "test": lot == 1}[split]
        self._shared = self._shared.to(length.device)
        return mine | self._shared[length]
