"""Sound models that take their ids in a way of their own, or cost much at each call."""

from . import sound
from .parts import Translator


@sound(checks="pads rows", says="of one length in every batch")
class source_and_target_of_one_length(Translator):
    """Refuses a source and a target of different lengths."""

    def forward(self, src, tgt):
        if src.shape != tgt.shape:
            raise ValueError(f"source {tuple(src.shape)} and target {tuple(tgt.shape)} differ")
        return super().forward(src, tgt)


@sound(checks="pads future", is_long=True, says="give max_length=...")
class twenty_places_that_are_not_given(Translator):
    """Takes 20 places at most, and check is not told so."""

    def forward(self, src, tgt):
        if max(src.shape[1], tgt.shape[1]) > 20:
            raise RuntimeError(f"{src.shape[1]} and {tgt.shape[1]} places are too many")
        return super().forward(src, tgt)


class _OtherPad(Translator):
    """Sources are padded with 3, targets with 0."""

    def keys(self, src, number):
        return (src != 3)[:, None, None]


@sound("cannot judge", is_long=True, says="give source_pad_id=3")
class another_source_pad_that_is_not_given(_OtherPad):
    """Sources are padded with 3, and check is not told so."""


@sound("refused", embedding=None)
def a_function_in_train_mode():
    """A plain function around a module in train mode: its user forgot eval()."""
    model = Translator().train()
    return {"model": lambda src, tgt: model(src, tgt)}
