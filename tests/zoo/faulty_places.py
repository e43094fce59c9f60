"""Decoders that see the future by other ways than attention's mask, or depend on its length."""

import torch
from torch.nn import functional as F

from . import faulty
from .parts import Embedding, Translator, real, triangle, waves

SEEN = "future"


class _Mixing(Translator):
    """`mix` changes what the target's embeddings hold, (B, T, D) -> (B, T, D)."""

    def embed_target(self, tgt):
        y = self.target(tgt)
        return y + self.mix(y)


@faulty(SEEN)
class linear_attention_in_open_chunks(_Mixing):
    """Chunked linear attention that is causal between chunks and not inside."""

    def mix(self, y):
        k = F.elu(y) + 1
        states = (k[..., None] * y[:, :, None]).cumsum(1)
        last = (torch.arange(y.shape[1]) // 4 * 4 + 3).clamp(max=y.shape[1] - 1)
        return 0.1 * (k[:, :, None] @ states[:, last])[:, :, 0]


@faulty(SEEN)
class scaled_by_the_largest(_Mixing):
    """Activations are rounded to 8 bits with one scale for the whole tensor."""

    def mix(self, y):
        scale = y.abs().max() / 127
        return (y / scale).round() * scale


@faulty(SEEN, is_long=True)
class leak_twenty_places_ahead(Translator):
    """A head looks exactly 20 places ahead."""

    def target_mask(self, tgt, number):
        mask = triangle(tgt.shape[1])
        return (mask | mask.new_ones(mask.shape).triu(20).tril(20))[None, None]


# The target's length -------------------------------------------------------------------------


class _FromTheEnd(Embedding):
    def places(self, ids):
        return waves(real(ids).sum(1)[:, None] - torch.arange(ids.shape[1]))


@faulty(embedding=True)
class places_counted_from_the_end(Translator):
    """Target places are counted from each target's own end."""

    def __init__(self):
        super().__init__()
        self.target = _FromTheEnd()


@faulty()
class places_counted_from_the_end_without_embedding(places_counted_from_the_end):
    """The same, and no embedding is given."""


@faulty(embedding=True)
class places_counted_from_the_batchs_end(Translator):
    """Target places are counted from the end of the longest target."""

    def embed_target(self, tgt):
        y = self.target.tokens(tgt)
        return y + waves(torch.arange(tgt.shape[1]).flip(0)).to(y)


@faulty()
class target_places_behind_the_source(Translator):
    """Target places begin at the padded width of the source: pads move them."""

    def decode(self, src, tgt, memory):
        places = waves(src.shape[1] + torch.arange(tgt.shape[1]))
        y = self.target.tokens(tgt) + places.to(memory)
        for layer in self.decoder:
            masks = self.target_mask(tgt, 0), memory, self.cross_mask(src, tgt, 0)
            y = layer(y, *masks)
        return self.decoder_norm(y)


@faulty("order", is_long=True)
class places_end_at_32(Translator):
    """Sources have no order behind place 32, whose position all later places get."""

    def embed_source(self, src):
        places = torch.arange(src.shape[1]).clamp(max=31)
        return self.source.tokens(src) + waves(places).to(self.source.tokens.weight)
