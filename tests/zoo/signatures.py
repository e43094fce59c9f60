"""Models that are called as Hugging Face's are, written by hand; and arguments beside ids."""

from functools import partial
from types import SimpleNamespace

import torch
from torch.nn import functional as F

from . import END, PAD, START, SYMBOLS, Translator, entry
from .kinds import Attending
from .parts import real, triangle, waves

NAMED = {
    "is_quick": True,
    "pad_id": None,
    "vocabulary_size": None,
    "start_id": None,
    "eos_id": None,
}
"""All ids are read from the model's config."""


class Named(Translator):
    """Takes Hugging Face's arguments, and computes a loss."""

    def __init__(self):
        super().__init__()
        ids = {"pad_token_id": PAD, "decoder_start_token_id": START, "eos_token_id": END}
        self.config = SimpleNamespace(vocab_size=SYMBOLS, **ids)

    def forward(self, input_ids, attention_mask=None, decoder_input_ids=None, labels=None):
        self.seen = attention_mask == 1
        logits = super().forward(input_ids, decoder_input_ids)
        loss = None if labels is None else self.loss(logits, labels)
        return {"logits": logits, "loss": loss}

    def keys(self, src):
        return self.seen[:, None, None]

    def loss(self, logits, labels):
        return F.cross_entropy(logits.mT, labels)


entry("pads future loss labels", verdict="PASS", **NAMED)(Named)
_faulty = partial(entry, "", verdict="FAIL", base=Named, is_first=True, **NAMED)


@_faulty(part="keys", cause="pads.seen_behind_source")
def attention_mask_that_is_not_used(self, src):
    return torch.ones_like(self.seen)[:, None, None]


@entry("loss", verdict="FAIL", cause="loss.own_shifted", **NAMED)
class named_and_shifted_once_more(Named):
    def loss(self, logits, labels):
        return F.cross_entropy(logits[:, :-1].mT, labels[:, 1:])


class _Sums(torch.nn.Module):
    """A decoder that sums what stands before, whatever the mask says. A fresh pad is embedded as
    zero, so pads add nothing, and what else stands there does."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(SYMBOLS, 8, padding_idx=PAD)
        self.mix, self.head = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, SYMBOLS)

    def forward(self, input_ids, attention_mask, position_ids=None):
        places = attention_mask.cumsum(1) - 1 if position_ids is None else position_ids
        x = self.tokens(input_ids)
        past = self.read(self.mix(x), attention_mask).cumsum(1)
        return self.head(x + waves(places).to(x) + past.tanh())

    def read(self, x, mask):
        return x


_sums = {**NAMED, "pad_id": PAD, "vocabulary_size": SYMBOLS, "kind": "decoder"}
_sums |= {"skip": "order,target,reach,weights,sublayers"}
entry("", verdict="FAIL", cause="pads.seen_before_ids", **_sums)(_Sums)


@entry("pads", "read", base=_Sums, verdict="PASS", **_sums)
def sums_of_what_the_mask_opens(self, x, mask):
    return x * mask[..., None]


@entry("", verdict="cannot judge", is_quick=True, only="pads", cause="any.raises_when_shorter")
class three_places_at_least(Translator):
    def forward(self, src, tgt):
        assert src.shape[1] > 2
        return super().forward(src, tgt)


# Targets that are read otherwise -----------------------------------------------------------------

_late = partial(entry, "target", verdict="FAIL", is_quick=True)


@_late("forward", cause="target.first_is_constant")
def zeros_in_the_place_of_the_start(self, src, tgt):
    """The target holds the start and one id more; the first output stands for the start."""
    logits = Translator.forward(self, src, tgt[:, :-1])
    return torch.cat((torch.zeros_like(logits[:, :1]), logits), 1)


@_late("forward", cause="target.one_late")
def a_target_that_is_shifted_inside(self, src, tgt):
    return Translator.forward(self, src, F.pad(tgt, (1, 0), value=START)[:, :-1])


@_late("embed_target", cause="target.never_read", is_first=True)
def a_target_that_is_never_read(self, tgt):
    return self.target(torch.ones_like(tgt))


# More than ids -----------------------------------------------------------------------------------


class _Segmented(Translator):
    """A third input: which segment each source token is of."""

    def __init__(self):
        super().__init__()
        self.segments = torch.nn.Embedding(2, 8)

    def forward(self, src, tgt, segments):
        self.added = self.segments(segments)
        return super().forward(src, tgt)

    def embed_source(self, src):
        return self.source(src) + self.added


_inputs = {"segments": lambda src, tgt_in: torch.arange(src.shape[1]).expand_as(src) % 2}
entry("pads future", verdict="PASS", is_quick=True, inputs=_inputs, name="segments")(_Segmented)


class _Left(Translator):
    """Pads stand in front: places count from the first token, and the mask closes what is before
    it."""

    def embed_source(self, src):
        return self.placed(self.source, src)

    def embed_target(self, tgt):
        return self.placed(self.target, tgt)

    def placed(self, embedding, ids):
        return embedding.tokens(ids) + waves((real(ids).cumsum(1) - 1).clamp(min=0))

    def target_mask(self, tgt):
        return real(tgt)[:, None, None] & triangle(tgt.shape[1])


left = {"pad_side": "left", "is_quick": True}
entry("pads future rows order", verdict="PASS", embedding=True, name="pads in front", **left)(_Left)


seen = {"verdict": "FAIL", "cause": "pads.seen_behind_target", "is_first": True, **left}


@entry("", "target_mask", base=_Left, **seen)
def pads_in_front_that_are_seen(self, tgt):
    return triangle(tgt.shape[1])[None, None]


def _open_prefix(self, ids):
    first = torch.arange(ids.shape[1]) < 3
    return (triangle(ids.shape[1]) | first) & real(ids)[:, None, None]


_prefix = {"part": "open", "base": Attending, "kind": "decoder", "eos_id": None}
entry("pads future reach", verdict="PASS", is_quick=True, prefix=3, name="a prefix", **_prefix)(
    _open_prefix
)
entry("future", verdict="FAIL", prefix=2, name="a prefix that is longer", **_prefix)(_open_prefix)
