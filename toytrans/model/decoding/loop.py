"""The loop of every search: a step for each place, until no row goes on."""

from typing import Protocol

import torch
from torch import Tensor

from toytrans.data.pairs import bucket
from toytrans.model.decoding.limits import Decoded
from toytrans.model.seq2seq import DecoderState
from toytrans.tokens import PAD_ID


class Search(Protocol):
    """A search of several sources, one place at a time.

    `step` reads nothing back from a GPU.

    state: what the model keeps; it knows the next place.
    longest: how many places there are.
    rows: which source each row of the other tensors is of, (A,).
    """

    state: DecoderState
    longest: int
    rows: Tensor

    @property
    def going(self) -> Tensor:
        """Sources that have not ended: (A,) bool."""

    def step(self) -> None:
        """Find a token for each source, or each beam."""

    def keep(self, kept: Tensor) -> None:
        """Keep some sources (A',), in that order. The others have ended."""

    def decoded(self) -> Decoded:
        """What was decoded of all sources, PAD up to `longest`."""


def run(search: Search) -> Decoded:
    """Search on while a source has not ended; ended ones leave.

    Some ended rows stay, so that few batch sizes occur: each new size costs a CPU freshly generated
    kernels.
    """
    while search.state.place < search.longest:
        search.step()
        going = search.going
        if not (count := int(going.sum())):
            break
        if bucket(count) < len(going):
            search.keep(rows_to_keep(going, bucket(count)))
    return trimmed(search.decoded())


def rows_to_keep(going: Tensor, count: int) -> Tensor:
    """Which rows (count,) of a batch stay in it, in order: all that go on, and ended ones.

    going: (B,), rows that have not ended, at most `count`.
    """
    return going.int().argsort(descending=True, stable=True)[:count].sort().values


def trimmed(decoded: Decoded) -> Decoded:
    """Without the columns in which no source has a token."""
    used = int((decoded.tokens != PAD_ID).any(0).sum())
    score = None if decoded.score is None else decoded.score.clone()
    return Decoded(decoded.tokens[:, :used].clone(memory_format=torch.contiguous_format), score)
