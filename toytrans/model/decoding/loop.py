"""What every search shares: how far it may go, a step for each place, and what it gives."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from toytrans.data.pairs import TARGET_SLACK, bucket
from toytrans.model.seq2seq import DecoderState
from toytrans.tokens import FIRST_SYMBOL_ID, PAD_ID


@dataclass(frozen=True)
class Decoded:
    """What decoding gives.

    tokens: (B, L), ids up to and including EOS, then PAD
    score: (B,), of beam search: log-probability in nats, divided by length^alpha
    """

    tokens: Tensor
    score: Tensor | None = None


def token_limits(src: Tensor, target_growth: int, longest: int | None = None) -> Tensor:
    """How many tokens each row of src (B, S) may become, EOS included: (B,).

    A source of S symbols may become target_growth S + TARGET_SLACK tokens. target_growth is 2, or
    more where the training targets need it. Decoding never knows the target's length.
    """
    limits = target_growth * (src >= FIRST_SYMBOL_ID).sum(1) + TARGET_SLACK
    return limits if longest is None else limits.clamp(max=longest)


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
