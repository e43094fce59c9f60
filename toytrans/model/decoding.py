"""Decoding, one place at a time for all sources together: greedy and beam search, and the state of
a transformer. PAD and BOS are never chosen."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from toytrans.data.pairs import TARGET_SLACK, bucket, longest_of
from toytrans.model.backends import torchs_own_products
from toytrans.model.context import AttentionContext, KVCache
from toytrans.model.seq2seq import DecoderState, Seq2Seq
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID

if TYPE_CHECKING:
    from toytrans.model.transformer import Transformer


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
    limits = token_limits(src, target_growth, model.config.max_length)
    with torchs_own_products():
        found: Search = Greedy(model, src, limits) if beam == 1 else Beams(model, src, limits, beam)
        return found.run()


def token_limits(src: Tensor, target_growth: int, longest: int | None = None) -> Tensor:
    """How many tokens each row of src (B, S) may become, EOS included: (B,).

    A source of S symbols may become target_growth S + TARGET_SLACK tokens. target_growth is 2, or
    more where the training targets need it. Decoding never knows the target's length.
    """
    limits = target_growth * (src >= FIRST_SYMBOL_ID).sum(1) + TARGET_SLACK
    return limits if longest is None else limits.clamp(max=longest)


class Search(ABC):
    """A search of B sources, of which A are still in the batch.

    limits: (B,), how many tokens each source may become
    state: what the model keeps; it knows the next place
    rows: (A,), which source each row is of
    going: (A,) bool, which of them have not ended
    newest: (A, W), the last token of each beam
    """

    def __init__(self, model: Seq2Seq, src: Tensor, limits: Tensor, beams: int = 1) -> None:
        self.limits, self.longest = limits, longest_of(limits)
        self.state = model.start_decoding(src, self.longest, beams)
        self.rows = torch.arange(len(src), device=src.device)
        self.going = torch.ones_like(self.rows, dtype=torch.bool)
        self.newest = src.new_full((len(src), beams), BOS_ID)
        self.tokens = src.new_full((len(src), self.longest), PAD_ID)

    @abstractmethod
    def step(self) -> None:
        """Find a token for each beam. Reads nothing back from a GPU."""

    def run(self) -> Decoded:
        """Step on while a source has not ended; ended ones leave.

        Some ended rows stay, so that few batch sizes occur: each new size costs a CPU freshly
        generated kernels.
        """
        while self.state.place < self.longest:
            self.step()
            if not (count := int(self.going.sum())):
                break
            if bucket(count) < len(self.going):
                going_first = self.going.int().argsort(descending=True, stable=True)
                self.keep(going_first[: bucket(count)].sort().values)
        used = int((self.tokens != PAD_ID).any(0).sum())
        return Decoded(self.tokens[:, :used].contiguous())

    def keep(self, kept: Tensor) -> None:
        """Keep some rows (A',), in that order."""
        self.rows, self.going, self.newest = self.rows[kept], self.going[kept], self.newest[kept]
        self.state.select_sources(kept)


class Greedy(Search):
    """The likeliest token at every step."""

    def step(self) -> None:
        place = self.state.place
        logits = self.state.next_logits(self.newest)
        self.newest = logits[..., EOS_ID:].argmax(-1) + EOS_ID  # neither PAD nor BOS
        newest = self.newest[:, 0]
        self.tokens[self.rows, place] = newest.where(self.going, PAD_ID)
        self.going = self.going & (newest != EOS_ID) & (self.limits[self.rows] > place + 1)


class Beams(Search):
    """The best of the hypotheses that W beams find.

    A hypothesis scores its log-probability / length, EOS counted in the length. A source is done
    when no open beam can overtake its best ended hypothesis any more, even if all further tokens
    were certain. Where none has ended at the limit, the best open beam is taken.

    log_prob: (A, W), of the open beams
    history: (A, W, L), their tokens
    score, tokens: (B,) and (B, L), the best ended hypothesis of every source
    """

    def __init__(self, model: Seq2Seq, src: Tensor, limits: Tensor, beams: int) -> None:
        super().__init__(model, src, limits, beams)
        dtype = torch.promote_types(model.dtype, torch.float32)
        self.log_prob = src.new_full(self.newest.shape, -torch.inf, dtype=dtype)
        self.log_prob[:, 0] = 0  # all beams start equal; the others are switched off
        self.history = src.new_full((*self.newest.shape, self.longest), PAD_ID)
        self.score = src.new_full((len(src),), -torch.inf, dtype=dtype)

    def run(self) -> Decoded:
        return Decoded(super().run().tokens, self.score)

    def step(self) -> None:
        place, beams = self.state.place, self.newest.shape[1]
        logits = self.state.next_logits(self.newest)
        log_probs = logits.log_softmax(-1, dtype=self.log_prob.dtype)
        log_probs[..., :EOS_ID] = -torch.inf  # neither PAD nor BOS
        totals = self.log_prob[..., None] + log_probs
        vocabulary = log_probs.shape[-1]
        best = totals.flatten(1).topk(min(2 * beams, beams * vocabulary), 1)
        parent, token = best.indices // vocabulary, best.indices % vocabulary
        limits = self.limits[self.rows]
        last = limits == place + 1
        self._end(best.values, parent, token, place, last)
        order = best.values.masked_fill(token == EOS_ID, -torch.inf).topk(beams, 1).indices
        parent, self.newest = parent.gather(1, order), token.gather(1, order)
        log_prob = best.values.gather(1, order)
        past = self.history[:, :, :place]
        self.history[:, :, :place] = past.gather(1, parent[..., None].expand_as(past))
        self.history[:, :, place] = self.newest
        self.log_prob = log_prob.masked_fill(self.newest == EOS_ID, -torch.inf)
        # an open beam gains no probability; the most it can gain is length, up to the limit
        decided = self.log_prob.amax(1) / limits <= self.score[self.rows]
        self.going = self.going & ~(last | decided)
        self.log_prob = self.log_prob.masked_fill(~self.going[:, None], -torch.inf)
        self.state.select_beams(parent)

    def _end(self, totals: Tensor, parent: Tensor, token: Tensor, place: int, last: Tensor) -> None:
        """Record candidates that ended, and open ones at the limit if nothing has ended."""
        eos, best = token == EOS_ID, self.score[self.rows]
        cut_off = last & ~eos.any(1) & best.isinf()
        scores = (totals / (place + 1)).masked_fill(~(eos | cut_off[:, None]), -torch.inf)
        score, pick = scores.max(1, keepdim=True)  # (A, 1)
        index = parent.gather(1, pick)[..., None].expand(-1, 1, self.longest)
        tokens = self.history.gather(1, index)[:, 0]  # (A, L)
        tokens[:, place] = token.gather(1, pick)[:, 0]
        better = score[:, 0] > best
        self.score[self.rows] = score[:, 0].where(better, best)
        self.tokens[self.rows] = tokens.where(better[:, None], self.tokens[self.rows])

    def keep(self, kept: Tensor) -> None:
        super().keep(kept)
        self.log_prob, self.history = self.log_prob[kept], self.history[kept]


# The state of a transformer -------------------------------------------------------------------


class CachedState(DecoderState):
    """What a transformer keeps from step to step, for A sources of W beams each.

    cross_context: mask of the sources
    memory_kv: keys and values of the encoder's output, per layer
    caches: keys and values of the target so far, per layer
    ancestry: (A, W, places x W) bool, which keys of its source's cache are a beam's own past;
        None for one beam. Beams share a cache: to reorder a mask is cheaper than to move keys.
    cross_state: what the position scheme keeps for cross-attention
    """

    def __init__(self, model: "Transformer", src: Tensor, places: int, beams: int = 1) -> None:
        """Encode src (A, S), and make room for `places` tokens in each beam."""
        memory, stack = model.encode(src), model.decoder_stack()
        sizes = (len(src), model.config.n_heads, places, beams)
        head_width = memory.shape[-1] // model.config.n_heads
        self.model = model
        one_query = src[:, :1]  # any token: all queries have this mask
        mask = model.masks.cross(src, one_query)
        self.cross_context = AttentionContext.of(mask, None, model.dtype)
        every = (layer.cross_attention.keys_values(memory) for layer in stack)
        self.memory_kv = [
            (k.contiguous(), v.contiguous()) for k, v in every
        ]  # each place reads them
        self.caches = [KVCache(*sizes, head_width, keys) for keys, _ in self.memory_kv]
        self.ancestry: Tensor | None = None
        if beams > 1:
            self.ancestry = src.new_zeros(len(src), beams, places * beams, dtype=torch.bool)
        self.cross_state = model.cross_positions.cross_state(memory, src, beams=beams)

    def next_logits(self, tokens: Tensor) -> Tensor:
        """The newest token of each beam (A, W) -> logits of the next one (A, W, V)."""
        model, query = self.model, range(self.place, self.place + 1)
        self_context = self._self_context(tokens)
        self.cross_state.advance(tokens)
        cross_context = replace(self.cross_context, distances=self.cross_state.distances(query))
        x = model.embed(model.tgt_embedding, tokens.reshape(-1, 1), self.place)
        x = x.view(*tokens.shape, -1)  # (A, W, D): the beams of a source as its queries
        layers = zip(model.decoder_stack(), self.memory_kv, self.caches, strict=True)
        for layer, memory_kv, cache in layers:
            cache.place = self.place
            x = layer(x, self_context, cross_context, memory_kv, cache)
        self.place += 1
        return model.output(model.decoder_norm(x))

    def _self_context(self, tokens: Tensor) -> AttentionContext:
        """What the newest tokens (A, W) attend to: their own past."""
        query, so_far = range(self.place, self.place + 1), range(self.place + 1)
        distances = self.model.positions.self_distances(query, so_far, tokens.device)
        if distances is not None:
            index = distances.index.repeat_interleave(tokens.shape[1], 3)  # a key per beam
            distances = replace(distances, index=index)
        if self.ancestry is None:  # one beam: every cached key is its past
            return AttentionContext(distances=distances)
        width, start = tokens.shape[1], self.place * tokens.shape[1]
        beams = torch.arange(width, device=tokens.device)
        self.ancestry[:, :, start : start + width] = beams[:, None] == beams
        mask = self.ancestry[:, None, :, : start + width]  # (A, 1, W, keys)
        return AttentionContext.of(mask, distances, self.model.dtype)

    def select_beams(self, parents: Tensor) -> None:
        if self.ancestry is not None:
            index = parents[..., None].expand_as(self.ancestry)
            self.ancestry.copy_(self.ancestry.gather(1, index))
        self.cross_state.select_beams(parents)

    def select_sources(self, sources: Tensor) -> None:
        self.cross_context = self.cross_context.select(sources)
        self.memory_kv = [(k[sources], v[sources]) for k, v in self.memory_kv]
        self.ancestry = None if self.ancestry is None else self.ancestry[sources]
        self.cross_state.select_sources(sources)
        for cache in self.caches:
            cache.select(sources, self.place)
