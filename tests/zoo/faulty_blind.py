"""Models that see too little: masks that close what must be open, inputs that are not read."""

import torch

from . import END, START, faulty
from .parts import Embedding, Translator, real


@faulty("target")
class decoder_without_self_attention(Translator):
    """The decoder's self-attention is never called: no token moves a later one."""

    def decode(self, src, tgt, memory):
        y = self.target(tgt)
        for layer in self.decoder:
            cross = layer.encoder_attn(y, memory, self.cross_mask(src, tgt, 0))
            y = y + cross + layer.feed_forward(layer.fc_norm(y))
        return self.decoder_norm(y)


@faulty(embedding=True)
class end_of_the_source_closed(Translator):
    """The source's end symbol is closed with the pads."""

    def keys(self, src, number):
        return (real(src) & (src != END))[:, None, None]


@faulty("source")
class source_is_not_read(Translator):
    """Cross-attention's output is multiplied by a gate that is never opened."""

    def decode(self, src, tgt, memory):
        return super().decode(src, tgt, 0 * memory)


@faulty("target")
class target_is_not_read(Translator):
    """The decoder reads the start token at every place."""

    def embed_target(self, tgt):
        return self.target(torch.full_like(tgt, START))


@faulty("target")
class decoder_inputs_shifted_again(Translator):
    """The model puts a start before inputs that have one."""

    def embed_target(self, tgt):
        return self.target(torch.nn.functional.pad(tgt[:, :-1], (1, 0), value=START))


@faulty("order")
class encoder_without_places(Translator):
    """Nothing tells the encoder in which order its tokens stand."""

    def __init__(self):
        super().__init__()
        self.source = Embedding(places=False)


@faulty("")
class second_half_of_the_width_closed(Translator):
    """A mask made for half of the padded width closes the second half of long sources."""

    def keys(self, src, number):
        keep = torch.arange(src.shape[1]) <= src.shape[1] // 2
        return (real(src) & keep)[:, None, None]
