"""Sound layers: other norms, branches, feed-forwards, and ways to share weights."""

import torch
from torch import nn
from torch.nn import functional as F

from . import sound
from .parts import WIDTH, Attention, Embedding, Layer, Translator, triangle


def _of_layers(layer):
    model = type("Model", (Translator,), {"layer": layer})
    return model()


class _PostNorm(Layer):
    def branch(self, x, norm, sublayer):
        return norm(x + self.dropout(sublayer(x)))


@sound()
class pre_norm(Translator):
    """The model as parts.py has it."""

    depth = 2


@sound()
class post_norm(Translator):
    """Norms behind each sum, and none at the end."""

    layer, final_norm = _PostNorm, nn.Identity


@sound()
def sandwich_norm():
    """Norms before and behind each sub-layer."""

    class Sandwich(Layer):
        def branch(self, x, norm, sublayer):
            return x + self.dropout(F.layer_norm(sublayer(norm(x)), (WIDTH,)))

    return _of_layers(Sandwich)


@sound()
class rms_norm(Translator):
    """RMSNorm everywhere."""

    final_norm = nn.RMSNorm

    class layer(Layer):
        norm = nn.RMSNorm


class _NoNorm(Layer):
    norm = nn.Identity


@sound()
class no_norms(Translator):
    """No norm anywhere."""

    final_norm, layer = nn.Identity, _NoNorm


@sound()
class no_final_norm(Translator):
    """Pre-norm layers without a norm at the end."""

    final_norm = nn.Identity


@sound()
def rezero():
    """Branches are scaled by learned numbers that begin at zero."""

    class ReZero(_NoNorm):
        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            self.alpha = nn.Parameter(torch.zeros(()))

        def branch(self, x, norm, sublayer):
            return x + self.alpha * self.dropout(sublayer(x))

    return _of_layers(ReZero)


@sound()
def small_layer_scale():
    """Branches are scaled by a learned vector that begins at 1e-4."""

    class Scaled(Layer):
        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            self.gamma = nn.Parameter(torch.full((WIDTH,), 1e-4))

        def branch(self, x, norm, sublayer):
            return x + self.gamma * self.dropout(sublayer(norm(x)))

    return _of_layers(Scaled)


@sound()
class zero_head(Translator):
    """The output matrix begins at zero."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


@sound()
class zero_branches(Translator):
    """The last matrix of every branch begins at zero."""

    def __init__(self):
        super().__init__()
        for name, module in self.named_modules():
            if name.endswith(("out_proj", "fc2")):
                nn.init.zeros_(module.weight)
                nn.init.zeros_(module.bias)


@sound()
class zero_cross_attention(Translator):
    """A gate of zero on cross-attention, as for a decoder that was trained alone (Flamingo)."""

    class layer(Layer):
        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, x, mask, memory=None, cross_mask=None):
            x = super().forward(x, mask)
            if memory is None:
                return x
            return x + self.gate.tanh() * self.encoder_attn(x, memory, cross_mask)


@sound()
def low_rank_adapters():
    """LoRA: the second factor begins at zero."""

    class Adapted(nn.Linear):
        def __init__(self, inner, outer):
            super().__init__(inner, outer)
            self.a = nn.Parameter(torch.randn(2, inner))
            self.b = nn.Parameter(torch.zeros(outer, 2))

        def forward(self, x):
            return super().forward(x) + x @ self.a.mT @ self.b.mT

    model = Translator()
    for layer in (*model.encoder, *model.decoder):
        layer.fc1 = Adapted(WIDTH, 2 * WIDTH)
        layer.self_attn.q_proj = Adapted(WIDTH, WIDTH)
    return model


@sound()
def parallel_branches():
    """Attention and feed-forward side by side, as in GPT-J."""

    class Parallel(Layer):
        def forward(self, x, mask, memory=None, cross_mask=None):
            h = self.self_attn_norm(x)
            y = x + self.self_attn(h, h, mask) + self.feed_forward(h)
            if memory is None:
                return y
            return y + self.encoder_attn(self.encoder_attn_norm(y), memory, cross_mask)

    return _of_layers(Parallel)


@sound()
def gated_feed_forward():
    """SwiGLU."""

    class Gated(Layer):
        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            self.gate = nn.Linear(WIDTH, 2 * WIDTH)

        def feed_forward(self, x):
            return self.fc2(F.silu(self.gate(x)) * self.fc1(x))

    return _of_layers(Gated)


@sound()
def highway():
    """Gates in place of residual sums."""

    class Highway(Layer):
        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            self.gate = nn.Linear(WIDTH, WIDTH)

        def branch(self, x, norm, sublayer):
            share = self.gate(x).sigmoid()
            return share * x + (1 - share) * sublayer(norm(x))

    return _of_layers(Highway)


@sound()
def attention_alone():
    """No feed-forward layers by design."""

    class Alone(Layer):
        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            del self.fc1, self.fc2

        def forward(self, x, mask, memory=None, cross_mask=None):
            x = x + self.self_attn(h := self.self_attn_norm(x), h, mask)
            if memory is None:
                return x
            return x + self.encoder_attn(self.encoder_attn_norm(x), memory, cross_mask)

    return _of_layers(Alone)


@sound()
class tied_embeddings(Translator):
    """One matrix embeds source and target and makes the logits."""

    def __init__(self):
        super().__init__()
        self.target = self.source
        self.head.weight = self.source.tokens.weight


@sound()
class shared_layers(Translator):
    """One layer is used three times, as in ALBERT."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList([self.encoder[0]] * 3)
        self.decoder = nn.ModuleList([self.decoder[0]] * 3)


