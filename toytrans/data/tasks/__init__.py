"""Synthetic tasks: a rule, and what draws sources and computes targets.

Definitions follow tensor2tensor's algorithmic generators (copy, reverse, reverse_nlplike, shift,
sort, addition, multiplication), Ontanon et al. 2022 (duplicate) and the Chomsky-hierarchy suite
(odds_first, parity, stack).
"""

from toytrans.data.tasks import arithmetic, lexicon, plain, stack, zipf
from toytrans.data.tasks.base import Task, numbers

TASKS: dict[str, Task] = {
    "copy": Task("The target is the source.", plain.copy),
    "reverse": Task("The target is the source from its end to its start.", plain.reverse),
    "reverse_nlplike": Task(
        "The target is the source from its end to its start. As in a language, the k-th most "
        f"frequent symbol has a share in proportion to k^-{zipf.EXPONENT}, and lengths are about "
        "normal, around half of the longest.",
        plain.reverse,
        draw_shape=zipf.normal_length,
        sources=zipf.zipf_symbols,
    ),
    "shift": Task(
        "Every symbol k becomes symbol k + n, n being data.symbols.",
        plain.shift,
        lambda symbols, seed: numbers(2 * symbols, seed),
    ),
    "sort": Task("The source's symbols in ascending order, repeats kept.", plain.sort),
    "duplicate": Task("The source twice.", plain.duplicate),
    "odds_first": Task(
        "The symbols at places 1, 3, 5, ..., then those at places 0, 2, 4, ...", plain.odds_first
    ),
    "addition": arithmetic.task("+", "sum", arithmetic.add),
    "multiplication": arithmetic.task("*", "product", arithmetic.multiply),
    "parity": Task(
        "The sum of the source's symbols modulo data.symbols, one symbol.", plain.parity
    ),
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
