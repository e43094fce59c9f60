"""The encoder-decoder transformer: embed, encode, decode."""

from typing import Any

from torch import Tensor, nn

from toytrans.config.schema import ModelConfig
from toytrans.model.backends import Dropout
from toytrans.model.context import AttentionContext
from toytrans.model.decoding import CachedState
from toytrans.model.initialisation import initialise
from toytrans.model.layers import DecoderLayer, EncoderLayer
from toytrans.model.masks import MaskMaker
from toytrans.model.positions import position_scheme
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import Vocabulary


class Transformer(Seq2Seq):
    """The model of Vaswani et al. 2017, with pre- or post-norm. It makes its masks from ids.

    Pre-norm has a final norm after each stack; post-norm needs none. The output has no bias.
    """

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__(model)
        self.masks = MaskMaker(model.pad_mask)
        size, width = len(vocabulary), model.d_model
        model.check_size(size)
        self.src_embedding = nn.Embedding(size, width)
        self.tgt_embedding = self.src_embedding
        self.output = nn.Linear(width, size, bias=False)
        if model.tie_embeddings:
            self.output.weight = self.src_embedding.weight
        else:
            self.tgt_embedding = nn.Embedding(size, width)
        self.positions = position_scheme(model.positions, model, vocabulary)
        cross = model.cross_positions
        assert cross is not None
        same = cross == model.positions  # then one object, so that what it learns is learned once
        self.cross_positions = self.positions if same else position_scheme(cross, model, vocabulary)
        self.drop = Dropout(model.dropout)
        depths = model.n_encoder_layers, model.n_decoder_layers
        n_enc, n_dec = (1, 1) if model.share_layers else depths
        self.encoder_layers = nn.ModuleList(
            EncoderLayer(model, self.positions) for _ in range(n_enc)
        )
        self.decoder_layers = nn.ModuleList(
            DecoderLayer(model, self.positions, self.cross_positions) for _ in range(n_dec)
        )
        final = nn.LayerNorm if model.norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = final(width), final(width)
        initialise(self, width)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V)."""
        return self.decode(tgt_in, self.encode(src), src)

    def start_decoding(self, src: Tensor, places: int, beams: int = 1) -> CachedState:
        """The state before the first token, with a key-value cache."""
        return CachedState(self, src, places, beams)

    def encode(self, src: Tensor) -> Tensor:
        """Source ids (B, S) -> memory (B, S, D)."""
        places = range(src.shape[1])
        distances = self.positions.self_distances(places, places, src.device)
        context = AttentionContext.of(self.masks.encoder_self(src), distances, self.dtype)
        x = self.embed(self.src_embedding, src)
        for layer in self.encoder_stack():
            x = layer(x, context)
        return self.encoder_norm(x)

    def decode(self, tgt_in: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """Target ids (B, T), memory (B, S, D) and its ids (B, S) -> logits (B, T, V)."""
        places = range(tgt_in.shape[1])
        distances = self.positions.self_distances(places, places, src.device)
        self_context = AttentionContext.of(self.masks.decoder_self(tgt_in), distances, self.dtype)
        between = self.cross_positions.cross_state(memory, src, tgt_in).distances(places)
        cross_context = AttentionContext.of(self.masks.cross(src, tgt_in), between, self.dtype)
        x = self.embed(self.tgt_embedding, tgt_in)
        for layer in self.decoder_stack():
            memory_kv = layer.cross_attention.keys_values(memory)
            x = layer(x, self_context, cross_context, memory_kv)
        return self.output(self.decoder_norm(x))

    def embed(self, embedding: nn.Embedding, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, L) of places start .. start + L - 1 -> (B, L, D), with their positions."""
        x = embedding(ids) * self.config.d_model**0.5
        return self.drop(self.positions.embed(x, start))

    def encoder_stack(self) -> list[EncoderLayer]:
        """The encoder's layers in order; with shared layers one object several times."""
        return self._stack(self.encoder_layers, self.config.n_encoder_layers)

    def decoder_stack(self) -> list[DecoderLayer]:
        """The decoder's layers in order; with shared layers one object several times."""
        return self._stack(self.decoder_layers, self.config.n_decoder_layers)

    @staticmethod
    def _stack(layers: nn.ModuleList, depth: int) -> list[Any]:
        return [layers[i % len(layers)] for i in range(depth)]