@sound()
class deep_encoder(Translator):
    """Three encoder layers and one decoder layer."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList(Layer(Attention, False) for _ in range(3))


@sound()
class norm_between_the_halves(Translator):
    """A projection named encoder.out_proj stands between encoder and decoder."""

    def __init__(self):
        super().__init__()
        self.encoder.out_proj = nn.Linear(WIDTH, WIDTH)

    def encode(self, src):
        x = self.embed_source(src)
        for layer in list(self.encoder)[: self.depth]:
            x = layer(x, self.source_mask(src, 0))
        return self.encoder.out_proj(self.encoder_norm(x))


@sound()
class no_places_in_the_decoder(Translator):
    """The decoder's triangle alone tells it order (NoPE)."""

    def __init__(self):
        super().__init__()
        self.target = Embedding(places=False)


@sound()
class scaled_embeddings(Translator):
    """Embeddings times the root of D, places added after."""

    def embed_source(self, src):
        return self.source(src) * WIDTH**0.5

    def embed_target(self, tgt):
        return self.target(tgt) * WIDTH**0.5


class _Learned(Embedding):
    limit = 80

    def __init__(self):
        super().__init__(places=False)
        self.table = nn.Embedding(self.limit, WIDTH)

    def forward(self, ids):
        return super().forward(ids) + self.table(torch.arange(ids.shape[1]))


@sound(max_length=20)
class learned_places_of_twenty(Translator):
    """A table of 20 learned places, which is told."""

    def __init__(self):
        super().__init__()
        table = type("Table", (_Learned,), {"limit": 20})
        self.source, self.target = table(), table()


@sound("PASS or cannot judge")
class learned_places_of_thirty(Translator):
    """A table of 30 learned places, which is not told: longer inputs raise IndexError."""

    def __init__(self):
        super().__init__()
        table = type("Table", (_Learned,), {"limit": 30})
        self.source, self.target = table(), table()


@sound()
class hourglass_with_a_shift(Translator):
    """Groups of two are pooled after a shift by one, so no group sees its own end early."""

    def embed_target(self, tgt):
        y = self.target(tgt)
        shifted = F.pad(y, (0, 0, 1, 0))[:, : y.shape[1]]
        groups = F.pad(shifted, (0, 0, 0, -y.shape[1] % 2)).unflatten(1, (-1, 2)).mean(2)
        late = F.pad(groups, (0, 0, 1, 0)).repeat_interleave(2, 1)[:, : y.shape[1]]
        return y + late


@sound()
class two_triangles(Translator):
    """A second stream of the same decoder reads the target one step late."""

    def target_mask(self, tgt, number):
        length = tgt.shape[1]
        return torch.stack((triangle(length), triangle(length, -1)))[None]
