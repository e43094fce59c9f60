"""Sound models that answer, or are called, in an unusual way."""

import math

import torch

from . import sound
from .parts import WIDTH, Embedding, Translator


@sound()
class a_tuple(Translator):
    """(logits, memory)."""

    def forward(self, src, tgt):
        memory = self.encode(src)
        return self.head(self.decode(src, tgt, memory)), memory


@sound()
class a_static_buffer(Translator):
    """Logits are written to one buffer that every call reuses."""

    def __init__(self):
        super().__init__()
        self.room = {}

    @torch.no_grad()
    def forward(self, src, tgt):
        logits = super().forward(src, tgt)
        key = (*logits.shape, logits.dtype)
        return self.room.setdefault(key, torch.empty_like(logits)).copy_(logits)


class _Padded(Translator):
    """13 of 32 ids are real."""

    closed = -1e9

    def __init__(self):
        super().__init__()
        self.source, self.target = Embedding(32), Embedding(32)
        self.head = torch.nn.Linear(WIDTH, 32)

    def forward(self, src, tgt):
        logits = super().forward(src, tgt)
        return logits.masked_fill(torch.arange(32) >= 13, self.closed)


@sound(vocabulary_size=32)
class ids_closed_by_minus_a_billion(_Padded):
    """Ids without a symbol have logits of -1e9."""


@sound()
class log_probabilities(Translator):
    """log_softmax of the logits."""

    def forward(self, src, tgt):
        return super().forward(src, tgt).log_softmax(-1)


@sound()
class a_large_constant(Translator):
    """One id's bias is a million."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.head.bias[5] = 1e6


@sound("refused")
class nan_everywhere(Translator):
    """A diverged checkpoint: nothing can be judged."""

    def forward(self, src, tgt):
        return super().forward(src, tgt) * math.nan
