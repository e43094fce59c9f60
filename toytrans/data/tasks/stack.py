"""Stack manipulation: a stack from bottom to top, then what is done to it -> the stack, top first.

For k symbols: 0 .. k - 1 stand for themselves, k for POP, and k + 1 + s for pushing symbol s.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.data.hashing import draw
from toytrans.data.pairs import Sequences, longest_of, real_places
from toytrans.data.tasks.base import compacted, power
from toytrans.tokens import Vocabulary


def vocabulary(symbols: int, seed: int) -> Vocabulary:
    names = [str(k) for k in range(symbols)]
    return Vocabulary((*names, "POP", *(f"PUSH{name}" for name in names)))


def heights(keys: Tensor, span: tuple[int, int]) -> Tensor:
    """Lengths of sources and of the stacks at their start, (N, 2).

    A stack takes one place or more and leaves one or more to actions, but a length of one is all
    stack, as in the original.
    """
    low, high = span
    length = low + draw(keys, 1, high - low + 1)
    height = 1 + draw(keys ^ 1, 1, (length - 1).clamp(min=1))
    return torch.cat((length, height), 1)


def sources(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
    """Stacks of uniform symbols, then uniform actions."""
    length, height = shape[:, 0], shape[:, 1:]
    width = longest_of(length)
    places = torch.arange(width, device=keys.device)
    actions = symbols + draw(keys ^ 2, width, symbols + 1)
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
    return compacted(values.flip(1), lasts.flip(1))


def count(symbols: int, length: int) -> int:
    """How many sources of a length there are, as far as LONG_ENOUGH: the sum of k^h (k + 1)^(n - h)
    over heights h."""
    if length < 2:
        return power(symbols, length)
    return symbols * (symbols + 1) * (power(symbols + 1, length - 1) - power(symbols, length - 1))
