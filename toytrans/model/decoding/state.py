"""Decoding one token at a time, with a key-value cache where the model has one."""

from dataclasses import replace

import torch
from torch import Tensor

from toytrans.model.context import AttentionContext
from toytrans.model.kv_cache import KVCache
from toytrans.model.own import OwnModel
from toytrans.model.rivals import Rival
from toytrans.model.transformer import Transformer


class DecoderState:
    """What decoding keeps from step to step, for A sources of W beams each.

    cross_context: mask of the sources
    memory: keys and values of the encoder's output, per layer
    caches: keys and values of the target so far, per layer
    ancestry: (A, W, places x W) bool, which keys of its source's cache are a beam's own past;
        None for one beam. Beams share a cache: to reorder a mask is cheaper than to move keys.
    cross_state: what the position scheme keeps for cross-attention
    place: the next place
    """

    def __init__(self, model: Transformer, src: Tensor, places: int, beams: int = 1) -> None:
        """Encode src (A, S), and make room for `places` tokens in each beam."""
        memory, stack = model.encode(src), model.decoder_stack()
        sizes = (len(src), model.config.n_heads, places, beams)
        head_width = memory.shape[-1] // model.config.n_heads
        self.model, self.place = model, 0
        one_query = src[:, :1]  # any token: all queries have this mask
        mask = model.masks.cross(src, one_query)
        self.cross_context = AttentionContext.of(mask, None, model.dtype)
        every = (layer.cross_attention.keys_values(memory) for layer in stack)
        self.memory = [(k.contiguous(), v.contiguous()) for k, v in every]  # each place reads them
        self.caches = [KVCache(*sizes, head_width, keys) for keys, _ in self.memory]
        self.ancestry: Tensor | None = None
        if beams > 1:
            self.ancestry = src.new_zeros(len(src), beams, places * beams, dtype=torch.bool)
        self.cross_state = model.cross_positions.start(memory, src, beams=beams)

    def next_logits(self, tokens: Tensor) -> Tensor:
        """The newest token of each beam (A, W) -> logits of the next one (A, W, V).

        Equal to the last row of `Transformer.decode` over all tokens so far. Advances the state.
        """
        model, query = self.model, range(self.place, self.place + 1)
        self_context = self._self_context(tokens)
        self.cross_state.advance(tokens)
        cross_context = replace(self.cross_context, distances=self.cross_state.distances(query))
        x = model.embed(model.tgt_embedding, tokens.reshape(-1, 1), self.place)
        x = x.view(*tokens.shape, -1)  # (A, W, D): the beams of a source as its queries
        layers = zip(model.decoder_stack(), self.memory, self.caches, strict=True)
        for layer, memory, cache in layers:
            x = layer(x, self_context, cross_context, memory, cache)
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
        """Beam w of source a continues its beam parents[a, w]: (A, W)."""
        if self.ancestry is not None:
            index = parents[..., None].expand_as(self.ancestry)
            self.ancestry.copy_(self.ancestry.gather(1, index))
        self.cross_state.select_beams(parents)

    def select_sources(self, sources: Tensor) -> None:
        """Keep some sources (A',), in that order."""
        self.cross_context = self.cross_context.select(sources)
        self.memory = [(k[sources], v[sources]) for k, v in self.memory]
        self.ancestry = None if self.ancestry is None else self.ancestry[sources]
        self.cross_state.select_sources(sources)
        for cache in self.caches:
            cache.select(sources)


class UncachedState:
    """What decoding keeps of a model of the user's, which has no cache: all tokens so far.

    tokens: (A, W, places so far)
    """

    def __init__(self, model: OwnModel, src: Tensor, beams: int = 1) -> None:
        self.model, self.src = model, src
        self.tokens = src.new_empty(len(src), beams, 0)

    def next_logits(self, tokens: Tensor) -> Tensor:
        """The newest token of each beam (A, W) -> logits of the next one (A, W, V)."""
        self.tokens = torch.cat((self.tokens, tokens[..., None]), 2)
        src = self.src.repeat_interleave(tokens.shape[1], 0)
        return self.model(src, self.tokens.flatten(0, 1))[:, -1].view(*tokens.shape, -1)

    def select_beams(self, parents: Tensor) -> None:
        """Beam w of source a continues its beam parents[a, w]: (A, W)."""
        self.tokens = self.tokens.gather(1, parents[..., None].expand_as(self.tokens))

    def select_sources(self, sources: Tensor) -> None:
        """Keep some sources (A',), in that order."""
        self.src, self.tokens = self.src[sources], self.tokens[sources]


class RivalState:
    """What decoding keeps of a rival: of each source what it has read, of each beam its state."""

    def __init__(self, model: Rival, src: Tensor, beams: int = 1) -> None:
        self.model, self.beams, self.place = model, beams, 0
        source, state = model.read(src)
        self.source = [part.repeat_interleave(beams, 0) for part in source]  # (A W, ...)
        self.state = [part.repeat_interleave(beams, 0) for part in state]

    def next_logits(self, tokens: Tensor) -> Tensor:
        """The newest token of each beam (A, W) -> logits of the next one (A, W, V)."""
        written = self.model.write(tokens.reshape(-1, 1), self.source, self.state, self.place)
        self.state, self.place = written.state, self.place + 1
        return written.logits.view(*tokens.shape, -1)

    def select_beams(self, parents: Tensor) -> None:
        """Beam w of source a continues its beam parents[a, w]: (A, W)."""
        first = torch.arange(len(parents), device=parents.device) * self.beams
        rows = (first[:, None] + parents).flatten()
        self.state = [part[rows] for part in self.state]

    def select_sources(self, sources: Tensor) -> None:
        """Keep some sources (A',), in that order."""
        beams = torch.arange(self.beams, device=sources.device)
        rows = (sources[:, None] * self.beams + beams).flatten()
        self.source = [part[rows] for part in self.source]
        self.state = [part[rows] for part in self.state]


def start_decoding(
    model: Transformer, src: Tensor, places: int, beams: int = 1
) -> DecoderState | UncachedState | RivalState:
    """The state before the first token, for sources (A, S)."""
    if isinstance(model, Rival):
        return RivalState(model, src, beams)
    if isinstance(model, OwnModel):
        return UncachedState(model, src, beams)
    return DecoderState(model, src, places, beams)
