"""Sound models that answer, or are called, in an unusual way."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import SYMBOLS, sound
from .parts import WIDTH, Embedding, Translator


@sound()
class a_tuple(Translator):
    """(logits, memory)."""

    def forward(self, src, tgt):
        memory = self.encode(src)
        return self.head(self.decode(src, tgt, memory)), memory


@dataclass
class Answer:
    logits: Tensor
    loss: Any = None


@sound()
class a_dataclass(Translator):
    """A dataclass with .logits."""

    def forward(self, src, tgt):
        return Answer(super().forward(src, tgt))


class Pair(NamedTuple):
    memory: Tensor
    logits: Tensor


@sound()
class a_named_tuple(Translator):
    """A named tuple whose logits come second."""

    def forward(self, src, tgt):
        memory = self.encode(src)
        return Pair(memory, self.head(self.decode(src, tgt, memory)))


@sound()
class a_dictionary(Translator):
    """{"logits": ...}."""

    def forward(self, src, tgt):
        return {"logits": super().forward(src, tgt), "loss": None}


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


@sound(embedding=None)
def a_static_buffer_behind_a_function():
    """The same behind a plain function."""
    model = a_static_buffer().eval()
    return {"model": lambda src, tgt: model(src, tgt)}


@sound(embedding=None)
def a_function():
    """A plain function."""
    model = Translator().eval()
    return {"model": lambda src, tgt: model(src, tgt)}


@sound(embedding=None)
def a_function_in_double():
    """A plain function in double precision."""
    model = Translator().double().eval()
    return {"model": lambda src, tgt: model(src, tgt)}


@sound()
def a_function_with_embeddings():
    """A plain function, and the embeddings of the model behind it."""
    model = Translator().eval()
    return {"model": lambda src, tgt: model(src, tgt), "embedding": (model.source, model.target)}


@sound(embedding=None)
def a_function_of_a_model_in_train_mode():
    """The model behind a function was left in train mode, without dropout."""
    model = Translator()
    for layer in (*model.encoder, *model.decoder):
        layer.dropout.p = 0.0
    return {"model": lambda src, tgt: model(src, tgt)}


@sound(embedding=None)
def a_partial_method():
    """functools.partial of a bound method."""
    model = Translator().eval()
    return {"model": partial(model.forward)}


class _Callable:
    def __init__(self, model):
        self.model = model

    def __call__(self, src, tgt):
        return self.model(src, tgt)


@sound(embedding=None)
def an_object_that_can_be_called():
    """An object with __call__, no module itself."""
    return {"model": _Callable(Translator().eval())}


@sound()
class names_of_its_own(Translator):
    """forward(input_ids, decoder_input_ids)."""

    def forward(self, input_ids, decoder_input_ids):
        return super().forward(input_ids, decoder_input_ids)


@sound()
class places_by_arguments(Translator):
    """forward takes further arguments that have defaults."""

    def forward(self, src, tgt, temperature=1.0, **further):
        return super().forward(src, tgt) / temperature


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
class padded_with_minus_a_billion(_Padded):
    """19 of 32 logits are -1e9."""


@sound(vocabulary_size=32)
class padded_with_minus_infinity(_Padded):
    """19 of 32 logits are -inf."""

    closed = -math.inf


@sound(vocabulary_size=32)
class padded_with_the_least_number(_Padded):
    """19 of 32 logits are fp32's least number."""

    closed = torch.finfo(torch.float32).min


@sound(vocabulary_size=32)
class padded_with_zeros(_Padded):
    """19 of 32 logits are 0."""

    closed = 0.0


@sound(vocabulary_size=32, embedding=None)
def padded_with_minus_a_billion_in_fp32():
    """The same in single precision behind a function."""
    model = padded_with_minus_a_billion().eval()
    return {"model": lambda src, tgt: model(src, tgt)}


@sound(vocabulary_size=32, embedding=None)
def padded_with_minus_infinity_in_fp32():
    """The same with -inf."""
    model = padded_with_minus_infinity().eval()
    return {"model": lambda src, tgt: model(src, tgt)}


@sound()
class specials_ruled_out(Translator):
    """Pad and start are never predicted: -inf."""

    def forward(self, src, tgt):
        logits = super().forward(src, tgt).clone()
        logits[..., :2] = -math.inf
        return logits


@sound()
class log_probabilities(Translator):
    """log_softmax of the logits."""

    def forward(self, src, tgt):
        return super().forward(src, tgt).log_softmax(-1)


@sound()
class probabilities(Translator):
    """softmax of the logits."""

    def forward(self, src, tgt):
        return super().forward(src, tgt).softmax(-1)


@sound()
class tiny_logits(Translator):
    """Logits of a billionth."""

    def forward(self, src, tgt):
        return super().forward(src, tgt) * 1e-9


@sound()
class huge_logits(Translator):
    """Logits of a million."""

    def forward(self, src, tgt):
        return super().forward(src, tgt) * 1e6


@sound()
class a_large_constant(Translator):
    """One id's bias is a million."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.head.bias[5] = 1e6


@sound(source_size=7)
class a_smaller_source_vocabulary(Translator):
    """The source has 7 symbols, the target 20."""

    def __init__(self):
        super().__init__()
        self.source = Embedding(7)


@sound(source_size=50)
class a_larger_source_vocabulary(Translator):
    """The source has 50 symbols, the target 20."""

    def __init__(self):
        super().__init__()
        self.source = Embedding(50)


@sound("PASS or cannot judge or refused")
class the_vocabulary_before_the_places(Translator):
    """(B, V, T), as cross_entropy wants it."""

    def forward(self, src, tgt):
        return super().forward(src, tgt).mT


@sound("PASS or cannot judge or refused")
class flat_logits(Translator):
    """(B T, V), as cross_entropy wants it."""

    def forward(self, src, tgt):
        return super().forward(src, tgt).flatten(0, 1)


@sound("refused")
class nan_everywhere(Translator):
    """A diverged checkpoint: nothing can be judged."""

    def forward(self, src, tgt):
        return super().forward(src, tgt) * math.nan


@sound()
class widened_to_eights_inside(Translator):
    """Padding of the batch to multiples of eight inside, cut off again."""

    def forward(self, src, tgt):
        wide = [torch.nn.functional.pad(ids, (0, -ids.shape[1] % 8)) for ids in (src, tgt)]
        return super().forward(*wide)[:, : tgt.shape[1]]


@sound(vocabulary_size=SYMBOLS, start_id=None, eos_id=None)
class neither_start_nor_end(Translator):
    """Neither start nor end is given."""
