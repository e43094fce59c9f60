"""Sound layers: other norms, branches, feed-forwards, and ways to share weights."""

import torch
from torch import nn

from . import sound
from .parts import WIDTH, Embedding, Layer, Translator


def _of_layers(layer):
    model = type("Model", (Translator,), {"layer": layer})
    return model()


@sound()
class pre_norm(Translator):
    """The model as parts.py has it."""

    depth = 2


class _NoNorm(Layer):
    norm = nn.Identity


@sound()
class no_norms(Translator):
    """No norm anywhere."""

    final_norm, layer = nn.Identity, _NoNorm


@sound()
def parallel_branches():
    """Attention and feed-forward side by side, as in GPT-J."""

    class Parallel(Layer):
        def forward(self, x, mask, memory=None, cross_mask=None):
            h = self.self_attn_norm(x)
            y = x + self.self_attn(h, h, mask) + self.feed_forward(h)
            if memory is None:
                return y
            return y + self.encoder_attn(self.encoder_attn_norm(y), memory, cross_mask)

    return _of_layers(Parallel)


class _Learned(Embedding):
    limit = 80

    def __init__(self):
        super().__init__(places=False)
        self.table = nn.Embedding(self.limit, WIDTH)

    def forward(self, ids):
        return super().forward(ids) + self.table(torch.arange(ids.shape[1]))


@sound("PASS or cannot judge")
class learned_places_of_thirty(Translator):
    """A table of 30 learned places, which is not told: longer inputs raise IndexError."""

    def __init__(self):
        super().__init__()
        table = type("Table", (_Learned,), {"limit": 30})
        self.source, self.target = table(), table()
