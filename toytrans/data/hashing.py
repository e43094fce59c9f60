"""Numbers drawn by hashing an address, which make pair i a pure function of (seed, split, i).

Nothing here keeps a state. The same address gives the same number in any batch, and after a resume.
"""

from enum import IntEnum

import torch
from torch import Tensor

from toytrans.data.pairs import real_places


class Use(IntEnum):
    """What numbers are drawn for: the part of their address after the seed.

    The sources of a task have the number of their split there: 0 for train, 1 for valid, 2 for
    test.
    """

    # 1 and 2 are those of splits, too. Only files use these, and files draw no sources.
    VALID_SHARE = 1  # the sources of a training file that become validation
    SOME_EXAMPLES = 2  # the pairs of a file that are taken
    EPOCH = 3  # the order of the pairs in an epoch
    POOL = 4  # the order of the batches of a pool
    WORD_NAMES = 0x3D  # names of the lexicon's target words
    FIRST_WORDS = 0xD1C7  # the lexicon's translations
    SECOND_WORDS = 0xD1C8
    RANDOM_PLACES = 0x4A  # the places of evaluation under model.random_positions, of no seed
    FINGERPRINT = 0x5EED  # the split to which a source belongs


_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15


def _signed(number: int) -> int:
    return (number + 2**63) % _WORD - 2**63


def mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit words that spreads every bit over the whole word.

    The finaliser of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number
    Generators, 2014), on int64 with wrap-around; masks make the arithmetic shifts logical.
    """
    x = x + _signed(_GOLDEN)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & (2**33 - 1))


def key_of(*numbers: int) -> int:
    """One 64-bit key of some small numbers, in order."""
    key = torch.zeros((), dtype=torch.int64)
    for number in numbers:
        key = mix(key ^ number)
    return int(key)


def row_keys(indices: Tensor, *address: int) -> Tensor:
    """Indices (N,) and the rest of an address -> keys (N,)."""
    return mix(mix(indices) ^ key_of(*address))


def draw(keys: Tensor, width: int, choices: int | Tensor) -> Tensor:
    """Uniform whole numbers below `choices`: keys (N,) -> (N, width).

    choices: one number, or a tensor that broadcasts to (N, width). The remainder of 63 bits
    favours small numbers by less than choices / 2^63.
    """
    places = torch.arange(width) * _signed(_GOLDEN)
    return (mix(keys[:, None] ^ mix(places)) & (2**63 - 1)) % choices


def permutation(size: int, *address: int) -> Tensor:
    """The numbers 0 .. size - 1 in an order that the address decides."""
    return row_keys(torch.arange(size), *address).argsort()


def fingerprint(values: Tensor, length: Tensor, seed: int) -> Tensor:
    """A number in [0, 2^63) for each row's symbols in their order: (N, W), (N,) -> (N,)."""
    places = torch.arange(1, values.shape[1] + 1)
    words = mix(values * _signed(_GOLDEN) + places) * real_places(length, values.shape[1])
    return mix(words.sum(1) ^ key_of(seed, Use.FINGERPRINT)) & (2**63 - 1)
