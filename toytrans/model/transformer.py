"""The encoder-decoder transformer: encode, decode, forward, and one step of decoding."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.config import ModelConfig
from toytrans.model import masks
from toytrans.model.attention import Cache, KeysValues
from toytrans.model.dropout import Dropout
from toytrans.model.layers import DecoderLayer, EncoderLayer
from toytrans.model.layers_by_hand import take_over
from toytrans.model.positions import POSITIONS
from toytrans.model.scheme import Landmarks, Read
from toytrans.model.sight import Blocks, Sight
from toytrans.tokens import Vocabulary


@dataclass
class DecoderState:
    """What decoding carries from step to step for A sources of W beams each.

    src (A, S) and the sight of it; keys and values of memory, and caches, for each layer. lineage
    (A, W, places x W) bool, None for one beam: beams share their source's cache and are never
    moved in it; this tells which of its keys are a beam's own past. Where cross-attention asks for
    them: landmarks of the sources; said (A, W, V): how often each beam has read each token.
    """

    src: Tensor
    cross_sight: Sight
    memory: list[KeysValues]
    caches: list[Cache]
    lineage: Tensor | None
    said: Tensor | None
    landmarks: Landmarks | None
    place: int = 0

    def select_beams(self, parents: Tensor) -> None:
        """Beam w of a source goes on from its beam parents[a, w]: (A, W)."""
        if self.lineage is not None:
            wanted = parents[..., None].expand_as(self.lineage)
            self.lineage = self.lineage.gather(1, wanted)
        if self.said is not None:
            self.said = self.said.gather(1, parents[..., None].expand_as(self.said))

    def select_sources(self, sources: Tensor) -> None:
        """Keep some sources (A',), in that order."""
        self.src, self.cross_sight = self.src[sources], self.cross_sight.select(sources)
        self.memory = [(k[sources], v[sources]) for k, v in self.memory]
        self.lineage = None if self.lineage is None else self.lineage[sources]
        self.said = None if self.said is None else self.said[sources]
        self.landmarks = None if self.landmarks is None else self.landmarks.select(sources)
        for cache in self.caches:
            cache.select(sources)

    def read(self, tokens: Tensor) -> Read | None:
        """Each beam's newest token (A, W), counted, if tokens are."""
        if self.said is None:
            return None
        before = self.said.gather(2, tokens[..., None])
        self.said.scatter_(2, tokens[..., None], before + 1)
        return Read(tokens, before.squeeze(2))

    def past(self) -> Tensor | None:
        """The lineage after the newest tokens, each of them in its own: (A, 1, W, keys)."""
        if self.lineage is None:
            return None
        width, start = self.lineage.shape[1], self.place * self.lineage.shape[1]
        beams = torch.arange(width, device=self.lineage.device)
        self.lineage[:, :, start : start + width] = beams[:, None] == beams
        return self.lineage[:, None, :, : start + width]


class Transformer(nn.Module):
    """The full model of Vaswani et al. 2017, pre- or post-norm; masks are made inside from ids.

    Initialisation: embeddings are normal with standard deviation D^-0.5 and multiplied by D^0.5
    on the way in, so that what enters the first layer has unit variance while logits start with
    unit variance too (tied ones all but that of the token just read); matrices are
    Xavier-uniform (query, key and value each as a D x D matrix of its own; what positions learn
    starts as they say), biases zero, norms one. Pre-norm has a final norm after either stack;
    post-norm needs none. The output has no bias.

    most_scores: where one attention would make more of them, it takes its queries in blocks, to
    the same result; memory is then linear in the length. None: no limit, as in training.
    """

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config = model
        self.masks = masks.MaskMaker(model.pad_mask)
        self.most_scores: int | None = None
        size, width = len(vocabulary), model.d_model
        model.check_size(size)
        self.src_embedding = nn.Embedding(size, width)
        self.tgt_embedding = self.src_embedding
        self.output = nn.Linear(width, size, bias=False)
        if model.tie_embeddings:
            self.output.weight = self.src_embedding.weight
        else:
            self.tgt_embedding = nn.Embedding(size, width)
        self.positions = POSITIONS[model.positions](model, vocabulary.separator_ids)
        cross = model.cross_positions or "none"
        self.cross_positions = (
            self.positions
            if cross == model.positions
            else POSITIONS[cross](model, vocabulary.separator_ids)
        )
        self.drop = Dropout(model.dropout)
        shared, n_enc, n_dec = model.share_layers, model.n_encoder_layers, model.n_decoder_layers
        self.encoder_layers = nn.ModuleList(
            EncoderLayer(model, self.positions) for _ in range(1 if shared else n_enc)
        )
        self.decoder_layers = nn.ModuleList(
            DecoderLayer(model, self.positions, self.cross_positions)
            for _ in range(1 if shared else n_dec)
        )
        final = nn.LayerNorm if model.norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = final(width), final(width)
        self._initialise()
        if model.backward == "by_hand":
            take_over(self)

    def _initialise(self) -> None:
        width = self.config.d_model
        for name, parameter in self.named_parameters():
            if "in_proj.weight" in name:
                for part in parameter.data.split(width):
                    nn.init.xavier_uniform_(part)
            elif "embedding" in name or name == "output.weight":
                nn.init.normal_(parameter, std=width**-0.5)
            elif parameter.dim() == 2 and "bias" not in name and "positions" not in name:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V)."""
        return self.decode(tgt_in, self.encode(src), src)

    def encode(self, src: Tensor) -> Tensor:
        """Source ids (B, S) -> memory (B, S, D)."""
        places = range(src.shape[1])
        sight = self._sight(
            src,
            src,
            lambda queries: Sight.of(
                self.masks.encoder_self(src, queries),
                self.positions.self_distances(queries, places, src.device),
                self.dtype,
            ),
        )
        x = self._embed(self.src_embedding, src)
        for layer in self.encoder_stack():
            x = layer(x, sight)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def decode(self, tgt_in: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """Decoder input (B, T), memory (B, S, D) and its ids (B, S) -> logits (B, T, V)."""
        places = range(tgt_in.shape[1])
        self_sight = self._sight(
            tgt_in,
            tgt_in,
            lambda queries: Sight.of(
                self.masks.decoder_self(tgt_in, queries),
                self.positions.self_distances(queries, places, src.device),
                self.dtype,
            ),
        )
        read = Read.of(tgt_in) if self.cross_positions.reads_tokens else None
        landmarks = self.cross_positions.landmarks(memory, src)
        cross_sight = self._sight(
            tgt_in,
            src,
            lambda queries: Sight.of(
                self.masks.cross(src, tgt_in, queries),
                self.cross_positions.cross_distances(
                    queries, src, landmarks, read and read.part(queries)
                ),
                self.dtype,
            ),
        )
        x = self._embed(self.tgt_embedding, tgt_in)
        for layer in self.decoder_stack():
            x = layer(x, self_sight, cross_sight, layer.cross_attention.keys_values(memory))
        logits: Tensor = self.output(self.decoder_norm(x))
        return logits

    def start(self, src: Tensor, places: int, width: int = 1) -> DecoderState:
        """Encode src (A, S) and make room for decoding up to `places` tokens in each of `width`
        beams a source."""
        memory, stack = self.encode(src), self.decoder_stack()
        sizes = (len(src), self.config.n_heads, places * width)
        head_width = memory.shape[-1] // self.config.n_heads
        lineage = said = None
        if width > 1:
            lineage = src.new_zeros(len(src), width, places * width, dtype=torch.bool)
        if self.cross_positions.reads_tokens:
            said = src.new_zeros(len(src), width, len(self.src_embedding.weight))
        return DecoderState(
            src,
            Sight.of(self.masks.cross(src, src[:, :1]), None, self.dtype),
            [layer.cross_attention.keys_values(memory) for layer in stack],
            [Cache(*sizes, head_width, memory) for _ in stack],
            lineage,
            said,
            self.cross_positions.landmarks(memory, src),
        )

    def next_logits(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """The newest token of each beam (A, W) -> logits of the next (A, W, V). Advances the state.

        Equal to the last row of `decode` over all tokens so far.
        """
        place, so_far = range(state.place, state.place + 1), range(state.place + 1)
        distances = self.positions.self_distances(place, so_far, tokens.device)
        if distances is not None:
            whole = distances.whole.repeat_interleave(tokens.shape[1], 3)
            distances = distances._replace(whole=whole)
        past = state.past()
        # one beam's past is all that there is
        self_sight = (
            Sight(distances=distances) if past is None else Sight.of(past, distances, self.dtype)
        )
        read = state.read(tokens)
        distances = self.cross_positions.cross_distances(place, state.src, state.landmarks, read)
        cross_sight = replace(state.cross_sight, distances=distances)
        x = self._embed(self.tgt_embedding, tokens.reshape(-1, 1), state.place)
        x = x.view(*tokens.shape, -1)  # (A, W, D): the beams of a source as its queries
        for layer, memory, cache in zip(
            self.decoder_stack(), state.memory, state.caches, strict=True
        ):
            x = layer(x, self_sight, cross_sight, memory, cache)
        state.place += 1
        logits: Tensor = self.output(self.decoder_norm(x))
        return logits

    def encoder_stack(self) -> list[EncoderLayer]:
        """The encoder's layers in order; with shared layers one object several times."""
        return self._stack(self.encoder_layers, self.config.n_encoder_layers)

    def decoder_stack(self) -> list[DecoderLayer]:
        """The decoder's layers in order; with shared layers one object several times."""
        return self._stack(self.decoder_layers, self.config.n_decoder_layers)

    @staticmethod
    def _stack(layers: nn.ModuleList, depth: int) -> list[Any]:
        return [layers[i % len(layers)] for i in range(depth)]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.output.weight.dtype

    @property
    def longest(self) -> int | None:
        """Places that the position scheme has room for; None = any number."""
        return self.config.room

    def _sight(self, asking: Tensor, asked: Tensor, of: Callable[[range], Sight]) -> Sight | Blocks:
        """What ids (B, Tq) see of ids (B, Tk): whole, or in blocks under `most_scores`.

        of: that of some of the queries.
        """
        places = range(asking.shape[1])
        scores = self.config.n_heads * asked.numel()  # of one place, in every row
        if self.most_scores is None or scores * len(places) <= self.most_scores:
            return of(places)
        size = max(1, self.most_scores // scores)
        return Blocks(tuple(places[start : start + size] for start in places[::size]), of)

    def _embed(self, embedding: nn.Embedding, ids: Tensor, start: int = 0) -> Tensor:
        x: Tensor = self.drop(
            self.positions.embed(embedding(ids) * self.config.d_model**0.5, start)
        )
        return x


def count_parameters(model: nn.Module) -> int:
    """Trained numbers, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
