"""The decoding of a transformer, one token at a time with a key-value cache."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from toytrans.model.context import AttentionContext
from toytrans.model.kv_cache import KVCache
from toytrans.model.seq2seq import DecoderState

if TYPE_CHECKING:
    from toytrans.model.transformer import Transformer


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
