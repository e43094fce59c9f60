"""What a task is, and the pairs of one.

A task works on symbols numbered from 0; `TaskDataset` turns them into ids and deals out the splits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toytrans.config.schema import DataSettings
from toytrans.data.hashing import draw, fingerprint, mix, row_keys
from toytrans.data.pairs import (
    SPLITS,
    DataFacts,
    Pairs,
    Sequences,
    Span,
    Split,
    longest_of,
    pad_after,
)
from toytrans.errors import UserError
from toytrans.tokens import FIRST_SYMBOL_ID, Vocabulary

HELD_OUT_ONE_IN = 16
"""One source in 16 belongs to valid, one in 16 to test, the others to train."""

FEWEST_SOURCES = 10_000
"""Lengths with fewer possible sources than this are shared by all splits."""

LONG_ENOUGH = 14
"""There are enough sources of so many symbols, since 2^14 is more than FEWEST_SOURCES. How many
there are of longer ones might have thousands of digits, and is not computed."""

MOST_TRIES = 600
"""Sources that are drawn for one pair before the task is refused: one in 16 should do."""

TRIED_LENGTHS, TRIED_PAIRS = 256, 4096
"""To learn how long targets become, so many pairs are drawn, evenly of at most so many lengths."""

# The usual forms of what a task consists of -----------------------------------------------------


def number_names(symbols: int, seed: int) -> Vocabulary:
    """Symbols that are called 0, 1, 2, ..."""
    return Vocabulary(tuple(str(k) for k in range(symbols)))


def uniform_length(keys: Tensor, span: Span) -> Tensor:
    """Lengths (N, 1), each as likely as the others."""
    low, high = span
    return low + draw(keys, 1, high - low + 1)


def uniform_symbols(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
    """Sources whose symbols are each as likely as the others; shape (N, 1) holds their lengths."""
    length = shape[:, 0]
    return draw(keys, longest_of(length), symbols), length


def power(symbols: int, length: int) -> int:
    """How many sources of a length there are, if any symbols may follow each other; of lengths
    above LONG_ENOUGH, enough."""
    return int(symbols ** min(length, LONG_ENOUGH))


# A task, and its pairs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A rule in words and in tensors, and its limits; all but the targets have a usual form.

    targets(src, length, symbols, seed) -> Sequences.
    vocabulary(symbols, seed) -> the names of symbols.
    draw_shape(keys, span) -> what fixes a source's length, (N, k), k = 1 for the length alone.
    sources(keys, shape, symbols) -> Sequences.
    count(symbols, length) -> how many sources of a length there are. Where these are FEWEST_SOURCES
        or more, any number from there on will do.
    growth, extra: a source of n symbols has at most growth n + extra target symbols.
    shortest: symbols of the shortest source.
    symbols: how many a config has that does not say it.
    fewest_symbols: there are no numbers in base 1, for example.
    """

    rule: str
    targets: Callable[[Tensor, Tensor, int, int], Sequences]
    vocabulary: Callable[[int, int], Vocabulary] = number_names
    draw_shape: Callable[[Tensor, Span], Tensor] = uniform_length
    sources: Callable[[Tensor, Tensor, int], Sequences] = uniform_symbols
    count: Callable[[int, int], int] = power
    growth: int = 1
    extra: int = 0
    shortest: int = 0
    symbols: int = 10
    fewest_symbols: int = 1


