"""Decoding step by step, given beside a sound model."""

import torch

from . import faulty, sound
from .parts import Translator, real


class Steps:
    """Decodes with a cache of what self-attention has read; each method may be spoilt."""

    def __init__(self, model):
        self.model = model

    def place(self, step):
        return step

    @torch.no_grad()
    def step(self, src, memory, kept, token, step):
        """Logits (B, V) of one token (B, 1)."""
        model, (layer,) = self.model, self.model.decoder
        places = model.target.places(torch.zeros(1, self.place(step) + 1)).to(memory)
        y = model.target.tokens(token) + places[-1]
        kept.append(layer.self_attn_norm(y))
        past = torch.cat(kept, 1)
        mask = torch.ones(1, 1, 1, past.shape[1], dtype=torch.bool)
        y = y + layer.self_attn(kept[-1], past, mask)
        y = y + layer.encoder_attn(layer.encoder_attn_norm(y), memory, real(src)[:, None, None])
        y = y + layer.feed_forward(layer.fc_norm(y))
        return model.head(model.decoder_norm(y))[:, 0]

    def logits(self, src, tgt):
        memory, kept = self.model.encode(src), []
        tokens = enumerate(tgt.split(1, 1))
        return torch.stack([self.step(src, memory, kept, t, k) for k, t in tokens], 1)


def _logits(steps):
    model = Translator().eval()
    return {"model": model, "generate": steps(model).logits}


@sound()
def steps_with_a_cache():
    """Logits of each step, with a cache."""
    return _logits(Steps)


@faulty("steps")
def steps_one_place_late():
    """The first step counts its place as 1."""

    class Late(Steps):
        def place(self, step):
            return step + 1

    return _logits(Late)
