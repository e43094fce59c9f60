"""How long decoding may go on, and which rows stay in the batch."""

from dataclasses import dataclass

from torch import Tensor

from toytrans.data.pairs import MAX_LEN_B
from toytrans.tokens import FIRST_SYMBOL_ID


@dataclass(frozen=True)
class Decoded:
    """What decoding gives.

    tokens: (B, L), ids up to and including EOS, then PAD
    score: (B,), of beam search: log-probability in nats, divided by length^alpha
    """

    tokens: Tensor
    score: Tensor | None = None


def token_limits(src: Tensor, growth: int, longest: int | None = None) -> Tensor:
    """How many tokens each row of src (B, S) may become, EOS included: (B,).

    A source of S symbols may become growth S + 10 tokens. growth is 2, or more where a training
    file's targets need it. Decoding never knows the target's length.
    """
    limits = growth * (src >= FIRST_SYMBOL_ID).sum(1) + MAX_LEN_B
    return limits if longest is None else limits.clamp(max=longest)


def rows_to_keep(going: Tensor, count: int) -> Tensor:
    """Which rows (count,) of a batch stay in it, in order: all that go on, and ended ones.

    going: (B,), rows that have not ended, at most `count`.
    """
    return going.int().argsort(descending=True, stable=True)[:count].sort().values
