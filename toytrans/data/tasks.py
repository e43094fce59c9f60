"""Synthetic tasks: a rule, and what draws sources and computes targets.

Definitions follow tensor2tensor's algorithmic generators (copy, reverse, reverse_nlplike, shift,
sort, addition, multiplication), Ontanon et al. 2022 (duplicate) and the Chomsky-hierarchy suite
(odds_first, parity, stack).
"""

from collections.abc import Callable
from enum import IntEnum
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.data.hashing import Use, draw, mix, permutation, row_keys
from toytrans.data.pairs import Sequences, Span, longest_of, real_places
from toytrans.data.task_dataset import (
    LONG_ENOUGH,
    Task,
    number_names,
    power,
    uniform_symbols,
)
from toytrans.tokens import Vocabulary

ZIPF_EXPONENT = 1.3
"""The k-th most frequent symbol of a sentence has a share in proportion to k^-ZIPF_EXPONENT."""

_WHOLE = 2**53
"""Numbers below it are looked up in a table of cumulative shares. The table too has whole numbers,
so that no rounding can change a draw."""

# What is drawn beside the usual forms ----------------------------------------------------------


class Stream(IntEnum):
    """What a task draws for a source beside the first numbers of its key: `keys ^ Stream.X` are
    keys of their own, which draw independent numbers."""

    SECOND_LENGTH = 1  # of the second number, or of the stack at the start
    OTHER_SYMBOLS = 2  # the top digits of numbers, or the actions on a stack
    MARKERS = 3  # of the words that change places


def normal_length(keys: Tensor, span: Span) -> Tensor:
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
    return torch.searchsorted((shares * _WHOLE).long(), numbers, right=True)


# The source's symbols in another order, other symbols, or one symbol ---------------------------


