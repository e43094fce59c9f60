"""Decoding: greedy and beam search. PAD and BOS are never chosen."""

from torch import Tensor

from toytrans.model.decoding.beam import beam_search
from toytrans.model.decoding.greedy import greedy
from toytrans.model.decoding.loop import Decoded, token_limits
from toytrans.model.seq2seq import Seq2Seq

__all__ = ["Decoded", "beam_search", "greedy", "search", "token_limits"]


def search(model: Seq2Seq, src: Tensor, target_growth: int = 2, *, beam: int = 1) -> Decoded:
    """Greedy search, or beam search where `beam` is more than 1."""
    if beam == 1:
        return greedy(model, src, target_growth)
    return beam_search(model, src, target_growth, width=beam)
