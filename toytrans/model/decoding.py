"""Decoding, one place at a time for all sources together: greedy search, and then beam search.

At each place the model's state takes the newest token of each row and gives logits of the next
one. PAD and BOS are never chosen. Sources that have ended leave the batch.
"""

from dataclasses import dataclass
from typing import NamedTuple

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
    score: (B,), of beam search: log-probability in nats, divided by length ** length_penalty
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
        return beam_search(model, src, limits, beam, model.settings.length_penalty)


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


# Beam search ---------------------------------------------------------------------------------


def beam_search(
    model: Seq2Seq, src: Tensor, limits: Tensor, beams: int, length_penalty: float = 1.0
) -> Decoded:
    """The best of the hypotheses that W beams find: src (B, S), limits (B,), as of `token_limits`.

    A hypothesis scores its log-probability / length ** length_penalty, where the length counts EOS,
    so that longer ones are not worse for being long (Wu et al. 2016, section 7). A source is done
    when no open beam can overtake its best ended hypothesis any more, even if all further tokens
    were certain. Where none has ended at the limit, the best open beam is taken.
    """
    longest = longest_of(limits)
    state = model.start_decoding(src, longest, beams)
    dtype = torch.promote_types(model.dtype, torch.float32)
    ended = Ended(src, longest, length_penalty, dtype)
    most_divided = limits.to(dtype) ** length_penalty  # (B,), by what a hypothesis at its limit is
    sources = torch.arange(len(src), device=src.device)  # (A,), those that are still in the batch
    newest = src.new_full((len(src), beams), BOS_ID)
    tokens = src.new_full((len(src), beams, longest), PAD_ID)  # of the open beams
    log_prob = ended.score.new_full(newest.shape, -torch.inf)  # (A, W), of the open beams
    log_prob[:, 0] = 0  # all beams start equal; the others are switched off
    for place in range(longest):
        logits = state.next_logits(newest.flatten()).unflatten(0, newest.shape)  # (A, W, V)
        candidates = best_candidates(log_prob, logits)
        last = limits[sources] == place + 1
        ended.record(sources, candidates, tokens, place, last)

        # the best that go on are the new beams
        goes_on = candidates.log_prob.masked_fill(candidates.token == EOS_ID, -torch.inf)
        log_prob, chosen = goes_on.topk(beams, 1)
        parent, newest = candidates.parent.gather(1, chosen), candidates.token.gather(1, chosen)
        before = parent[..., None].expand(-1, -1, place)
        tokens[:, :, :place] = tokens[:, :, :place].gather(1, before)
        tokens[:, :, place] = newest

        # an open beam gains no probability; the most it can gain is length, up to the limit
        decided = log_prob.amax(1) / most_divided[sources] <= ended.score[sources]
        going = ~(last | decided)
        log_prob = log_prob.masked_fill(~going[:, None], -torch.inf)
        count = int(going.sum())
        if not count:
            break
        rows = torch.arange(len(parent), device=src.device)[:, None] * beams + parent  # (A, W)
        if bucket(count) < len(going):
            staying = first_that_go_on(going, bucket(count))
            sources, newest, log_prob = sources[staying], newest[staying], log_prob[staying]
            tokens, rows = tokens[staying], rows[staying]
        state.select(rows.flatten())
    return Decoded(without_empty_columns(ended.tokens), ended.score)


class Candidates(NamedTuple):
    """The C likeliest ways of A sources to go on by a token, the best first: (A, C) each."""

    log_prob: Tensor  # of the beam with the token, in nats
    parent: Tensor  # the beam that is gone on from
    token: Tensor


def best_candidates(log_prob: Tensor, logits: Tensor) -> Candidates:
    """Twice as many candidates as beams: even if each beam's EOS is among them, enough go on.

    log_prob: (A, W), of the open beams. logits: (A, W, V), of their next tokens.
    """
    log_probs = logits.log_softmax(-1, dtype=log_prob.dtype)
    log_probs[..., :EOS_ID] = -torch.inf  # neither PAD nor BOS
    totals = (log_prob[..., None] + log_probs).flatten(1)  # (A, W V)
    _, beams, vocabulary = logits.shape
    best = totals.topk(min(2 * beams, beams * vocabulary), 1)
    return Candidates(best.values, best.indices // vocabulary, best.indices % vocabulary)


class Ended:
    """The best ended hypothesis of each of B sources.

    score: (B,), its log-probability / length ** length_penalty; -inf if there is none
    tokens: (B, L)
    """

    def __init__(
        self, src: Tensor, longest: int, length_penalty: float, dtype: torch.dtype
    ) -> None:
        self.length_penalty = length_penalty
        self.score = src.new_full((len(src),), -torch.inf, dtype=dtype)
        self.tokens = src.new_full((len(src), longest), PAD_ID)

    def record(
        self, sources: Tensor, candidates: Candidates, tokens: Tensor, place: int, last: Tensor
    ) -> None:
        """Keep the best of the candidates that ended, and open ones at the limit if none has ended.

        sources: (A,), whose candidates these are
        tokens: (A, W, L), those of the beams before this place
        last: (A,), whether this place is the last one that a source may have
        """
        eos, best = candidates.token == EOS_ID, self.score[sources]
        cut_off = last & ~eos.any(1) & best.isinf()
        scores = candidates.log_prob / (place + 1) ** self.length_penalty
        scores = scores.masked_fill(~(eos | cut_off[:, None]), -torch.inf)
        score, pick = scores.max(1, keepdim=True)  # (A, 1)
        beam = candidates.parent.gather(1, pick)[..., None].expand(-1, 1, tokens.shape[-1])
        hypothesis = tokens.gather(1, beam)[:, 0]  # (A, L)
        hypothesis[:, place] = candidates.token.gather(1, pick)[:, 0]
        better = score[:, 0] > best
        self.score[sources] = score[:, 0].where(better, best)
        self.tokens[sources] = hypothesis.where(better[:, None], self.tokens[sources])
