"""Decoding, one place at a time for all sources together: greedy search here, and beams in
`beam_search`, which is imported for whoever asks for more than one.

At each place the model's state takes the newest token of each row and gives logits of the next
one. PAD and BOS are never chosen. Sources that have ended leave the batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from toytrans.data.pairs import TARGET_SLACK, bucket, longest_of
from toytrans.model.matrix_products import torchs_own_products
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID


@dataclass(frozen=True)
class Decoded:
    """What decoding gives.

    tokens: (B, L), ids up to and including EOS, then PAD
    score: (B,), of beam search: log-probability in nats, divided by length
    """

    tokens: Tensor
    score: Tensor | None = None


@torch.no_grad()
def search(model: Seq2Seq, src: Tensor, target_growth: int = 2, *, beam: int = 1) -> Decoded:
    """Decode sources (B, S): the likeliest token at every step, or a beam of more than one."""
    limits = token_limits(src, target_growth, model.settings.max_length)
    with torchs_own_products():
        if beam == 1:
            return greedy_search(model, src, limits)
        from toytrans.model.beam_search import beam_search

        return beam_search(model, src, limits, beam)


def token_limits(src: Tensor, target_growth: int, longest: int | None = None) -> Tensor:
    """How many tokens each row of src (B, S) may become, EOS included: (B,).

    A source of S symbols may become target_growth S + TARGET_SLACK tokens. target_growth is 2, or
    more where the training targets need it. Decoding never knows the target's length.
    """
    limits = target_growth * (src >= FIRST_SYMBOL_ID).sum(1) + TARGET_SLACK
    return limits if longest is None else limits.clamp(max=longest)


def greedy_search(model: Seq2Seq, src: Tensor, limits: Tensor) -> Decoded:
    """The likeliest token at every step: src (B, S), limits (B,), as of `token_limits`."""
    longest = longest_of(limits)
    state = model.start_decoding(src, longest)
    tokens = src.new_full((len(src), longest), PAD_ID)
    sources = torch.arange(len(src), device=src.device)  # (A,), those that are still in the batch
    going = torch.ones_like(sources, dtype=torch.bool)  # (A,), those that have not ended
    newest = src.new_full((len(src),), BOS_ID)
    for place in range(longest):
        logits = state.next_logits(newest)  # (A, V)
        newest = logits[:, EOS_ID:].argmax(-1) + EOS_ID  # neither PAD nor BOS
        tokens[sources, place] = newest.where(going, PAD_ID)
        going = going & (newest != EOS_ID) & (limits[sources] > place + 1)
        count = int(going.sum())
        if not count:
            break
        if bucket(count) < len(going):
            staying = first_that_go_on(going, bucket(count))
            sources, going, newest = sources[staying], going[staying], newest[staying]
            state.select(staying)
    return Decoded(without_empty_columns(tokens))


def first_that_go_on(going: Tensor, count: int) -> Tensor:
    """Which of A sources stay in the batch: those that go on, and ended ones up to a count, since
    each new size of a batch costs a CPU freshly generated kernels."""
    going_first = going.int().argsort(descending=True, stable=True)
    return going_first[:count].sort().values


def without_empty_columns(tokens: Tensor) -> Tensor:
    """(B, longest) -> (B, L): as far as any row has a token."""
    used = int((tokens != PAD_ID).any(0).sum())
    return tokens[:, :used].contiguous()