class TaskDataset:
    """The pairs of a synthetic task. Pair i of a split depends on (seed, split, i) alone."""

    def __init__(self, task: Task, data: DataSettings, seed: int) -> None:
        assert data.symbols and data.train_length
        self.task, self.symbols, self.seed, self.disjoint = task, data.symbols, seed, data.disjoint
        vocabulary = task.vocabulary(data.symbols, seed)
        self.facts = DataFacts(vocabulary, data.train_length, max(2, task.growth))
        self.spans, self._sizes = data.lengths, data.examples
        self._counts: dict[int, int] = {}
        self.notes = tuple(self._notes())

    def _notes(self) -> list[str]:
        low, high = self.facts.train_length
        if not self.disjoint:
            return ["data.disjoint is false: a source may be in several splits"]
        shared = [n for n in range(low, high + 1) if 0 < self.count(n) < FEWEST_SOURCES]
        if not shared:
            return []
        span = f"{shared[0]}" if len(shared) == 1 else f"{shared[0]} to {shared[-1]}"
        return [
            f"length {span}: fewer than {FEWEST_SOURCES:,} possible sources, so all splits share "
            "them; longer sources belong to one split each"
        ]

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"train": self.facts.train_sha256} if self.facts.train_sha256 else {}

    def size(self, split: Split) -> int | None:
        return self._sizes[split]

    def pairs(self, split: Split, indices: Tensor, span: Span | None = None) -> Pairs:
        """The pairs at some indices (N,) of a split, whatever else is asked for.

        span: lengths of their sources; None = those of the split.
        """
        src, length = self.sources(split, indices, span)
        return self._pairs_of(src, length)

    def pairs_of_every_length(self) -> Pairs:
        """Training pairs of each length of a source, so that the largest batch can be foreseen.

        If the lengths are more than `TRIED_LENGTHS`, they are taken at equal steps, both ends too.
        """
        low, high = self.facts.train_length
        spread = torch.linspace(low, high, TRIED_LENGTHS).round().long().unique().tolist()
        lengths = [n for n in spread if self.count(n)]
        of_one_length = torch.arange(TRIED_PAIRS // len(lengths))
        keys = row_keys(of_one_length, self.seed, SPLITS.index("train"))
        shapes = torch.cat([self.task.draw_shape(keys, (n, n)) for n in lengths])
        src, length = self._draw(keys.repeat(len(lengths)), shapes, "train")
        return self._pairs_of(src, length)

    def sources(self, split: Split, indices: Tensor, span: Span | None = None) -> Sequences:
        """The sources at some indices (N,) of a split, in symbols of the task; span as above."""
        keys = row_keys(indices, self.seed, SPLITS.index(split))
        return self._draw(keys, self.task.draw_shape(keys, span or self.spans[split]), split)

    def samples(self, count: int) -> list[tuple[list[str], list[str]]]:
        """Symbols of a few training pairs, those with about six source symbols first."""
        pairs = self.pairs("train", torch.arange(4 * count))
        pairs = pairs.take((pairs.src_length - 6).abs().argsort(stable=True)[:count])
        decode = self.facts.vocabulary.decode
        rows = zip(pairs.src.tolist(), pairs.tgt.tolist(), strict=True)
        return [(decode(src), decode(tgt)) for src, tgt in rows]

    def _pairs_of(self, src: Tensor, src_length: Tensor) -> Pairs:
        """Sources (N, S) in symbols of the task -> pairs in ids."""
        tgt, tgt_length = self.task.targets(src, src_length, self.symbols, self.seed)
        return Pairs(
            pad_after(src + FIRST_SYMBOL_ID, src_length),
            src_length,
            pad_after(tgt + FIRST_SYMBOL_ID, tgt_length),
            tgt_length,
        )

    def _draw(self, keys: Tensor, shape: Tensor, split: Split) -> Sequences:
        """A source of the split for each key (N,) and shape (N, k), in symbols of the task.

        A source that belongs to another split is drawn again; its shape stays. Keys are mixed once
        more for the symbols, so that these do not follow from the length.
        """
        src, length = self.task.sources(mix(keys), shape, self.symbols)
        waiting = (~self._belongs(src, length, split)).nonzero()[:, 0]
        for attempt in range(1, MOST_TRIES + 1):
            if not len(waiting):
                return src, length
            new_keys = mix(keys[waiting] + attempt)
            again, again_length = self.task.sources(mix(new_keys), shape[waiting], self.symbols)
            src[waiting, : again.shape[1]], length[waiting] = again, again_length
            waiting = waiting[~self._belongs(again, again_length, split)]
        raise UserError(
            f"data.task: draws too few different sources of {int(length[waiting[0]])} symbols to "
            f"keep the {split} data apart; take longer ones, or data.disjoint: false"
        )

    def _belongs(self, src: Tensor, length: Tensor, split: Split) -> Tensor:
        """Which sources (N, S) a split may use: (N,) bool."""
        if not self.disjoint:
            return torch.ones_like(length, dtype=torch.bool)
        lot = fingerprint(src, length, self.seed) % HELD_OUT_ONE_IN
        mine = {"train": lot > 1, "valid": lot == 0, "test": lot == 1}[split]
        shared = torch.zeros(longest_of(length) + 1, dtype=torch.bool)
        for n in length.unique().tolist():
            shared[n] = self.count(n) < FEWEST_SOURCES
        return mine | shared[length]

    def count(self, length: int) -> int:
        """How many sources of a length there are, as `Task.count` says. Each length is counted
        once, because a task of the user's may have to draw many sources for it."""
        if length not in self._counts:
            self._counts[length] = self.task.count(self.symbols, length)
        return self._counts[length]
