"""Decoding step by step, given beside a sound model."""

import torch

from . import END, PAD, START, faulty, sound
from .parts import Translator, real


class Steps:
    """Decodes with a cache of what self-attention has read; each method may be spoilt."""

    def __init__(self, model):
        self.model = model

    def place(self, step):
        return step

    def past(self, kept):
        return torch.cat(kept, 1)

    def source_mask(self, src):
        return real(src)[:, None, None]

    def begin(self, src):
        """The encoder's output, and an empty cache."""
        return self.model.encode(src), []

    @torch.no_grad()
    def step(self, src, memory, kept, token, step):
        """Logits (B, V) of one token (B, 1)."""
        model, (layer,) = self.model, self.model.decoder
        places = model.target.places(torch.zeros(1, self.place(step) + 1)).to(memory)
        y = model.target.tokens(token) + places[-1]
        kept.append(layer.self_attn_norm(y))
        past = self.past(kept)
        mask = torch.ones(1, 1, 1, past.shape[1], dtype=torch.bool)
        y = y + layer.self_attn(kept[-1], past, mask)
        y = y + layer.encoder_attn(layer.encoder_attn_norm(y), memory, self.source_mask(src))
        y = y + layer.feed_forward(layer.fc_norm(y))
        return model.head(model.decoder_norm(y))[:, 0]

    def logits(self, src, tgt):
        memory, kept = self.begin(src)
        tokens = enumerate(tgt.split(1, 1))
        return torch.stack([self.step(src, memory, kept, t, k) for k, t in tokens], 1)

    def greedy(self, src, steps=8, start=START):
        memory, kept = self.begin(src)
        ids = torch.full((len(src), 1), start)
        ended = torch.zeros(len(src), dtype=torch.bool)
        for step in range(steps):
            best = self.step(src, memory, kept, ids[:, -1:], step).argmax(-1)
            ids = torch.cat((ids, best.masked_fill(ended, PAD)[:, None]), 1)
            ended |= best == END
        return ids


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
