"""Models that answer otherwise with gradients, in train mode, or in the precision they came in; and
sound ones of the same parts."""

import torch
from torch import nn
from torch.nn import functional as F

from . import SYMBOLS, Translator, faulty, sound
from .parts import WIDTH, Attention, Embedding, triangle

ONE_STREAM = {"kind": "decoder", "start_id": None, "eos_id": None}


class _Banded(nn.Module):
    """A decoder of one of torch's layers. A token may look two places back."""

    hint, bias = False, False

    def __init__(self):
        super().__init__()
        self.tokens, self.head = Embedding(), nn.Linear(WIDTH, SYMBOLS)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)

    def forward(self, ids):
        closed = ~triangle(ids.shape[1]).triu(-2)
        if self.bias:  # a little less weight for each place back, as in ALiBi
            places = torch.arange(ids.shape[1])
            back = (places[:, None] - places).clamp(0).to(self.head.weight)
            closed = (-0.3 * back).masked_fill(~triangle(ids.shape[1]), -torch.inf)
        return self.head(self.layer(self.tokens(ids), src_mask=closed, is_causal=self.hint))


@faulty("modes", cause="modes.causal_hint", **ONE_STREAM)
class a_band_that_is_called_causal(_Banded):
    hint = True


@faulty("modes", cause="modes.fast_path", **ONE_STREAM)
class a_bias_on_the_fast_path(_Banded):
    bias = True


@sound("modes reach", embedding=None, window=2, **ONE_STREAM)
class a_band_without_a_hint(_Banded):
    pass


class _ByAttention(nn.Module):
    """A decoder around nn.MultiheadAttention, which is handed a band."""

    hint = False

    def __init__(self):
        super().__init__()
        self.tokens, self.head = Embedding(), nn.Linear(WIDTH, SYMBOLS)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, ids):
        x, closed = self.tokens(ids), ~triangle(ids.shape[1]).triu(-2)
        named = {"attn_mask": closed, "need_weights": False, "is_causal": self.hint}
        return self.head(x + self.attention(x, x, x, **named)[0])


@faulty("modes", cause="modes.causal_hint", **ONE_STREAM)
class attention_that_is_called_causal(_ByAttention):
    hint = True


@faulty("modes", "attention.scores", cause="modes.by_training")
def colder_in_train_mode(self, q, k):
    """Scores are halved in train mode alone."""
    return Attention.scores(self, q, k) / (2 if self.training else 1)


@faulty("modes", "layer.branch", cause="modes.by_training")
def branches_shrunk_in_eval_mode(self, x, norm, sublayer):
    """A functional branch, whose share is that of training dropout, in the mode that drops none."""
    y = F.dropout(sublayer(norm(x)), 0.2, self.training)
    return x + (y if self.training else 0.8 * y)


@faulty("modes", "forward", cause="modes.by_gradients")
def places_are_left_out_without_gradients(self, src, tgt):
    if torch.is_grad_enabled():
        return Translator.forward(self, src, tgt)
    y = self.decode(src, tgt, self.encode(src))
    return self.head(y - 0.5 * self.target.places(tgt).to(y))


@faulty("modes", "layer.feed_forward", cause="modes.no_backward")
def changed_in_place(self, x):
    """What the sigmoid gave is needed for its gradient, and is doubled in place."""
    y = self.fc1(x).sigmoid()
    y *= 2
    return self.fc2(y)


@sound("modes", doubts="modes.statistics", embedding=True)
class spectral_norm(Translator):
    """Its estimate of the largest singular value goes on in train mode."""

    def __init__(self):
        super().__init__()
        self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, SYMBOLS))


class _Half(Translator):
    """A model that came in half precision."""

    def __init__(self):
        super().__init__()
        self.half()


sound("modes", name="half precision")(_Half)


@faulty("modes", "attention.weights", base=_Half, cause="modes.raises")
def a_fill_that_half_precision_cannot_hold(self, scores, mask):
    return scores.masked_fill(~mask, -1e9).softmax(-1)


@faulty("modes", "attention.weights", base=_Half, cause="modes.not_finite")
def softmax_by_hand_overflows_in_half_precision(self, scores, mask):
    """The largest score is not taken off, so exp exceeds 65,504."""
    weights = (40 * scores).exp() * mask
    return weights / weights.sum(-1, keepdim=True)
