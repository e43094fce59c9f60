"""The sums and products of two numbers, digits in columns, for any base and length.

A source is a, a sign and b, each number with its least significant digit first: digits are symbols
0 .. base - 1, and the sign is symbol `base`. Both results are sums of columns; what remains is to
carry.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.data.hashing import draw
from toytrans.data.pairs import Sequences, longest_of, real_places
from toytrans.data.tasks.base import LONG_ENOUGH, Task
from toytrans.tokens import Vocabulary


def task(sign: str, result: str, targets: Callable[[Tensor, Tensor, int, int], Sequences]) -> Task:
    """The task whose sources have this sign, which separates, and whose targets are this result."""
    return Task(
        f"Two numbers and a {sign} between them become their {result}; the least significant digit "
        "comes first, in base data.symbols.",
        targets,
        lambda base, seed: Vocabulary((*map(str, range(base)), sign), separators=(sign,)),
        operand_lengths,
        expressions,
        count_expressions,
    )


def operand_lengths(keys: Tensor, span: tuple[int, int]) -> Tensor:
    """Lengths (N, 2) of the two numbers: a in 1 .. M/2, b in 1 .. M - a - 1, M the span's end.

    Where the span starts above 3, b is long enough for the whole to reach the start.
    """
    low, high = span
    first = 1 + draw(keys, 1, high // 2 if high > 3 else 1)
    least = (low - 1 - first).clamp(min=1)
    second = least + draw(keys ^ 1, 1, high - first - least)
    return torch.cat((first, second), 1)


def expressions(keys: Tensor, shape: Tensor, base: int) -> Sequences:
    """Two numbers of the given lengths (N, 2), their top digits not zero, around a sign."""
    first, length = shape[:, :1], shape.sum(1) + 1
    width = longest_of(length)
    places = torch.arange(width, device=keys.device)
    digits = draw(keys, width, base)
    top = (places == first - 1) | (places == length[:, None] - 1)
    nonzero = 1 + draw(keys ^ 2, width, max(base - 1, 1))
    return torch.where(places == first, base, torch.where(top, nonzero, digits)), length


def count_expressions(base: int, length: int) -> int:
    """How many sources of a length there are, as far as LONG_ENOUGH."""
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
    places = torch.arange(src.shape[1], device=src.device)
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
    places = torch.arange(columns.shape[1], device=columns.device)
    decided = torch.where(columns != base - 1, places, -1).cummax(1).values
    carries = columns.gather(1, decided.clamp(min=0)).ge(base) & (decided >= 0)
    digits = (columns + pad(carries[:, :-1], (1, 0))) % base
    length = fewest + digits.gather(1, fewest[:, None])[:, 0].ne(0)
    return digits[:, : longest_of(length)], length
