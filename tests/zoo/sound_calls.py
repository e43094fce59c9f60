"""Sound models that take their ids in a way of their own, or cost much at each call."""

import torch
from torch import nn

from . import END, PAD, START, SYMBOLS, sound
from .parts import WIDTH, Embedding, Translator, real, triangle


@sound()
class source_and_target_of_one_length(Translator):
    """Refuses a source and a target of different lengths."""

    def forward(self, src, tgt):
        if src.shape != tgt.shape:
            raise ValueError(f"source {tuple(src.shape)} and target {tuple(tgt.shape)} differ")
        return super().forward(src, tgt)


@sound(start_id=None)
class one_length_and_an_end_alone(Translator):
    """Refuses different lengths; sources end with an id, targets begin with none."""

    def forward(self, src, tgt):
        assert src.shape == tgt.shape, "one length"
        return super().forward(src, tgt)


@sound()
class one_length_by_stacking(Translator):
    """Source and target are embedded in one stacked call, so their lengths must agree."""

    def forward(self, src, tgt):
        x, y = self.source(torch.stack((src, tgt)).flatten(0, 1)).chunk(2)
        for layer in self.encoder:
            x = layer(x, real(src)[:, None, None])
        for layer in self.decoder:
            y = layer(y, triangle(tgt.shape[1])[None, None], x, real(src)[:, None, None])
        return self.head(self.decoder_norm(y))


@sound()
class its_own_start(Translator):
    """Puts its start at place 0 whatever stands there."""

    def embed_target(self, tgt):
        tgt = tgt.clone()
        tgt[:, 0] = START
        return self.target(tgt)


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


@sound(source_pad_id=3)
class another_source_pad_that_is_given(_OtherPad):
    """Sources are padded with 3, and check is told so."""


@sound("refused")
class fewer_source_symbols_that_are_not_given(Translator):
    """The source has 12 of the 20 ids, and check is not told so."""

    def __init__(self):
        super().__init__()
        self.source = Embedding(12)


@sound(source_size=12)
class fewer_source_symbols_that_are_given(Translator):
    """The source has 12 of the 20 ids, and check is told so."""

    def __init__(self):
        super().__init__()
        self.source = Embedding(12)


@sound(is_long=True)
class the_whole_decoder_at_each_step(Translator):
    """Each place is decoded by a pass of its own over all before it."""

    def forward(self, src, tgt):
        memory = self.encode(src)
        steps = [self.decode(src, tgt[:, : t + 1], memory)[:, -1:] for t in range(tgt.shape[1])]
        return self.head(torch.cat(steps, 1))


@sound()
class ids_changed_in_a_copy(Translator):
    """Pads become another id in a copy of the source, and the mask is made before."""

    def forward(self, src, tgt):
        mask = real(src)
        src = src.masked_fill(src == PAD, END)
        self.kept = mask
        return super().forward(src, tgt)

    def source_mask(self, src, number):
        return self.kept[:, None, None]

    def cross_mask(self, src, tgt, number):
        return self.kept[:, None, None]


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


@sound()
class widths_in_blocks_of_eight(Translator):
    """Sources are padded to blocks of eight places inside, and masked there."""

    def forward(self, src, tgt):
        more = -src.shape[1] % 8
        return super().forward(nn.functional.pad(src, (0, more), value=PAD), tgt)


@sound(max_length=60)
class sixty_places(Translator):
    """Raises an error beyond 60 places, which it says."""

    def embed_target(self, tgt):
        assert tgt.shape[1] <= 60, "at most 60 places"
        return self.target(tgt)


@sound()
class ids_beyond_the_vocabulary_are_pads(Translator):
    """Its table holds ids that no source has."""

    def __init__(self):
        super().__init__()
        self.source = Embedding(SYMBOLS + 7)


@sound()
class insists_on_start_and_end(Translator):
    """Raises an error unless sources end with the end and targets begin with the start."""

    def forward(self, src, tgt):
        last = real(src).sum(1) - 1
        if not bool((src[torch.arange(len(src)), last] == END).all()):
            raise ValueError("sources end with END")
        if not bool((tgt[:, 0] == START).all()):
            raise ValueError("targets begin with START")
        return super().forward(src, tgt)
