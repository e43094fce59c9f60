"""Pairs of sequences, and the arithmetic that makes pair i a pure function of (seed, split, i).

Nothing here keeps a state: a number is drawn by hashing its address. The same address gives the
same number on any device, in any batch, after a resume.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from toytrans.tokens import PAD_ID, Vocabulary

Split = Literal["train", "valid", "test"]
Side = Literal["src", "tgt"]
MAX_LEN_B = 10
"""Decoding emits at most max_len_a S + MAX_LEN_B tokens for S source symbols, EOS included."""

SPLITS: tuple[Split, ...] = ("train", "valid", "test")

Sequences = tuple[Tensor, Tensor]
"""Symbols (N, W), of which those past each row's length mean nothing, and lengths (N,)."""


@dataclass(frozen=True)
class Pairs:
    """N sources and targets as symbol ids, PAD after their ends; no BOS, no EOS.

    src (N, S), src_length (N,), tgt (N, T), tgt_length (N,), all int64.
    """

    src: Tensor
    src_length: Tensor
    tgt: Tensor
    tgt_length: Tensor

    def __len__(self) -> int:
        return self.src.shape[0]

    def length(self, side: Side) -> Tensor:
        """Symbols of each source or of each target: (N,)."""
        return self.src_length if side == "src" else self.tgt_length

    def to(self, device: torch.device) -> "Pairs":
        columns = (self.src, self.src_length, self.tgt, self.tgt_length)
        return Pairs(*(column.to(device) for column in columns))

    def lengths_on_host(self) -> Tensor:
        """Those of the sources and of the targets, (2, N), in one transfer."""
        return torch.stack((self.src_length, self.tgt_length)).cpu()

    def take(self, rows: Tensor | slice) -> "Pairs":
        """Some of the pairs, no wider than they need."""
        src_length, tgt_length = self.src_length[rows], self.tgt_length[rows]
        width = int(src_length.max()) if len(src_length) else 0
        height = int(tgt_length.max()) if len(tgt_length) else 0
        return Pairs(self.src[rows, :width], src_length, self.tgt[rows, :height], tgt_length)


@dataclass(frozen=True)
class DatasetInfo:
    """What a run remembers of its training data.

    train_length: shortest and longest training source; lengths between them are in range.
    max_len_a: target symbols that decoding allows per source symbol, at least 2.
    train_sha256: of the training file or files, or of pairs of a task of the user's; else empty.
    """

    vocabulary: Vocabulary
    train_length: tuple[int, int]
    max_len_a: int = 2
    train_sha256: str = ""


class PairSource(Protocol):
    """Where pairs come from: a task or files."""

    @property
    def facts(self) -> DatasetInfo: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of the splits, one sentence each."""

    def size(self, split: Split) -> int | None:
        """Pairs in a split; None = endless."""

    def pairs(self, split: Split, indices: Tensor) -> Pairs:
        """The pairs at some indices (N,) of a split."""


def real_places(length: Tensor, width: int) -> Tensor:
    """(N,) lengths -> (N, width): True where a sequence has a symbol."""
    return torch.arange(width, device=length.device) < length[:, None]


def padded(values: Tensor, length: Tensor) -> Tensor:
    """Values (N, W) with PAD_ID after each row's length."""
    return values.masked_fill(~real_places(length, values.shape[1]), PAD_ID)


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ragged rows of ids -> (N, W) with PAD_ID after each row's end, and lengths (N,)."""
    length = torch.tensor([len(row) for row in rows], dtype=torch.long)
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=PAD_ID), length


def all_pairs(source: PairSource, split: Split) -> Pairs:
    """Every pair of a split of limited size."""
    size = source.size(split)
    assert size is not None, f"{split} is endless"
    return source.pairs(split, torch.arange(size))


# Hashed numbers ------------------------------------------------------------------------------

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
    places = torch.arange(width, device=keys.device) * _signed(_GOLDEN)
    return (mix(keys[:, None] ^ mix(places)) & (2**63 - 1)) % choices


def permutation(size: int, *address: int) -> Tensor:
    """The numbers 0 .. size - 1 in an order that the address decides."""
    return row_keys(torch.arange(size), *address).argsort()


def fingerprint(values: Tensor, length: Tensor, seed: int) -> Tensor:
    """A number in [0, 2^63) for each row's symbols in their order: (N, W), (N,) -> (N,)."""
    places = torch.arange(1, values.shape[1] + 1, device=values.device)
    words = mix(values * _signed(_GOLDEN) + places) * real_places(length, values.shape[1])
    return mix(words.sum(1) ^ key_of(seed, 0x5EED)) & (2**63 - 1)
