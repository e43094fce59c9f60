"""Models whose attention reaches less than it may, or whose positions reach no attention, as a
module and as torch's own transformer; and sound ones that are meant so."""

import math
from functools import partial

import torch

from . import Translator, entry
from .kinds import Attending, ByEinsum, Stream
from .parts import Embedding, Torchs, real, triangle

first = partial(entry, "", verdict="FAIL", is_first=True, eos_id=None)
quick = partial(entry, verdict="PASS", is_quick=True)
decoder = {"kind": "decoder", "eos_id": None}


def own_place(length):
    return torch.eye(length, dtype=torch.bool)


def first_three(length):
    """The first three keys; a query among them sees all three."""
    return (torch.arange(length) < 3).expand(length, -1)


def source_mask(self, src, allowed):
    return self.keys(src) & allowed(src.shape[1])


def masks(self, src, tgt, allowed):
    return Torchs.masks(self, src, tgt) | {"src_mask": ~allowed(src.shape[1])}


def in_an_encoder(self, ids, allowed):
    return real(ids)[:, None, None] & allowed(ids.shape[1])


def of(function, allowed):
    """A method that knows what is allowed."""
    return lambda self, *ids: function(self, *ids, allowed)


_diagonal = partial(first, cause="reach.diagonal")
_diagonal(part="source_mask", name="own place alone in the encoder")(of(source_mask, own_place))
_diagonal(part="open", base=ByEinsum, kind="encoder", start_id=None, name="own place by einsum")(
    of(in_an_encoder, own_place)
)
_cut = partial(first, cause="reach.cut")
_cut(part="source_mask", name="three keys alone in the encoder")(of(source_mask, first_three))
_cut(part="masks", base=Torchs, name="three keys alone in torchs encoder")(of(masks, first_three))


@entry("reach", "cross_mask", verdict="FAIL", cause="reach.cut", is_long=True, eos_id=None)
def cross_attention_cut_at_twenty(self, src, tgt):
    return self.keys(src) & (torch.arange(src.shape[1]) < 20)


@first(part="masks", base=Torchs, cause="reach.triangle")
def cross_attention_through_a_triangle(self, src, tgt):
    through = torch.ones(tgt.shape[1], src.shape[1], dtype=torch.bool).tril()
    return Torchs.masks(self, src, tgt) | {"memory_mask": ~through}


@quick("pads future", "source_mask", doubts="reach.causal", embedding=True)
def an_encoder_that_looks_back(self, src):
    return self.keys(src) & triangle(src.shape[1])


def _near(ids):
    """The triangle, and in it what is at most two places away."""
    return (triangle(ids.shape[1]) & triangle(ids.shape[1]).triu(-2))[None, None]


unsure = {"verdict": "cannot judge", "cause": "reach.window"}
quick(part="open", base=Attending, name="a window", **unsure, **decoder)(
    lambda self, ids: _near(ids)
)
quick("reach", "open", base=Attending, name="a window that is told", window=2, **decoder)(
    lambda self, ids: _near(ids)
)


def _two_best(self, scores, mask):
    """Each query sees two keys alone, those that suit it best."""
    scores = scores.masked_fill(~mask, -1e9)
    best = scores.topk(min(2, scores.shape[-1]), -1).values[..., -1:]
    return scores.masked_fill(scores < best, -math.inf).softmax(-1)


quick(
    "pads future",
    "weigh",
    base=Attending,
    name="the two best keys",
    cause="reach.chosen",
    **decoder,
)(_two_best)


# Positions ---------------------------------------------------------------------------------------


@first(cause="order.target_unseen")
class a_target_without_places(Translator):
    def __init__(self):
        super().__init__()
        self.target = Embedding(places=False)


@first(cause="order.target_unseen")
class a_target_without_places_in_torchs(Torchs):
    def __init__(self):
        super().__init__()
        self.target = Embedding(places=False)


class _Unplaced(Attending):
    """Two layers of attention, and no places in the embedding."""

    def make(self):
        super().make()
        self.tokens = Embedding(places=False)
        self.second = type(self.attention)()

    def mix(self, x, ids):
        weigh = partial(self.weigh, mask=self.open(ids))
        x = x + self.attention(x, weigh)
        return x + self.second(x, weigh)


quick("pads future", name="order by the triangle alone", cause="order.equal_weights", **decoder)(
    _Unplaced
)


@quick("pads future", cause="order.bag_of_tokens", **decoder)
class a_bag_of_ids(Stream):
    """Each place sees how many of each token came before, and its own; nothing attends."""

    def mix(self, x, ids):
        return (x * real(ids)[..., None]).cumsum(1).tanh()
