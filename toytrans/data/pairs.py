"""Pairs of sequences, what a run remembers of its data, and what every dataset offers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol

import torch
from torch import Tensor

from toytrans.tokens import PAD_ID, Vocabulary

Split = Literal["train", "valid", "test"]
Side = Literal["src", "tgt"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

TARGET_SLACK = 10
"""Decoding gives at most target_growth S + TARGET_SLACK tokens for S source symbols, EOS included.
"""

MOST_TARGET_GROWTH = 1000
"""Target symbols per source symbol that decoding allows at most."""

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
        src = self.src[rows, : longest_of(src_length)]
        return Pairs(src, src_length, self.tgt[rows, : longest_of(tgt_length)], tgt_length)


@dataclass(frozen=True)
class DataFacts:
    """What a run remembers of its training data.

    train_length: shortest and longest training source; lengths between them are in range.
    target_growth: target symbols per source symbol that decoding allows, at least 2.
    train_sha256: of the training file or files, or of pairs of a task of the user's; else empty.
    """

    vocabulary: Vocabulary
    train_length: tuple[int, int]
    target_growth: int = 2
    train_sha256: str = ""


class Dataset(Protocol):
    """The pairs of a task or of files, in three splits."""

    @property
    def facts(self) -> DataFacts: ...

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


def longest_of(lengths: Tensor) -> int:
    """The greatest of some lengths (N,); 0 if there are none."""
    return int(lengths.max()) if len(lengths) else 0


def pad_rows(
    rows: Sequence[Sequence[int]], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Ragged rows of ids -> (N, W) with PAD_ID after each row's end, and lengths (N,)."""
    length = torch.tensor([len(row) for row in rows], dtype=torch.long)
    real = real_places(length, max(map(len, rows), default=0))
    ids = torch.full(real.shape, PAD_ID)
    ids[real] = torch.tensor(list(chain.from_iterable(rows)), dtype=torch.long)
    return ids.to(device), length.to(device)


def bucket(length: int) -> int:
    """A size of few that occur, at least `length`: even up to 16, then in steps of a quarter of the
    power of two below. Places are padded to it, and rows of a search filled up."""
    step = max(2, 2 ** (length.bit_length() - 3)) if length > 16 else 2
    return -(-length // step) * step


def all_pairs(dataset: Dataset, split: Split) -> Pairs:
    """Every pair of a split of limited size."""
    size = dataset.size(split)
    assert size is not None, f"{split} is endless"
    return dataset.pairs(split, torch.arange(size))
