"""Synthetic tasks: a rule, and what draws sources and computes targets.

Definitions follow tensor2tensor's algorithmic generators (copy, reverse, reverse_nlplike, shift,
sort, addition, multiplication), Ontanon et al. 2022 (duplicate) and the Chomsky-hierarchy suite
(odds_first, parity, stack).
"""

import torch
from torch import Tensor

from toytrans.data.pairs import Sequences, real_places
from toytrans.data.tasks import arithmetic, lexicon, stack
from toytrans.data.tasks.base import ZIPF_EXPONENT, Task, normal_length, numbers, zipf_symbols

# Targets whose symbols are those of the source in another order, other symbols, or one symbol.


def copy(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    return src, length


def reverse(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    places = torch.arange(src.shape[1], device=src.device)
    return src.gather(1, (length[:, None] - 1 - places).clamp(min=0)), length


def shift(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    return src + symbols, length


def sort(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    last = src.masked_fill(~real_places(length, src.shape[1]), symbols)
    return last.sort(1).values, length


def duplicate(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    places = torch.arange(2 * src.shape[1], device=src.device)
    return src.gather(1, places % length[:, None].clamp(min=1)), 2 * length


def odds_first(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    places = torch.arange(src.shape[1], device=src.device)
    odds = length[:, None] // 2
    order = torch.where(places < odds, 2 * places + 1, 2 * (places - odds))
    return src.gather(1, order.clamp(0, max(src.shape[1] - 1, 0))), length


def parity(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    total = src.masked_fill(~real_places(length, src.shape[1]), 0).sum(1, keepdim=True)
    return total % symbols, torch.ones_like(length)


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
    ),
    "shift": Task(
        "Every symbol k becomes symbol k + n, n being data.symbols.",
        shift,
        lambda symbols, seed: numbers(2 * symbols, seed),
    ),
    "sort": Task("The source's symbols in ascending order, repeats kept.", sort),
    "duplicate": Task("The source twice.", duplicate),
    "odds_first": Task(
        "The symbols at places 1, 3, 5, ..., then those at places 0, 2, 4, ...", odds_first
    ),
    "addition": arithmetic.task("+", "sum", arithmetic.add),
    "multiplication": arithmetic.task("*", "product", arithmetic.multiply),
    "parity": Task("The sum of the source's symbols modulo data.symbols, one symbol.", parity),
    "stack": Task(
        "A stack from bottom to top, then what is done to it: POP, or PUSH and a symbol; the "
        "target is what is left, from the top.",
        stack.final_stacks,
        stack.vocabulary,
        stack.heights,
        stack.sources,
        stack.count,
    ),
    "lexicon": Task(
        "A made-up language pair: each word becomes one or two words of the target language, and "
        f"the two neighbours of a {lexicon.SWAP} change places.",
        lexicon.translate,
        lexicon.vocabulary,
        sources=lexicon.sentences,
    ),
}
