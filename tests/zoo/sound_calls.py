"""Sound models that take their ids in a way of their own, or cost much at each call."""

import torch
from torch import nn

from . import END, sound
from .parts import WIDTH, Embedding, Translator, real


@sound()
class source_and_target_of_one_length(Translator):
    """Refuses a source and a target of different lengths."""

    def forward(self, src, tgt):
        if src.shape != tgt.shape:
            raise ValueError(f"source {tuple(src.shape)} and target {tuple(tgt.shape)} differ")
        return super().forward(src, tgt)


@sound()
class a_learned_start(Translator):
    """A vector of its own stands in the place of the start's embedding."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(WIDTH))

    def embed_target(self, tgt):
        y = self.target(tgt)
        return torch.cat((self.start.expand(len(y), 1, -1), y[:, 1:]), 1)


class _OtherPad(Translator):
    """Sources are padded with 3, targets with 0."""

    def source_mask(self, src, number):
        return (src != 3)[:, None, None]

    cross_mask = lambda self, src, tgt, number: self.source_mask(src, number)  # noqa: E731


@sound("cannot judge")
class another_source_pad_that_is_not_given(_OtherPad):
    """Sources are padded with 3, and check is not told so."""


@sound("refused")
class fewer_source_symbols_that_are_not_given(Translator):
    """The source has 12 of the 20 ids, and check is not told so."""

    def __init__(self):
        super().__init__()
        self.source = Embedding(12)


@sound("cannot judge", eos_id=None)
class an_end_closed_that_is_not_given(Translator):
    """The end of a source is closed like a pad, on purpose, and check is not told which it is."""

    def source_mask(self, src, number):
        return (real(src) & (src != END))[:, None, None]

    cross_mask = lambda self, src, tgt, number: self.source_mask(src, number)  # noqa: E731


@sound(embedding=None)
def a_function_in_eval_mode():
    """A plain function around a module with dropout, in eval mode."""
    model = Translator().eval()
    return {"model": lambda src, tgt: model(src, tgt)}


@sound("refused", embedding=None)
def a_function_in_train_mode():
    """A plain function around a module in train mode: its user forgot eval()."""
    model = Translator().train()
    return {"model": lambda src, tgt: model(src, tgt)}
