"""Sound layers: other norms, branches, feed-forwards, and ways to share weights."""

from torch import nn

from . import sound
from .parts import Layer, Translator


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
