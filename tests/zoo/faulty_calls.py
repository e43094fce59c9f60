"""Models that go wrong from one call to the next, in single shapes, or in the gradient alone."""

import torch

from . import SYMBOLS, faulty
from .parts import Translator, ahead, real

SEEN = "pads future rows"


@faulty("pads rows")
class one_row_without_a_pad_mask(Translator):
    """A short cut for batches of one row, which are taken to hold no pads."""

    def keys(self, src, number):
        return (real(src) | torch.tensor(len(src) == 1))[:, None, None]


@faulty("source", start_id=None, eos_id=None)
class one_symbol_closed_where_little_is_known(Translator):
    """An ordinary symbol, 9, is closed, and neither start nor end is given."""

    def keys(self, src, number):
        return (real(src) & (src != 9))[:, None, None]


@faulty("calls rows")
class state_carried_over(Translator):
    """The mean of the last call's memory is added to this call's."""

    last = None

    def encode(self, src):
        memory = super().encode(src)
        mean = memory.mean((0, 1)).detach()
        memory = memory if self.last is None else memory + 0.1 * self.last
        self.last = mean
        return memory


@faulty("calls", says="it keeps something from call to call")
def a_function_with_a_counter():
    """A plain function that adds how often it was called."""
    model, calls = Translator().eval(), []

    def ask(src, tgt):
        calls.append(None)
        return model(src, tgt) + 0.01 * len(calls) * torch.arange(SYMBOLS)

    return {"model": ask}


@faulty("pads", is_long=True)
class source_pads_open_where_the_target_is_five_longer(Translator):
    """The source's pad mask is lost in cross-attention for one difference of lengths."""

    def cross_mask(self, src, tgt, number):
        lost = torch.tensor(tgt.shape[1] == src.shape[1] + 5)
        return super().cross_mask(src, tgt, number) | lost


@faulty("future", is_long=True)
class no_triangle_in_eleven_rows(Translator):
    """Eleven rows take a path without the causal mask."""

    def target_mask(self, tgt, number):
        return super().target_mask(tgt, number) | torch.tensor(len(tgt) == 11)


@faulty("future", embedding=None, says="depend on the future")
class gradient_of_the_future(Translator):
    """The logits hold back the future, its gradient flows: what is added cancels but for that."""

    def decode(self, src, tgt, memory):
        y = super().decode(src, tgt, memory)
        later = ahead(self.target(tgt))
        return y + 0.1 * (later - later.detach())


@faulty("pads future", embedding=None)
class gradient_of_pads(Translator):
    """The gradient alone sees the source's pads."""

    def encode(self, src):
        x = super().encode(src)
        pads = self.source(src).mean(1, keepdim=True)
        return x + 0.1 * (pads - pads.detach())
