"""Synthetic tasks: a rule, a card, a vectorised sampler.

A task works on symbols numbered from 0; `TaskPairs` turns them into ids and deals out the splits.
Definitions follow tensor2tensor's algorithmic generators (copy, reverse, reverse_nlplike, shift,
sort, addition, multiplication), Ontanon et al. 2022 (duplicate) and the Chomsky-hierarchy suite
(odds_first, parity, stack).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toytrans.config.schema import Config, DataConfig
from toytrans.data import arithmetic, stack, zipf
from toytrans.data.pairs import (
    SPLITS,
    DatasetInfo,
    Pairs,
    Sequences,
    Split,
    draw,
    fingerprint,
    mix,
    padded,
    permutation,
    real_places,
    row_keys,
)
from toytrans.errors import UserError
from toytrans.tokens import FIRST_SYMBOL_ID, Vocabulary

HELD_OUT_ONE_IN = 16
"""One source in 16 belongs to valid, one in 16 to test, the others to train."""

FEWEST_SOURCES = 10_000
"""Lengths with fewer possible sources than this are shared by all splits."""

MOST_TRIES = 600
"""Sources that are drawn for one pair before the task is refused: one in 16 should do."""


@dataclass(frozen=True)
class Task:
    """sizes(keys, span) -> what fixes a source's length, (N, k);
    sources(keys, sizes, symbols) -> Sequences; targets(src, length, symbols, seed) -> Sequences;
    count(symbols, length) -> how many sources of a length there are."""

    rule: str
    vocabulary: Callable[[int, int], Vocabulary]
    sizes: Callable[[Tensor, tuple[int, int]], Tensor]
    sources: Callable[[Tensor, Tensor, int], Sequences]
    targets: Callable[[Tensor, Tensor, int, int], Sequences]
    count: Callable[[int, int], int]


class TaskPairs:
    """The pairs of a synthetic task. Pair i of a split depends on (seed, split, i) alone."""

    def __init__(self, data: DataConfig, seed: int, task: Task | None = None) -> None:
        """task: the user's own, if it is none of TASKS."""
        assert data.task and data.symbols and data.train_length and data.valid_length
        assert data.test_length
        self.task = task or TASKS[data.task]
        self.symbols, self.seed, self.disjoint = data.symbols, seed, data.disjoint
        self.facts = DatasetInfo(self.task.vocabulary(data.symbols, seed), data.train_length)
        self._spans = dict(
            zip(SPLITS, (data.train_length, data.valid_length, data.test_length), strict=True)
        )
        self._sizes = dict(
            zip(SPLITS, (data.train_examples, data.valid_examples, data.test_examples), strict=True)
        )
        counts = [self.task.count(self.symbols, n) for n in range(data.longest() + 1)]
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
        src, src_length = self._sources(split, indices)
        tgt, tgt_length = self.task.targets(src, src_length, self.symbols, self.seed)
        return Pairs(
            padded(src + FIRST_SYMBOL_ID, src_length),
            src_length,
            padded(tgt + FIRST_SYMBOL_ID, tgt_length),
            tgt_length,
        )

    def _sources(self, split: Split, indices: Tensor) -> Sequences:
        """Draw each source until it belongs to the split; its length is drawn only once."""
        keys = row_keys(indices, self.seed, SPLITS.index(split))
        sizes = self.task.sizes(keys, self._spans[split])
        src, length = self.task.sources(mix(keys), sizes, self.symbols)
        waiting = (~self._belongs(src, length, split)).nonzero()[:, 0]
        tried = 1
        while len(waiting):
            tries = min(64, max(1, 2048 // len(waiting)))
            numbers = torch.arange(tried, tried + tries, device=keys.device)
            attempts = mix(keys[waiting, None] + numbers).flatten()
            again, again_length = self.task.sources(
                mix(attempts), sizes[waiting].repeat_interleave(tries, 0), self.symbols
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


# Parts of tasks ------------------------------------------------------------------------------


def _numbers(symbols: int, seed: int) -> Vocabulary:
    return Vocabulary(tuple(str(k) for k in range(symbols)))


def uniform_length(keys: Tensor, span: tuple[int, int]) -> Tensor:
    low, high = span
    return low + draw(keys, 1, high - low + 1)


def uniform_symbols(keys: Tensor, sizes: Tensor, symbols: int) -> Sequences:
    length = sizes[:, 0]
    return draw(keys, int(length.max()) if len(length) else 0, symbols), length


def _power(symbols: int, length: int) -> int:
    """symbols^length, or FEWEST_SOURCES where it is more: 2^14 is."""
    return min(int(symbols ** min(length, 14)), FEWEST_SOURCES)


def _copy(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    return src, length


def _reverse(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    places = torch.arange(src.shape[1], device=src.device)
    return src.gather(1, (length[:, None] - 1 - places).clamp(min=0)), length


def _shift(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    return src + symbols, length


def _sort(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    last = src.masked_fill(~real_places(length, src.shape[1]), symbols)
    return last.sort(1).values, length


def _duplicate(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    places = torch.arange(2 * src.shape[1], device=src.device)
    return src.gather(1, places % length[:, None].clamp(min=1)), 2 * length


def _odds_first(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    places = torch.arange(src.shape[1], device=src.device)
    odds = length[:, None] // 2
    order = torch.where(places < odds, 2 * places + 1, 2 * (places - odds))
    return src.gather(1, order.clamp(0, max(src.shape[1] - 1, 0))), length


def _parity(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    total = src.masked_fill(~real_places(length, src.shape[1]), 0).sum(1, keepdim=True)
    return total % symbols, torch.ones_like(length)


# Lexicon: words 0 .. symbols - 1, the marker, then words of the target language ---------------

SWAP = "~"
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aeiou"


def _lexicon_vocabulary(symbols: int, seed: int) -> Vocabulary:
    words = tuple(str(k) for k in range(symbols))
    syllables = [c + v for c in _CONSONANTS for v in _VOWELS]
    size = 2
    while len(syllables) ** size < symbols:
        size += 1
    numbers = permutation(len(syllables) ** size, seed, 0x3D).tolist()[:symbols]
    made_up = (
        "".join(syllables[number // len(syllables) ** k % len(syllables)] for k in range(size))
        for number in numbers
    )
    return Vocabulary((*words, SWAP, *made_up))


def dictionary(symbols: int, seed: int) -> Tensor:
    """What each source symbol becomes: (symbols + 1, 2) symbols, -1 for none.

    Each word has a first word of its own, and one in two words has a second, drawn freely. The
    marker becomes nothing.
    """
    first = permutation(symbols, seed, 0xD1C7) + symbols + 1
    keys = row_keys(torch.arange(symbols), seed, 0xD1C8)
    second = draw(keys, 1, symbols)[:, 0] + symbols + 1
    entries = torch.stack((first, second.masked_fill(draw(mix(keys), 1, 2)[:, 0] == 0, -1)), 1)
    return torch.cat((entries, torch.full((1, 2), -1)))


def _sentences(keys: Tensor, sizes: Tensor, symbols: int) -> Sequences:
    """Words, with a marker where one place in four asks for it and neither of the two before."""
    words, length = uniform_symbols(keys, sizes, symbols)
    width = words.shape[1]
    asks = draw(keys ^ 3, width, 4) == 0
    places = torch.arange(width, device=keys.device)
    asks &= (places > 0) & (places < length[:, None] - 1)
    before = torch.nn.functional.pad(asks, (2, 0))
    return words.masked_fill(asks & ~before[:, 1:-1] & ~before[:, :-2], symbols), length


def _translate(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """Swap the two neighbours of each marker, then look every word up."""
    width = src.shape[1]
    real = real_places(length, width)
    marker = (src == symbols) & real
    beside = torch.nn.functional.pad(marker, (1, 1)).long()
    places = torch.arange(width, device=src.device)
    order = places + 2 * beside[:, 2:] - 2 * beside[:, :-2]
    words = src.gather(1, order).masked_fill(~real, symbols)
    slots = dictionary(symbols, seed).to(src.device)[words].flatten(1)  # (N, 2 S)
    place = (slots >= 0).cumsum(1)
    total = place[:, -1] if width else length
    tgt = slots.new_zeros(len(slots), 2 * width + 1)
    tgt.scatter_(1, place.masked_fill(slots < 0, 0), slots)  # place 0 collects the gaps
    return tgt[:, 1 : 1 + (int(total.max()) if len(total) else 0)], total


def _plain(rule: str, targets: Callable[[Tensor, Tensor, int, int], Sequences]) -> Task:
    return Task(rule, _numbers, uniform_length, uniform_symbols, targets, _power)


def _arithmetic(
    sign: str, result: str, targets: Callable[[Tensor, Tensor, int, int], Sequences]
) -> Task:
    return Task(
        f"Two numbers and a {sign} between them become their {result}; the least significant digit "
        "comes first, in base data.symbols.",
        arithmetic.digits_and(sign),
        arithmetic.operand_lengths,
        arithmetic.expressions,
        targets,
        arithmetic.count_expressions,
    )


TASKS: dict[str, Task] = {
    "copy": _plain("The target is the source.", _copy),
    "reverse": _plain("The target is the source from its end to its start.", _reverse),
    "reverse_nlplike": Task(
        "The target is the source from its end to its start. As in a language, the k-th most "
        f"frequent symbol has a share in proportion to k^-{zipf.EXPONENT}, and lengths are about "
        "normal, around half of the longest.",
        _numbers,
        zipf.normal_length,
        zipf.zipf_symbols,
        _reverse,
        _power,
    ),
    "shift": Task(
        "Every symbol k becomes symbol k + n, n being data.symbols.",
        lambda symbols, seed: _numbers(2 * symbols, seed),
        uniform_length,
        uniform_symbols,
        _shift,
        _power,
    ),
    "sort": _plain("The source's symbols in ascending order, repeats kept.", _sort),
    "duplicate": _plain("The source twice.", _duplicate),
    "odds_first": _plain(
        "The symbols at places 1, 3, 5, ..., then those at places 0, 2, 4, ...", _odds_first
    ),
    "addition": _arithmetic("+", "sum", arithmetic.add),
    "multiplication": _arithmetic("*", "product", arithmetic.multiply),
    "parity": _plain("The sum of the source's symbols modulo data.symbols, one symbol.", _parity),
    "stack": Task(
        "A stack from bottom to top, then what is done to it: POP, or PUSH and a symbol; the "
        "target is what is left, from the top.",
        stack.vocabulary,
        stack.heights,
        stack.sources,
        stack.final_stacks,
        stack.count,
    ),
    "lexicon": Task(
        "A made-up language pair: each word becomes one or two words of the target language, and "
        f"the two neighbours of a {SWAP} change places.",
        _lexicon_vocabulary,
        uniform_length,
        _sentences,
        _translate,
        _power,
    ),
}


@dataclass(frozen=True)
class Card:
    """What a task prints of itself."""

    name: str
    rule: str
    symbols: str
    lengths: str
    metric: str
    samples: tuple[tuple[list[str], list[str]], ...]
    """Source and target of a few training pairs; the first is the worked example."""
    dictionary: tuple[tuple[str, str], ...]
    """lexicon: every word and its translation."""


def card(config: Config, samples: int = 5, source: TaskPairs | None = None) -> Card:
    """The card of a config's task, its samples drawn by the task itself. source: of the user's
    own task."""
    data, seed = config.data, config.data_seed
    source = source or TaskPairs(data, seed)
    assert data.task
    pairs = source.pairs("train", torch.arange(4 * samples))
    telling = (pairs.src_length - 6).abs().argsort(stable=True)[:samples]
    pairs = pairs.take(telling)
    decode = source.facts.vocabulary.decode
    entries: list[tuple[str, str]] = []
    if data.task == "lexicon":
        for word, row in enumerate(dictionary(source.symbols, seed).tolist()[:-1]):
            ids = [k + FIRST_SYMBOL_ID for k in row if k >= 0]
            entries.append((str(word), " ".join(decode(ids))))
    symbols = source.facts.vocabulary.symbols
    shown = symbols if len(symbols) <= 12 else (*symbols[:4], "...", *symbols[-4:])
    return Card(
        name=data.task,
        rule=source.task.rule,
        symbols=f"{len(symbols)}: {' '.join(shown)}",
        lengths="train {} to {}, test {} to {} source symbols".format(
            *source.facts.train_length, *(data.test_length or ())
        ),
        metric="exact match: the whole target right, through its end",
        samples=tuple(
            (decode(src), decode(tgt))
            for src, tgt in zip(pairs.src.tolist(), pairs.tgt.tolist(), strict=True)
        ),
        dictionary=tuple(entries),
    )
