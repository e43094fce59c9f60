"""Pairs of sequences as ids, what a run remembers of its data, and what every dataset offers.

A `Dataset`, of a task in task_dataset.py or of files in files.py, gives `Pairs` of a split by their
indices. batches.py pads them and adds their ends.
"""

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

Span = tuple[int, int]
"""The shortest and the longest of some sequences, in symbols."""

TARGET_SLACK = 10
"""Decoding gives at most target_growth S + TARGET_SLACK tokens for S source symbols, EOS included.
"""

MOST_TARGET_GROWTH = 1000
"""Target symbols per source symbol that decoding allows at most."""

MOST_IDS = 2**27
"""Ids of one side of a split, padded to its longest sequence: 1 GiB of memory."""

Sequences = tuple[Tensor, Tensor]
"""Symbols (N, W), of which those past each row's length mean nothing, and lengths (N,)."""


@dataclass(frozen=True)
class Pairs:
    """N sources and targets as symbol ids, PAD after their ends; no BOS, no EOS.

    src (N, S), src_length (N,), tgt (N, T), tgt_length (N,), all int64, on the CPU.
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

    def take(self, rows: Tensor | slice) -> "Pairs":
        """Some of the pairs, no wider than they need."""
        src_length, tgt_length = self.src_length[rows], self.tgt_length[rows]
        src = self.src[rows][:, : longest_of(src_length)]
        tgt = self.tgt[rows][:, : longest_of(tgt_length)]
        return Pairs(src, src_length, tgt, tgt_length)


@dataclass(frozen=True)
class DataFacts:
    """What a run remembers of its training data, so that it can be used without that data.

    train_length: shortest and longest training source; lengths between them are in range.
    target_growth: target symbols per source symbol that decoding allows, at least 2.
    train_sha256: the fingerprint of the training split, as in `Dataset.fingerprints`; empty for a
        built-in task.
    """

    vocabulary: Vocabulary
    train_length: Span
    target_growth: int = 2
    train_sha256: str = ""


class Dataset(Protocol):
    """The pairs of a task or of files, in three splits. Pair i of a split is always the same."""

    @property
    def facts(self) -> DataFacts: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of the splits, one sentence each."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """What tells whether the data is still the same: by split, the sha256 of the file that
        the config names for it; under "train", that of the first pairs of a task of the user's.
        A built-in task has none. Raises UserError for a file that cannot be read."""

    def size(self, split: Split) -> int | None:
        """Pairs in a split; None = endless."""

    def pairs(self, split: Split, indices: Tensor) -> Pairs:
        """The pairs at some indices (N,) of a split."""

    def pairs_of_every_length(self) -> Pairs:
        """Training pairs among which are the longest that can occur: all pairs of a file, or for a
        task, some of each of at most 256 lengths, the shortest and the longest among them."""


def real_places(length: Tensor, width: int) -> Tensor:
    """(N,) lengths -> (N, width): True where a sequence has a symbol."""
    return torch.arange(width) < length[:, None]


def pad_after(values: Tensor, length: Tensor) -> Tensor:
    """Values (N, W) with PAD_ID after each row's length."""
    return values.masked_fill(~real_places(length, values.shape[1]), PAD_ID)


def longest_of(lengths: Tensor) -> int:
    """The greatest of some lengths (N,); 0 if there are none."""
    return int(lengths.max()) if len(lengths) else 0


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ragged rows of ids -> (N, W) with PAD_ID after each row's end, and lengths (N,)."""
    length = torch.tensor([len(row) for row in rows], dtype=torch.long)
    real = real_places(length, longest_of(length))
    ids = torch.full(real.shape, PAD_ID)
    ids[real] = torch.tensor(list(chain.from_iterable(rows)), dtype=torch.long)
    return ids, length


def bucket(length: int) -> int:
    """The padded size of a length: even up to 16, then in steps of a quarter of the power of two
    below. Sequences are padded to few sizes, because each new shape costs time on any device."""
    step = max(2, 2 ** (length.bit_length() - 3)) if length > 16 else 2
    return -(-length // step) * step


def all_pairs(dataset: Dataset, split: Split) -> Pairs:
    """Every pair of a split of limited size."""
    size = dataset.size(split)
    assert size is not None, f"{split} is endless"
    return dataset.pairs(split, torch.arange(size))
