"""A made-up language pair. Symbols: words 0 .. symbols - 1, the marker, target words."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from toytrans.data.hashing import Use, draw, mix, permutation, row_keys
from toytrans.data.pairs import Sequences, real_places
from toytrans.data.tasks.base import compacted, uniform_symbols
from toytrans.tokens import Vocabulary

SWAP = "~"
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aeiou"


def vocabulary(symbols: int, seed: int) -> Vocabulary:
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
    names = vocabulary(symbols, seed).symbols
    rows = dictionary(symbols, seed)[:-1].tolist()
    return [(str(word), " ".join(names[k] for k in row if k >= 0)) for word, row in enumerate(rows)]


def sentences(keys: Tensor, shape: Tensor, symbols: int) -> Sequences:
    """Words, with a marker where one place in four asks for it and neither of the two before."""
    words, length = uniform_symbols(keys, shape, symbols)
    width = words.shape[1]
    asks = draw(keys ^ 3, width, 4) == 0
    places = torch.arange(width, device=keys.device)
    asks &= (places > 0) & (places < length[:, None] - 1)
    before = pad(asks, (2, 0))
    return words.masked_fill(asks & ~before[:, 1:-1] & ~before[:, :-2], symbols), length


def translate(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    """Swap the two neighbours of each marker, then look every word up."""
    width = src.shape[1]
    real = real_places(length, width)
    marker = (src == symbols) & real
    beside = pad(marker, (1, 1)).long()
    places = torch.arange(width, device=src.device)
    order = places + 2 * beside[:, 2:] - 2 * beside[:, :-2]
    words = src.gather(1, order).masked_fill(~real, symbols)
    slots = dictionary(symbols, seed).to(src.device)[words].flatten(1)  # (N, 2 S)
    return compacted(slots, slots >= 0)
