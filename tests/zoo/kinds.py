"""One-stream models with one fault each, in two styles, as modules and in functions of torch; what
`check` says of them goes by what is at fault, whatever checks it fails."""

import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from . import PAD, SYMBOLS, entry
from .parts import HEADS, WIDTH, Embedding, merge_heads, real, split_heads, triangle

first = partial(entry, verdict="FAIL", is_first=True)
sound = partial(entry, verdict="PASS", is_quick=True, eos_id=None)


class Stream(nn.Module):
    """ids (B, L) -> logits (B, L, V). `mix` is what lets tokens see each other."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm = Embedding(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS)
        self.make()

    def make(self):
        """Further parts."""

    def forward(self, ids):
        x = self.tokens(ids)
        return self.head(self.norm(x + self.mix(x, ids)))


def decoder(cause):
    return partial(first, cause=cause, kind="decoder", eos_id=None)


def encoder(cause):
    return partial(first, cause=cause, kind="encoder", eos_id=None, start_id=None)


def past(x):
    """(T, 1): how many places each one may see."""
    return torch.arange(1, x.shape[1] + 1)[:, None].to(x)


# No attention ------------------------------------------------------------------------------------


@decoder("future.norm")()
class layer_norm_of_the_whole_sequence(Stream):
    def mix(self, x, ids):
        return F.layer_norm(x, x.shape[1:]).cumsum(1) / past(x)


@decoder("future.norm")()
class group_norm_over_places(Stream):
    """nn.GroupNorm takes (B, D, L), and its statistics over L."""

    def make(self):
        self.groups = nn.GroupNorm(2, WIDTH)

    def mix(self, x, ids):
        return self.groups(x.mT).mT.cumsum(1) / past(x)


@encoder("pads.norm")()
class standardised_by_hand(Stream):
    def mix(self, x, ids):
        center = x.mean((1, 2), keepdim=True)
        return (x - center) / (x - center).square().mean((1, 2), keepdim=True).sqrt()


@decoder("future.convolution")()
class convolution_that_looks_ahead(Stream):
    def make(self):
        self.filters = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def mix(self, x, ids):
        return self.filters(x.mT).mT


@encoder("pads.convolution")()
class convolution_over_pads_in_a_function(Stream):
    """Pads have an embedding and places, which a wide filter reads."""

    def make(self):
        self.filters = nn.Parameter(torch.randn(WIDTH, WIDTH, 5))

    def mix(self, x, ids):
        return F.conv1d(x.transpose(1, 2), self.filters, padding=2).transpose(1, 2)


@decoder("future.recurrence")()
class both_directions_in_a_decoder(Stream):
    def make(self):
        self.steps = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)

    def mix(self, x, ids):
        return self.steps(x)[0]


@encoder("pads.recurrence")()
class backwards_from_the_pads_by_hand(Stream):
    def make(self):
        self.step = nn.Linear(2 * WIDTH, WIDTH)

    def mix(self, x, ids):
        state, found = torch.zeros_like(x[:, 0]), []
        for place in reversed(range(x.shape[1])):
            state = self.step(torch.cat((x[:, place], state), -1)).tanh()
            found.append(state)
        return torch.stack(found[::-1], 1)


@decoder("future.pooling")()
class mean_of_all_places(Stream):
    def mix(self, x, ids):
        return x.mean(1, keepdim=True)


@encoder("pads.pooling")()
class sum_with_pads_by_einsum(Stream):
    def mix(self, x, ids):
        return torch.einsum("bld->bd", x)[:, None] / 9


class Choosing(Stream):
    def make(self):
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))


@decoder("future.experts")()
class experts_choose_tokens(Choosing):
    """Each expert takes the half of the tokens that it likes best."""

    def mix(self, x, ids):
        liked, y = self.router(x).softmax(-1), x.cumsum(1) / past(x)
        for expert, work in enumerate(self.experts):
            best = liked[..., expert].topk(x.shape[1] // 2, 1).indices
            taken = torch.zeros_like(liked[..., 0]).scatter(1, best, 1.0)
            y = y + taken[..., None] * work(x)
        return y


@encoder("pads.experts")()
class experts_with_room_for_few(Choosing):
    """The tokens that are sent to an expert beyond its room, half of the batch, are dropped; the
    surest ones come first, pads among them."""

    def mix(self, x, ids):
        sure, chosen = self.router(x).softmax(-1).max(-1)
        order = sure.argsort(1, descending=True)
        y = x.sum(1, keepdim=True) * 0
        for expert, work in enumerate(self.experts):
            mine = (chosen == expert).gather(1, order)
            kept = mine & (mine.cumsum(1) <= 3)
            y = y + torch.zeros_like(sure).scatter(1, order, kept.to(x))[..., None] * work(x)
        return y


@decoder("future.product")()
class matrix_over_places(Stream):
    """An MLP over places, as in the MLP-Mixer, without a triangle."""

    def make(self):
        self.places = nn.Parameter(torch.randn(99, 99) / 9)

    def mix(self, x, ids):
        return self.places[: x.shape[1], : x.shape[1]] @ x


@encoder("pads.product")()
class linear_attention_over_pads(Stream):
    def mix(self, x, ids):
        kept = torch.einsum("bld,ble->bde", x.sigmoid(), x)
        return torch.einsum("bld,bde->ble", x.sigmoid(), kept) / 9


@decoder("future.shift")()
class rolled_the_wrong_way(Stream):
    def mix(self, x, ids):
        return x.roll(-1, 1) + x.cumsum(1) / past(x)


@decoder("future.shift")()
class reads_the_next_token(Stream):
    """The ids are cut and filled up behind, where they should be filled up in front."""

    def mix(self, x, ids):
        return self.tokens(F.pad(ids[:, 1:], (0, 1), value=PAD)) + x.cumsum(1) / past(x)


@encoder("pads.length")()
class scaled_by_the_padded_width(Stream):
    def mix(self, x, ids):
        kept = x * real(ids)[..., None]
        return kept.sum(1, keepdim=True) / x.shape[1]


@encoder("pads.length")()
class places_from_the_padded_end(Stream):
    def make(self):
        self.table = nn.Parameter(torch.randn(99, WIDTH))

    def mix(self, x, ids):
        kept = (x * real(ids)[..., None]).sum(1, keepdim=True)
        return kept + self.table[: x.shape[1]].flip(0)


# Attention ---------------------------------------------------------------------------------------


class Attending(Stream):
    """Attention as a module with projections; its mask and its softmax are to be varied."""

    def make(self):
        self.attention = Projected()

    def mix(self, x, ids):
        return self.attention(x, partial(self.weigh, mask=self.open(ids)))

    def open(self, ids):
        """(B or 1, 1, T or 1, T): what may be seen."""
        return triangle(ids.shape[1])[None, None]

    def weigh(self, scores, mask):
        return scores.masked_fill(~mask, -1e9).softmax(-1)


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, weigh):
        q, k, v = (split_heads(f(x)) for f in (self.a, self.b, self.c))
        return merge_heads(weigh(q @ k.mT / math.sqrt(q.shape[-1])) @ v)


class ByEinsum(Attending):
    """Attention in the model's own forward, by einsum and with one parameter."""

    def make(self):
        self.projections = nn.Parameter(torch.randn(3, WIDTH, HEADS, WIDTH // HEADS) / 4)

    def mix(self, x, ids):
        q, k, v = torch.einsum("btd,pdhe->pbhte", x, self.projections)
        scores = torch.einsum("bhqe,bhke->bhqk", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("bhqk,bhke->bqhe", self.weigh(scores, self.open(ids)), v).flatten(2)


def in_both_styles(name, register, **methods):
    """Register a model that has other methods, as a module and by einsum."""
    for base, style in ((Attending, "in a module"), (ByEinsum, "by einsum")):
        register(name=f"{name} {style}")(partial(type("Model", (base,), methods)))


def mask_behind_softmax(self, scores, mask):
    return scores.softmax(-1) * mask


def mask_behind_softmax_and_the_rest_shared_out(self, scores, mask):
    weights = scores.softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True)


def capped_behind_the_mask(self, scores, mask):
    return (8 * (scores.masked_fill(~mask, -1e9) / 8).tanh()).softmax(-1)


def turned_round(self, scores, mask):
    return scores.masked_fill(mask, -1e9).softmax(-1)


def strictly_past(self, ids):
    """No query sees itself, so the first one has no key."""
    return triangle(ids.shape[1]).tril(-1)[None, None]


def not_pads(self, ids):
    return real(ids)[:, None, None]


for _cause, _methods in {
    "mask_behind_softmax": {"weigh": mask_behind_softmax},
    "mask_inverted": {"weigh": turned_round},
    "closed_by_too_little": {"weigh": capped_behind_the_mask},
}.items():
    _name = _cause.replace("_", " ")
    in_both_styles(f"future with {_name}", decoder(f"future.{_cause}"), **_methods)
    in_both_styles(f"pads with {_name}", encoder(f"pads.{_cause}"), open=not_pads, **_methods)
in_both_styles("a strict triangle", decoder("future.query_without_key"), open=strictly_past)
_shared = {"weigh": mask_behind_softmax_and_the_rest_shared_out}
in_both_styles("shared out again", partial(sound, "pads future", kind="decoder"), **_shared)


def minus_thirty_added(self, scores, mask):
    return (scores - 30 * (~mask).to(scores)).softmax(-1)


def capped_at_twenty_five_behind_the_mask(self, scores, mask):
    return (25 * (scores.masked_fill(~mask, -1e9) / 25).tanh()).softmax(-1)


def minus_ten_thousand(self, scores, mask):
    return scores.masked_fill(~mask, -1e4).softmax(-1)


in_both_styles("minus thirty added", decoder("future.open_when_trained"), weigh=minus_thirty_added)
_pads = {"weigh": minus_thirty_added, "open": not_pads}
in_both_styles("minus thirty added for pads", encoder("pads.open_when_trained"), **_pads)
decoder("future.open_when_trained")(part="weigh", base=Attending)(
    capped_at_twenty_five_behind_the_mask
)
in_both_styles(
    "minus ten thousand", partial(sound, "pads future", kind="decoder"), weigh=minus_ten_thousand
)
