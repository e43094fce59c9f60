"""Sound models of torch's own parts, and models that torch runs in some other way."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F

from . import SYMBOLS, sound
from .parts import HEADS, WIDTH, Attention, Embedding, Translator, real, triangle, waves


class Torchs(nn.Module):
    """nn.Transformer; True = blocked."""

    options = {"batch_first": True}

    def __init__(self):
        super().__init__()
        sizes = (WIDTH, HEADS, 1, 1, 2 * WIDTH)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on nested tensors
            self.transformer = nn.Transformer(*sizes, **self.options)
        self.transformer.encoder.enable_nested_tensor = False
        self.source, self.target = Embedding(), Embedding()
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def masks(self, src, tgt):
        pads = ~real(src)
        return {
            "tgt_mask": ~triangle(tgt.shape[1]),
            "src_key_padding_mask": pads,
            "memory_key_padding_mask": pads,
        }

    def forward(self, src, tgt):
        x, y = self.source(src), self.target(tgt)
        return self.head(self.transformer(x, y, **self.masks(src, tgt)))


@sound()
class torchs_transformer(Torchs):
    """nn.Transformer, batch first, post-norm."""


@sound()
class torchs_transformer_pre_norm(Torchs):
    """nn.Transformer, batch first, pre-norm, GELU."""

    options = {"batch_first": True, "norm_first": True, "activation": "gelu"}


@sound()
class torchs_transformer_with_target_pads(Torchs):
    """The target's pads are closed as well."""

    def masks(self, src, tgt):
        pads = ~real(tgt)
        pads[:, 0] = False
        return super().masks(src, tgt) | {"tgt_key_padding_mask": pads}


@sound()
class torchs_transformer_with_float_masks(Torchs):
    """Masks of 0 and -inf in floats."""

    def masks(self, src, tgt):
        dtype = self.head.weight.dtype
        zeros = {k: torch.zeros(m.shape, dtype=dtype) for k, m in super().masks(src, tgt).items()}
        return {k: zeros[k].masked_fill(m, -1e9) for k, m in super().masks(src, tgt).items()}


class _TimeFirst(Torchs):
    """nn.Transformer as it comes: (T, B, D)."""

    options = {}

    def forward(self, src, tgt):
        x, y = self.source(src).transpose(0, 1), self.target(tgt).transpose(0, 1)
        found = self.transformer(x, y, **self.masks(src, tgt))
        return self.head(found).transpose(0, 1)


@sound()
class torchs_transformer_time_first_inside(_TimeFirst):
    """nn.Transformer in its default layout, turned on the way in and out."""


class _Turned(Embedding):
    def forward(self, ids):
        return super().forward(ids.mT).transpose(0, 1)


@sound()
class torchs_transformer_with_turned_embeddings(_TimeFirst):
    """Its embeddings take (B, T) and give (T, B, D)."""

    def __init__(self):
        super().__init__()
        self.source, self.target = (_Turning() for _ in range(2))

    def forward(self, src, tgt):
        x, y = self.source(src), self.target(tgt)
        return self.head(self.transformer(x, y, **self.masks(src, tgt))).transpose(0, 1)


class _Turning(Embedding):
    def forward(self, ids):
        return super().forward(ids).transpose(0, 1)


@sound(batch_first=False)
class torchs_transformer_time_first(_TimeFirst):
    """Ids (S, B) and (T, B) to logits (T, B, V), which is told."""

    def __init__(self):
        super().__init__()
        self.source, self.target = _FirstPlace(), _FirstPlace()

    def forward(self, src, tgt):
        x, y = self.source(src), self.target(tgt)
        return self.head(self.transformer(x, y, **self.masks(src.mT, tgt.mT)))


class _FirstPlace(Embedding):
    def forward(self, ids):
        return self.tokens(ids) + waves(torch.arange(len(ids)))[:, None].to(self.tokens.weight)


@sound("PASS or cannot judge or refused", batch_first=None)
class torchs_transformer_time_first_untold(torchs_transformer_time_first):
    """The same, and nothing is told of it."""


class _Multihead(nn.Module):
    """nn.MultiheadAttention in the place of Attention."""

    options = {"batch_first": True}

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, **self.options)

    def forward(self, x, memory, mask):
        rows = mask.expand(len(x), HEADS, x.shape[1], memory.shape[1]).flatten(0, 1)
        blocked = torch.zeros(rows.shape, dtype=x.dtype).masked_fill(~rows, -1e9)
        return self.inner(x, memory, memory, attn_mask=blocked, need_weights=False)[0]


@sound()
class multihead_attention(Translator):
    """nn.MultiheadAttention with a mask for each head."""

    attention = _Multihead


@sound()
class multihead_attention_with_bias_keys(Translator):
    """nn.MultiheadAttention with add_bias_kv and add_zero_attn."""

    class attention(_Multihead):
        options = {"batch_first": True, "add_bias_kv": True, "add_zero_attn": True}


