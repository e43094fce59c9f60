"""Decoders that see the future by other ways than attention's mask, or depend on its length."""

import torch

from . import faulty
from .parts import Embedding, Translator, real, waves

SEEN = "future"


class _Mixing(Translator):
    """`mix` changes what the target's embeddings hold, (B, T, D) -> (B, T, D)."""

    def embed_target(self, tgt):
        y = self.target(tgt)
        return y + self.mix(y)


@faulty(SEEN)
class scaled_by_the_largest(_Mixing):
    """Activations are rounded to 8 bits with one scale for the whole tensor."""

    def mix(self, y):
        scale = y.abs().max() / 127
        return (y / scale).round() * scale


class _FromTheEnd(Embedding):
    def places(self, ids):
        return waves(real(ids).sum(1)[:, None] - torch.arange(ids.shape[1]))


@faulty(embedding=True)
class places_counted_from_the_end(Translator):
    """Target places are counted from each target's own end."""

    def __init__(self):
        super().__init__()
        self.target = _FromTheEnd()


@faulty(embedding=True)
class places_counted_from_the_batchs_end(Translator):
    """Target places are counted from the end of the longest target."""

    def embed_target(self, tgt):
        y = self.target.tokens(tgt)
        return y + waves(torch.arange(tgt.shape[1]).flip(0)).to(y)


@faulty("order", is_long=True)
class places_end_at_32(Translator):
    """Sources have no order behind place 32, whose position all later places get."""

    def embed_source(self, src):
        places = torch.arange(src.shape[1]).clamp(max=31)
        return self.source.tokens(src) + waves(places).to(self.source.tokens.weight)
