"""How long decoding may go on, and what it gives."""

from dataclasses import dataclass

from torch import Tensor

from toytrans.data.pairs import TARGET_SLACK
from toytrans.tokens import FIRST_SYMBOL_ID


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
