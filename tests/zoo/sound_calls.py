"""Sound models that take their ids in a way of their own, or cost much at each call."""

import torch
from torch import nn

from . import sound
from .parts import WIDTH, Translator


@sound(checks="pads rows", says="of one length in every batch")
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


@sound("cannot judge", says="give source_pad_id=3")
class another_source_pad_that_is_not_given(_OtherPad):
    """Sources are padded with 3, and check is not told so."""


@sound("refused", embedding=None)
def a_function_in_train_mode():
    """A plain function around a module in train mode: its user forgot eval()."""
    model = Translator().train()
    return {"model": lambda src, tgt: model(src, tgt)}