@sound()
class multihead_attention_of_other_widths(Translator):
    """nn.MultiheadAttention with kdim and vdim."""

    class attention(_Multihead):
        options = {"batch_first": True, "kdim": WIDTH, "vdim": WIDTH}

        def __init__(self):
            nn.Module.__init__(self)
            self.inner = nn.MultiheadAttention(WIDTH, HEADS, kdim=6, vdim=6, batch_first=True)
            self.narrow = nn.Linear(WIDTH, 6)

        def forward(self, x, memory, mask):
            rows = mask.expand(len(x), HEADS, x.shape[1], memory.shape[1]).flatten(0, 1)
            blocked = torch.zeros(rows.shape, dtype=x.dtype).masked_fill(~rows, -1e9)
            keys = self.narrow(memory)
            return self.inner(x, keys, keys, attn_mask=blocked)[0]


@sound()
class torchs_decoder_layers(Translator):
    """nn.TransformerEncoderLayer and nn.TransformerDecoderLayer, called one by one."""

    def __init__(self):
        super().__init__()
        options = {"dim_feedforward": 16, "batch_first": True}
        self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, HEADS, **options)])
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(WIDTH, HEADS, **options)])

    def encode(self, src):
        return self.encoder[0](self.source(src), src_key_padding_mask=~real(src))

    def decode(self, src, tgt, memory):
        given = {"tgt_mask": ~triangle(tgt.shape[1]), "memory_key_padding_mask": ~real(src)}
        return self.decoder[0](self.target(tgt), memory, **given)


# Other ways to run ---------------------------------------------------------------------------


@sound(embedding=None)
def in_bf16():
    """The model runs in bf16 alone."""
    model = Translator().bfloat16().eval()
    return {"model": lambda src, tgt: model(src, tgt)}


@sound()
def a_module_in_bf16():
    """A module whose weights are bf16."""
    return Translator().bfloat16()


@sound()
def a_module_in_fp16():
    """A module whose weights are fp16."""
    return Translator().half()


@sound()
def a_module_in_fp64():
    """A module whose weights are fp64."""
    return Translator().double()


@sound()
class autocast(Translator):
    """Products in bf16 under autocast."""

    def forward(self, src, tgt):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(src, tgt).float()


@sound()
class logits_in_single_precision(Translator):
    """Logits are cast to fp32 for the loss."""

    def forward(self, src, tgt):
        return super().forward(src, tgt).float()


@sound()
class without_gradients(Translator):
    """torch.no_grad around all of it."""

    @torch.no_grad()
    def forward(self, src, tgt):
        return super().forward(src, tgt)


@sound()
class in_inference_mode(Translator):
    """torch.inference_mode around all of it."""

    @torch.inference_mode()
    def forward(self, src, tgt):
        return super().forward(src, tgt)


@sound()
class nan_only_in_fp64(Translator):
    """A constant made for fp32 overflows in fp64's path alone, as LED's does."""

    def encode(self, src):
        x = super().encode(src)
        return x * torch.nan if x.dtype == torch.float64 else x


@sound()
class fp32_inside(Translator):
    """A layer of fixed fp32 weights inside, which refuses fp64."""

    def __init__(self):
        super().__init__()
        self.fixed = [torch.randn(WIDTH, WIDTH)]

    def embed_source(self, src):
        return self.source(src) @ self.fixed[0]


@sound(embedding=None)
def lazy_layers():
    """Layers whose input width is found at the first call."""
    model = Translator()
    model.head = nn.LazyLinear(SYMBOLS)
    return model


class _Scripted(nn.Module):
    """A model that torch.jit.script takes."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Parameter(torch.randn(600, WIDTH))
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        x = self.source(src) + self.places[: src.size(1)]
        y = self.target(tgt) + self.places[: tgt.size(1)]
        past = torch.ones(tgt.size(1), tgt.size(1)).tril() > 0
        y = y + F.scaled_dot_product_attention(y, y, y, attn_mask=past)
        scores = (y @ x.transpose(1, 2)).masked_fill((src == 0).unsqueeze(1), -1e9)
        return self.head(y + scores.softmax(-1) @ x)


@sound(embedding=None)
def scripted():
    """torch.jit.script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(_Scripted())


@sound(embedding=None)
def traced_by_fx():
    """torch.fx.symbolic_trace of the stack, behind a function that makes the masks."""
    model = Translator()
    model.encoder[0].fc1 = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 16), nn.Tanh()))
    return model


@sound(embedding=None)
class vectorised_over_rows(Translator):
    """torch.vmap over the rows of the batch."""

    def forward(self, src, tgt):
        one = lambda s, t: super(vectorised_over_rows, self).forward(s[None], t[None])[0]  # noqa: E731
        return torch.vmap(one, randomness="different")(src, tgt)


@sound()
class row_by_row(Translator):
    """Each row runs alone."""

    def forward(self, src, tgt):
        pairs = zip(src.split(1), tgt.split(1), strict=True)
        return torch.cat([super(row_by_row, self).forward(s, t) for s, t in pairs])


@sound()
class attention_by_einsum(Translator):
    """Weights named otherwise, nothing that a name could tell."""

    class attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, HEADS, WIDTH, WIDTH // HEADS) / 3)

        def forward(self, x, memory, mask):
            a, b, c = (
                torch.einsum("btd,hdk->bhtk", y, w)
                for y, w in zip((x, memory, memory), self.w[:3], strict=True)
            )
            weights = Attention.weights(self, a @ b.mT / 2, mask)
            return torch.einsum("bhtk,hdk->btd", weights @ c, self.w[3])
