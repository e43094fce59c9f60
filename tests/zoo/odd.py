"""Sound models of unusual build, which look as if they were faulty; and models that drop where
nobody looks for it."""

import torch
from torch import nn
from torch.nn import functional as F

from . import Translator, entry
from .kinds import Attending
from .parts import HEADS, WIDTH, Attention, Layer, merge_heads, real, split_heads

DECODER = {"kind": "decoder", "eos_id": None}


def sound(checks="pads future", part="", **given):
    return entry(checks, part, verdict="PASS", is_quick=True, embedding=True, **given)


@sound("pads", "attention.scores", doubts="scale.another")
def queries_and_keys_of_unit_length(self, q, k):
    """nGPT: what is of unit length is multiplied by the root of the head's width."""
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * q.shape[-1] ** 0.5


@sound("pads sublayers")
class latents_that_read_the_source(Translator):
    """A Perceiver with as many latents as a source may have places; the decoder reads them."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList()
        self.latents = nn.Parameter(torch.randn(5, WIDTH))
        self.readers = nn.ModuleList(Attention() for _ in range(2))

    def encode(self, src):
        x, seen = self.source(src), real(src)[:, None, None]
        latents = self.latents.expand(len(src), -1, -1)
        for reader in self.readers:
            latents = latents + reader(latents, x, seen)
        return latents

    def cross_mask(self, src, tgt):
        return torch.ones(1, 1, 1, len(self.latents), dtype=torch.bool)


@sound("pads")
class batch_norm_over_real_places(Translator):
    """BatchNorm sees no pad; in train mode its statistics are those of all rows, as it is meant."""

    def __init__(self):
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(WIDTH)

    def embed_source(self, src):
        x, keep = self.source(src), real(src)
        return x.masked_scatter(keep[..., None], self.batch_norm(x[keep]))


@sound("weights", only="weights")
class distances_that_are_not_met(Translator):
    """Each query makes a bias for each of 80 distances, most of which no short sequence has."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.biases = nn.Linear(WIDTH, 80 * HEADS)

        def forward(self, x, memory, mask):
            q, k = split_heads(self.q_proj(x)), split_heads(self.k_proj(memory))
            far = (torch.arange(x.shape[1])[:, None] - torch.arange(memory.shape[1])).abs()
            far = far.clamp(max=79).expand(len(x), HEADS, -1, -1)
            biases = self.biases(x).unflatten(-1, (80, HEADS)).permute(0, 3, 1, 2)  # (B, H, T, 80)
            weights = self.weights(self.scores(q, k) + biases.gather(-1, far), mask)
            return self.out_proj(merge_heads(weights @ split_heads(self.v_proj(memory))))


@sound("weights", only="weights", doubts="weights.chosen_from")
class keys_that_are_chosen(Translator):
    """An indexer scores keys, of which the hundred best are open: all, in sequences as short."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.indexer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, memory, mask):
            scores = (self.indexer(x) @ memory.mT)[:, None]
            best = scores.topk(min(100, memory.shape[1]), -1).indices
            chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
            return super().forward(x, memory, mask & chosen)


@sound("weights", **DECODER)
class windows_of_sixteen_places(Attending):
    """Each place sees its past, and of what lies 16 places back or more a sum over windows, of
    which short sequences have none."""

    def make(self):
        super().make()
        self.compress = nn.Linear(WIDTH, WIDTH)

    def mix(self, x, ids):
        count = x.shape[1] // 16
        windows = self.compress(x[:, : 16 * count].unflatten(1, (count, 16)).mean(2)).cumsum(1)
        before = F.pad(windows, (0, 0, 1, 0)).repeat_interleave(16, 1)[:, : x.shape[1]]
        return super().mix(x, ids) + before.tanh()


@sound("weights sublayers", only="weights,sublayers")
class feed_forward_that_adds_what_it_is_given(Translator):
    class layer(Layer):
        class Network(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

            def forward(self, normed, x):
                return x + self.down(self.up(normed).relu())

        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            self.network = self.Network()
            del self.fc1, self.fc2

        def forward(self, x, mask, memory=None, cross_mask=None):
            x = self.branch(x, self.self_attn_norm, lambda h: self.self_attn(h, h, mask))
            if memory is not None:
                cross = lambda h: self.encoder_attn(h, memory, cross_mask)  # noqa: E731
                x = self.branch(x, self.encoder_attn_norm, cross)
            return self.network(self.fc_norm(x), x)


@sound("modes", only="modes")
class zeros_that_are_frozen_and_a_rate_that_is_none(Translator):
    """A state that starts at zero and is not trained; and a number that both modes use, which has
    the name of a rate."""

    def __init__(self):
        super().__init__()
        self.state = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)
        self.jitter_eps = 0.5

    def embed_source(self, src):
        return self.source(src) * (1 + self.jitter_eps) + self.state


@sound("weights", only="weights", doubts="weights.shared")
class one_layer_under_two_names(Translator):
    """[layer] * 2 holds one layer, which may be meant."""

    def __init__(self):
        super().__init__()
        self.decoder = nn.ModuleList([*self.decoder] * 2)


@sound("weights", only="weights", doubts="")
class one_layer_that_is_called_twice(Translator):
    """A universal transformer, post-norm."""

    class layer(Layer):
        def branch(self, x, norm, sublayer):
            return norm(x + sublayer(x))

    def __init__(self):
        super().__init__()
        self.of_decoder = self.decoder.pop(0)

    def decode(self, src, tgt, memory):
        y = self.embed_target(tgt)
        for _ in range(2):
            y = self.of_decoder(y, self.target_mask(tgt), memory, self.cross_mask(src, tgt))
        return self.decoder_norm(y)


@sound("sublayers", only="sublayers", doubts="sublayers.queries_without_residual")
class queries_of_cross_attention_without_a_residual(Translator):
    class layer(Layer):
        def forward(self, x, mask, memory=None, cross_mask=None):
            y = self.self_attn(x, x, mask)
            x = self.self_attn_norm(x + y)
            if memory is not None:
                x = self.encoder_attn_norm(x + self.encoder_attn(y, memory, cross_mask))
            return self.fc_norm(x + self.feed_forward(x))


@sound("pads future")
def compiled():
    """Compiled, though never called so: what check copies is the module inside."""
    return {"model": torch.compile(Translator())}


@entry(verdict="refused", says="gave 2 tensors (4, 8, 8), and nothing says", vocabulary_size=8)
class hidden_states_as_wide_as_the_vocabulary(Translator):
    """(hidden, logits) of one shape."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, src, tgt):
        y = self.decode(src, tgt, self.encode(src))
        return y, self.head(y)


# Dropout where nobody looks for it ---------------------------------------------------------------

drops = {"base": Attending, "cause": "calls.draws_random_numbers", "verdict": "FAIL", **DECODER}


@entry("calls pads", "mix", is_long=True, **drops)
def drops_beyond_twelve_places(self, x, ids):
    """Functional dropout in eval mode, and in longer sequences alone."""
    y = Attending.mix(self, x, ids)
    return F.dropout(y, 0.2) if ids.shape[1] > 12 else y


@entry("", "mix", is_first=True, **drops)
def dropout_of_fused_attention_in_eval_mode(self, x, ids):
    """F.scaled_dot_product_attention drops whatever mode the model is in."""
    q, k, v = (split_heads(f(x)) for f in (self.attention.a, self.attention.b, self.attention.c))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
    return y.transpose(1, 2).flatten(2)