def copy(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """The source as it is."""
    return src, length


def reverse(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """The source from its end to its start; what stands past a length means nothing."""
    places = torch.arange(src.shape[1])
    return src.gather(1, (length[:, None] - 1 - places).clamp(min=0)), length


def shift(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """Each symbol k becomes symbol k + `symbols`."""
    return src + symbols, length


def shift_names(symbols: int, seed: int) -> Vocabulary:
    """Twice as many names, because each symbol has one that it becomes."""
    return number_names(2 * symbols, seed)


def sort(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """The symbols of the source in ascending order."""
    last = src.masked_fill(~real_places(length, src.shape[1]), symbols)
    return last.sort(1).values, length


def duplicate(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """The source, and once more the source."""
    places = torch.arange(2 * src.shape[1])
    return src.gather(1, places % length[:, None].clamp(min=1)), 2 * length


def odds_first(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """What stands at places 1, 3, 5, ..., counted from 0, then what stands at 0, 2, 4, ..."""
    places = torch.arange(src.shape[1])
    odds = length[:, None] // 2
    order = torch.where(places < odds, 2 * places + 1, 2 * (places - odds))
    return src.gather(1, order.clamp(0, max(src.shape[1] - 1, 0))), length


def parity(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """One symbol: the sum of all modulo `symbols`, which for two symbols is the parity of ones."""
    total = src.masked_fill(~real_places(length, src.shape[1]), 0).sum(1, keepdim=True)
    return total % symbols, torch.ones_like(length)


# Sums and products of two numbers -------------------------------------------------------------
# Digits stand in columns, for any base and length. A source is a, a sign and b, each number with
# its least significant digit first: digits are symbols 0 .. base - 1, and the sign is symbol
# `base`. Both results are sums of columns; what remains is to carry.


def arithmetic(
    sign: str, result: str, targets: Callable[[Tensor, Tensor, int, int], Sequences]
) -> Task:
    """The task whose sources have this sign, which separates, and whose targets are this result."""

    def names(base: int, seed: int) -> Vocabulary:
        digits = [str(digit) for digit in range(base)]
        return Vocabulary((*digits, sign), separators=(sign,))

    return Task(
        f"Two numbers and a {sign} between them become their {result}; the least significant digit "
        "comes first, in base data.symbols.",
        targets,
        vocabulary=names,
        draw_shape=operand_lengths,
        sources=expressions,
        count=count_expressions,
        shortest=3,
        fewest_symbols=2,
    )


def operand_lengths(keys: Tensor, span: tuple[int, int]) -> Tensor:
    """Lengths (N, 2) of the two numbers: a in 1 .. M/2, b in 1 .. M - a - 1, M the span's end.

    Where the span starts above 3, b is long enough for the whole to reach the start.
    """
    low, high = span
    first = 1 + draw(keys, 1, high // 2 if high > 3 else 1)
    least = (low - 1 - first).clamp(min=1)
    second = least + draw(keys ^ Stream.SECOND_LENGTH, 1, high - first - least)
    return torch.cat((first, second), 1)


def expressions(keys: Tensor, shape: Tensor, base: int) -> Sequences:
    """Two numbers of the given lengths (N, 2), their top digits not zero, around a sign."""
    first, length = shape[:, :1], shape.sum(1) + 1
    width = longest_of(length)
    places = torch.arange(width)
    digits = draw(keys, width, base)
    top = (places == first - 1) | (places == length[:, None] - 1)
    nonzero = 1 + draw(keys ^ Stream.OTHER_SYMBOLS, width, max(base - 1, 1))
    return torch.where(places == first, base, torch.where(top, nonzero, digits)), length


def count_expressions(base: int, length: int) -> int:
    """How many sources of a length there are; of lengths above LONG_ENOUGH, enough."""
    if length < 3:
        return 0
    length = min(length, LONG_ENOUGH)
    return int((length - 2) * (base - 1) ** 2 * base ** (length - 3))


def add(src: Tensor, length: Tensor, base: int, seed: int) -> Sequences:
    """a + b, least significant digit first."""
    a, b, lengths = _operands(src, length, base)
    return _number(a + b, torch.maximum(*lengths), base)


def multiply(src: Tensor, length: Tensor, base: int, seed: int) -> Sequences:
    """a b, least significant digit first.

    A column of the long multiplication may be as large as S base^2. Carrying all columns at once,
    a few times over, leaves at most 2 base - 2 in any, as in a sum of two numbers.
    """
    a, b, lengths = _operands(src, length, base)
    width = a.shape[1]
    columns = torch.zeros_like(a)
    for place in range(longest_of(lengths[0])):
        columns[:, place:] += a[:, place, None] * b[:, : width - place]
    largest = width * (base - 1) ** 2
    while largest > 2 * base - 2:
        columns = columns % base + pad(columns[:, :-1] // base, (1, 0))
        largest = base - 1 + largest // base
    return _number(columns, lengths[0] + lengths[1] - 1, base)


def _operands(src: Tensor, length: Tensor, base: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Sources (N, S) -> a and b, each (N, S + 1) with zeros above the number, and their lengths."""
    src = pad(src, (0, 1))
    places = torch.arange(src.shape[1])
    sign = ((src == base) & real_places(length, src.shape[1])).int().argmax(1, keepdim=True)
    second = (places + sign + 1).clamp(max=src.shape[1] - 1)
    lengths = sign[:, 0], length - sign[:, 0] - 1
    a = src.masked_fill(places >= sign, 0)
    b = src.gather(1, second).masked_fill(places >= lengths[1][:, None], 0)
    return a, b, lengths


def _number(columns: Tensor, fewest: Tensor, base: int) -> Sequences:
    """Carry columns (N, W) of at most 2 base - 2: a number of `fewest` (N,) digits or one more.

    A column that holds base - 1 passes a carry on. So the carry into a column comes from the
    nearest other one to its left, found by a running maximum.
    """
    places = torch.arange(columns.shape[1])
    decided = torch.where(columns != base - 1, places, -1).cummax(1).values
    carries = columns.gather(1, decided.clamp(min=0)).ge(base) & (decided >= 0)
    digits = (columns + pad(carries[:, :-1], (1, 0))) % base
    length = fewest + digits.gather(1, fewest[:, None])[:, 0].ne(0)
    return digits[:, : longest_of(length)], length


def keep_in_order(values: Tensor, kept: Tensor) -> Sequences:
    """The values (N, W) of each row that are kept, (N, W) bool, moved together in their order."""
    column = kept.cumsum(1).masked_fill(~kept, 0)
    rows = values.new_zeros(len(values), values.shape[1] + 1)
    rows.scatter_(1, column, values)  # column 0 collects the others
    length = kept.sum(1)
    return rows[:, 1 : 1 + longest_of(length)], length


# Stack manipulation ---------------------------------------------------------------------------
# A stack from bottom to top, then what is done to it -> the stack, top first. For k symbols:
# 0 .. k - 1 stand for themselves, k for POP, and k + 1 + s for pushing symbol s.


def stack_names(symbols: int, seed: int) -> Vocabulary:
    """The symbols of a stack, then POP, then a PUSH of each symbol."""
    names = [str(k) for k in range(symbols)]
    return Vocabulary((*names, "POP", *(f"PUSH{name}" for name in names)))


def stack_heights(keys: Tensor, span: tuple[int, int]) -> Tensor:
    """Lengths of sources and of the stacks at their start, (N, 2).

    A stack takes one place or more and leaves one or more to actions, but a length of one is all
    stack, as in the original.
    """
    low, high = span
    length = low + draw(keys, 1, high - low + 1)
    height = 1 + draw(keys ^ Stream.SECOND_LENGTH, 1, (length - 1).clamp(min=1))
    return torch.cat((length, height), 1)


def stack_sources(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
    """Stacks of uniform symbols, then uniform actions."""
    length, height = shape[:, 0], shape[:, 1:]
    width = longest_of(length)
    places = torch.arange(width)
    actions = symbols + draw(keys ^ Stream.OTHER_SYMBOLS, width, symbols + 1)
    return torch.where(places < height, draw(keys, width, symbols), actions), length


def final_stacks(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """What is left, from the top. POP does nothing to an empty stack.

    The stack at the start counts as pushed. Without a floor, the height after each place would be
    a running sum; the floor lifts it by how far that sum has ever been below zero. A push lasts
    where the stack is never lower again than just after it.
    """
    real = real_places(length, src.shape[1])
    pop = (src == symbols) & real
    push = real & ~pop
    free = pad(push.long() - pop.long(), (1, 0)).cumsum(1)
    height = (free - free.cummin(1).values)[:, 1:]
    lowest_from_here = height.flip(1).cummin(1).values.flip(1)
    lasts = push & (height == lowest_from_here)
    values = torch.where(src > symbols, src - symbols - 1, src)
    return keep_in_order(values.flip(1), lasts.flip(1))


def count_stacks(symbols: int, length: int) -> int:
    """How many sources of a length n there are, or enough: for k symbols the sum of
    k^h (k + 1)^(n - h) over heights h."""
    if length < 2:
        return power(symbols, length)
    return symbols * (symbols + 1) * (power(symbols + 1, length - 1) - power(symbols, length - 1))


# A made-up language pair ----------------------------------------------------------------------
# Symbols: words 0 .. symbols - 1, the marker, target words.

SWAP = "~"
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aeiou"


def lexicon_names(symbols: int, seed: int) -> Vocabulary:
    """The words, the marker, and as many made-up words, which the seed decides."""
    words = tuple(str(k) for k in range(symbols))
    syllables = [c + v for c in _CONSONANTS for v in _VOWELS]
    size = 2
    while len(syllables) ** size < symbols:
        size += 1
    numbers = permutation(len(syllables) ** size, seed, Use.WORD_NAMES).tolist()[:symbols]
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
    first = permutation(symbols, seed, Use.FIRST_WORDS) + symbols + 1
    keys = row_keys(torch.arange(symbols), seed, Use.SECOND_WORDS)
    second = draw(keys, 1, symbols)[:, 0] + symbols + 1
    entries = torch.stack((first, second.masked_fill(draw(mix(keys), 1, 2)[:, 0] == 0, -1)), 1)
    return torch.cat((entries, torch.full((1, 2), -1)))


def translations(symbols: int, seed: int) -> list[tuple[str, str]]:
    """Every word and its translation."""
    names = lexicon_names(symbols, seed).symbols
    rows = dictionary(symbols, seed)[:-1].tolist()
    return [(str(word), " ".join(names[k] for k in row if k >= 0)) for word, row in enumerate(rows)]


def sentences(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
    """Words, with a marker where one place in four asks for it and neither of the two before."""
    words, length = uniform_symbols(keys, shape, symbols)
    width = words.shape[1]
    asks = draw(keys ^ Stream.MARKERS, width, 4) == 0
    places = torch.arange(width)
    asks &= (places > 0) & (places < length[:, None] - 1)
    before = pad(asks, (2, 0))
    return words.masked_fill(asks & ~before[:, 1:-1] & ~before[:, :-2], symbols), length


def translate(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """Swap the two neighbours of each marker, then look every word up."""
    width = src.shape[1]
    real = real_places(length, width)
    marker = (src == symbols) & real
    beside = pad(marker, (1, 1)).long()
    places = torch.arange(width)
    order = places + 2 * beside[:, 2:] - 2 * beside[:, :-2]
    words = src.gather(1, order).masked_fill(~real, symbols)
    slots = dictionary(symbols, seed)[words].flatten(1)  # (N, 2 S)
    return keep_in_order(slots, slots >= 0)


# The table ------------------------------------------------------------------------------------

TASKS: dict[str, Task] = {
    "copy": Task("The target is the source.", copy),
    "reverse": Task("The target is the source from its end to its start.", reverse),
    "reverse_nlplike": Task(
        "The target is the source from its end to its start. As in a language, the k-th most "
        f"frequent symbol has a share in proportion to k^-{ZIPF_EXPONENT}, and lengths are about "
        "normal, around half of the longest.",
        reverse,
        draw_shape=normal_length,
        sources=zipf_symbols,
        symbols=8000,
    ),
    "shift": Task(
        "Every symbol k becomes symbol k + n, n being data.symbols.",
        shift,
        vocabulary=shift_names,
    ),
    "sort": Task("The source's symbols in ascending order, repeats kept.", sort),
    "duplicate": Task("The source twice.", duplicate, growth=2),
    "odds_first": Task(
        "The symbols at places 1, 3, 5, ..., then those at places 0, 2, 4, ...", odds_first
    ),
    "addition": arithmetic("+", "sum", add),
    "multiplication": arithmetic("*", "product", multiply),
    "parity": Task(
        "The sum of the source's symbols modulo data.symbols, one symbol.",
        parity,
        shortest=1,
        symbols=2,
        fewest_symbols=2,
    ),
    "stack": Task(
        "A stack from bottom to top, then what is done to it: POP, or PUSH and a symbol; the "
        "target is what is left, from the top.",
        final_stacks,
        vocabulary=stack_names,
        draw_shape=stack_heights,
        sources=stack_sources,
        count=count_stacks,
        symbols=2,
        fewest_symbols=2,
    ),
    "lexicon": Task(
        "A made-up language pair: each word becomes one or two words of the target language, and "
        f"the two neighbours of a {SWAP} change places.",
        translate,
        vocabulary=lexicon_names,
        sources=sentences,
        growth=2,
    ),
}
