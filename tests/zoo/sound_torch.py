"""Sound models of torch's own parts, and models that torch runs in some other way."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F

from . import SYMBOLS, sound
from .parts import HEADS, WIDTH, Embedding, Translator, real, triangle, waves


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


@sound(batch_first=False)
class torchs_transformer_time_first(Torchs):
    """Ids (S, B) and (T, B) to logits (T, B, V), which is told."""

    options = {}

    def __init__(self):
        super().__init__()
        self.source, self.target = _FirstPlace(), _FirstPlace()

    def masks(self, src, tgt):
        return super().masks(src.mT, tgt.mT)


class _FirstPlace(Embedding):
    def forward(self, ids):
        return self.tokens(ids) + waves(torch.arange(len(ids)))[:, None].to(self.tokens.weight)


@sound()
class in_inference_mode(Translator):
    """torch.inference_mode around all of it."""

    @torch.inference_mode()
    def forward(self, src, tgt):
        return super().forward(src, tgt)


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


@sound()
class multihead_attention_of_other_widths(Translator):
    """nn.MultiheadAttention with kdim and vdim."""

    class attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(WIDTH, HEADS, kdim=6, vdim=6, batch_first=True)
            self.narrow = nn.Linear(WIDTH, 6)

        def forward(self, x, memory, mask):
            rows = mask.expand(len(x), HEADS, x.shape[1], memory.shape[1]).flatten(0, 1)
            blocked = torch.zeros(rows.shape, dtype=x.dtype).masked_fill(~rows, -1e9)
            keys = self.narrow(memory)
            return self.inner(x, keys, keys, attn_mask=blocked)[0]


@sound(embedding=None)
def scripted():
    """torch.jit.script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(_Scripted())
