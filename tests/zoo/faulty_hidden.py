"""Decoders that see the future, behind something that hides it."""

import torch
from torch import nn

from . import faulty
from .parts import WIDTH, Embedding, Translator, ahead
from .sound_torch import Torchs

SEEN = "future"


class _Padded(Translator):
    """13 of 32 symbols are real; a thousandth of the next place leaks."""

    closed = -1e9

    def __init__(self):
        super().__init__()
        self.source, self.target = Embedding(32), Embedding(32)
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, src, tgt):
        y = self.decode(src, tgt, self.encode(src))
        logits = self.head(y + 1e-3 * ahead(y))
        return logits.masked_fill(torch.arange(32) >= 13, self.closed)


@faulty(SEEN, vocabulary_size=32, says="sees the future")
class leak_beside_minus_a_billion(_Padded):
    """A leak of a thousandth in logits of which 19 of 32 are -1e9."""


@faulty(SEEN)
class torchs_transformer_with_the_masks_flipped(Torchs):
    """True = may look, passed to layers for which True = blocked."""

    def masks(self, src, tgt):
        return {name: ~mask for name, mask in super().masks(src, tgt).items()}
