"""The encoder-decoder transformer: embed, encode, decode; and its decoding place by place."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelSettings
from toytrans.model.attention import AttentionContext
from toytrans.model.dropout import Dropout
from toytrans.model.layers import DecoderLayer, EncoderLayer
from toytrans.model.masks import MaskMaker
from toytrans.model.positions import cross_position_scheme, position_scheme
from toytrans.model.seq2seq import DecoderState, Seq2Seq
from toytrans.tokens import BOS_ID, Vocabulary


class Transformer(Seq2Seq):
    """The model of Vaswani et al. 2017, with pre- or post-norm. It makes its masks from ids.

    Pre-norm has a final norm after each stack; post-norm needs none. The output has no bias.
    """

    def __init__(self, settings: ModelSettings, vocabulary: Vocabulary) -> None:
        super().__init__(settings)
        size, width = len(vocabulary), settings.d_model
        settings.check_size(size)
        self.masks = MaskMaker(settings.pad_mask)
        self.src_embedding = nn.Embedding(size, width)
        self.tgt_embedding = self.src_embedding
        self.output = nn.Linear(width, size, bias=False)
        if settings.tie_embeddings:
            self.output.weight = self.src_embedding.weight
        else:
            self.tgt_embedding = nn.Embedding(size, width)
        self.positions = position_scheme(settings.positions, settings, vocabulary)
        self.cross_positions = cross_position_scheme(
            settings.cross_positions, settings, vocabulary, self.positions
        )
        self.drop = Dropout(settings.dropout)
        n_encoder, n_decoder = settings.n_encoder_layers, settings.n_decoder_layers
        if settings.share_layers:
            n_encoder = n_decoder = 1
        self.encoder_layers = nn.ModuleList(
            EncoderLayer(settings, self.positions) for _ in range(n_encoder)
        )
        self.decoder_layers = nn.ModuleList(
            DecoderLayer(settings, self.positions, self.cross_positions) for _ in range(n_decoder)
        )
        final = nn.LayerNorm if settings.norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = final(width), final(width)
        self._draw_weights()

    def _draw_weights(self) -> None:
        """Draw the first weights, in place of those that torch's layers have drawn.

        Embeddings are normal with standard deviation 1 / sqrt(D), and `embed` multiplies them by
        sqrt(D). So the first layer's input and, with tied embeddings, the logits start at variance
        1. Layers draw their own. Position schemes stay as their classes have drawn them.
        """
        embeddings = [self.src_embedding.weight]
        if not self.settings.tie_embeddings:
            embeddings += [self.tgt_embedding.weight, self.output.weight]
        for weight in embeddings:  # (V, D)
            nn.init.normal_(weight, std=self.settings.d_model**-0.5)
        for layer in (*self.encoder_layers, *self.decoder_layers):
            layer.draw_weights()

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V)."""
        return self.decode(tgt_in, self.encode(src), src)

    def encode(self, src: Tensor) -> Tensor:
        """Source ids (B, S) -> memory (B, S, D)."""
        context = self.self_context(self.masks.encoder_self(src))
        x = self.embed(self.src_embedding, src)
        for layer in self.encoder_stack():
            x = layer(x, context)
        return self.encoder_norm(x)

    def decode(self, tgt_in: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """Target ids (B, T), memory (B, S, D) and its ids (B, S) -> logits (B, T, V)."""
        self_context = self.self_context(self.masks.decoder_self(tgt_in))
        cross_context = self.cross_context(src, tgt_in, memory)
        x = self.embed(self.tgt_embedding, tgt_in)
        for layer in self.decoder_stack():
            # made here and not in the layer, because decoding makes them once for all its steps
            memory_kv = layer.cross_attention.project_kv(memory)
            x = layer(x, self_context, cross_context, memory_kv)
        return self.output(self.decoder_norm(x))

    def self_context(self, mask: Tensor) -> AttentionContext:
        """What self-attention over L places needs: its mask (B, 1, L or 1, L), and distances."""
        distances = self.positions.self_distances(range(mask.shape[-1]), mask.device)
        return AttentionContext.of(mask, self.dtype, self.positions, distances)

    def cross_context(self, src: Tensor, tgt_in: Tensor, memory: Tensor) -> AttentionContext:
        """What attention of tgt_in (B, T) to memory (B, S, D), made of src (B, S), needs."""
        mask = self.masks.cross(src, tgt_in)  # (B, 1, T or 1, S)
        queries = range(tgt_in.shape[1])
        distances = self.cross_positions.cross_distances(memory, src, tgt_in[:, None], queries)
        return AttentionContext.of(mask, self.dtype, self.cross_positions, distances)

    def embed(self, embedding: nn.Embedding, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, L) of places start .. start + L - 1 -> (B, L, D), with their positions."""
        x = embedding(ids) * self.settings.d_model**0.5
        return self.drop(self.positions.embed(x, start))

    def start_decoding(self, src: Tensor, places: int, beams: int = 1) -> DecoderState:
        """The state before the first token: one with a cache, where no place sees a later one."""
        if not self.masks.is_causal:
            return super().start_decoding(src, places, beams)
        return CachedState(self, src, places, beams)

    def encoder_stack(self) -> list[EncoderLayer]:
        """The encoder's layers in order; with shared layers one object several times."""
        return self._stack(self.encoder_layers, self.settings.n_encoder_layers)

    def decoder_stack(self) -> list[DecoderLayer]:
        """The decoder's layers in order; with shared layers one object several times."""
        return self._stack(self.decoder_layers, self.settings.n_decoder_layers)

    @staticmethod
    def _stack(layers: nn.ModuleList, depth: int) -> list[Any]:
        return [layers[i % len(layers)] for i in range(depth)]


class CachedState(DecoderState):
    """What a transformer keeps from step to step, for A sources of W beams each: N = A W rows.

    Its layers attend to memory and to what stands in the cache of earlier places; the causal mask
    is that nothing later is there. The sources' part is (A, ...), and the beams of a source share
    it. Only when sources leave does it change.

    tokens: (N, t), what was read so far
    cache: for each layer keys and values of the target so far, (N, H, places, Dh) each
    memory_kv: for each layer keys and values of the encoder's output, (A, H, S, Dh) each
    """

    def __init__(self, model: Transformer, src: Tensor, places: int, beams: int = 1) -> None:
        """Encode src (A, S), and make room for `places` tokens in each row."""
        self.model, self.beams = model, beams
        self.src, self.memory = src, model.encode(src)
        keys_values = [
            layer.cross_attention.project_kv(self.memory) for layer in model.decoder_stack()
        ]
        # each place reads them, so they lie in one piece
        self.memory_kv = [(k.contiguous(), v.contiguous()) for k, v in keys_values]
        self.cross_context = self._context_of_sources()
        self.tokens = src.new_empty(len(src) * beams, 0)
        self.cache = [(self._room(k, places), self._room(v, places)) for k, v in self.memory_kv]

    def next_logits(self, tokens: Tensor) -> Tensor:
        """The newest token of each row (N,) -> logits of the next one (N, V)."""
        model, place = self.model, self.tokens.shape[1]
        here = range(place, place + 1)
        self.tokens = torch.cat((self.tokens, tokens[:, None]), 1)  # (N, t + 1)
        distances = model.positions.self_distances(here, tokens.device)
        # no mask: only what a row may see is in the cache
        self_context = AttentionContext(positions=model.positions, distances=distances, start=place)
        by_source = self.tokens.view(len(self.src), self.beams, -1)  # (A, W, t + 1)
        distances = model.cross_positions.cross_distances(self.memory, self.src, by_source, here)
        cross_context = replace(self.cross_context, distances=distances)
        x = model.embed(model.tgt_embedding, tokens[:, None], place)  # (N, 1, D)
        for layer, memory_kv, cache in zip(
            model.decoder_stack(), self.memory_kv, self.cache, strict=True
        ):
            x = layer(x, self_context, cross_context, memory_kv, cache)
        return model.output(model.decoder_norm(x))[:, 0]

    def select(self, rows: Tensor) -> None:
        """Row n continues what was row rows[n]; sources without a row have left."""
        if len(rows) < len(self.tokens):
            # the beams of a source stand side by side, so that one of them tells the source
            kept = rows[:: self.beams] // self.beams  # (A',)
            self.src, self.memory = self.src[kept], self.memory[kept]
            self.memory_kv = [(k[kept], v[kept]) for k, v in self.memory_kv]
            self.cross_context = self._context_of_sources()
        place = self.tokens.shape[1]
        self.tokens = self.tokens[rows]
        self.cache = [
            (_select(keys, rows, place), _select(values, rows, place))
            for keys, values in self.cache
        ]

    def _room(self, like: Tensor, places: int) -> Tensor:
        """Memory for keys or values of every row, the heads as in `like` (A, H, S, Dh)."""
        _, heads, _, width = like.shape
        return like.new_empty(len(self.tokens), heads, places, width)

    def _context_of_sources(self) -> AttentionContext:
        """What cross-attention sees of its sources, whatever the query."""
        one_query = torch.full_like(self.src[:, :1], BOS_ID)  # all real tokens have the same mask
        mask = self.model.masks.cross(self.src, one_query)  # (A, 1, 1, S)
        return AttentionContext.of(mask, self.model.dtype, self.model.cross_positions)


def _select(cached: Tensor, rows: Tensor, places: int) -> Tensor:
    """Put some rows (N',) first in a cache (N, H, L, Dh), as far as it is filled, in its memory."""
    cached[: len(rows), :, :places] = cached[:, :, :places].index_select(0, rows)
    return cached[: len(rows)]
