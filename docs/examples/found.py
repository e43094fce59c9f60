"""Mistakes of docs/found.md in small models; `toytrans check --model found.py:NAME` asks one."""

import math

import torch
from torch import nn
from torch.nn import functional as F

PADS = {"pad_id": 0, "vocabulary_size": 50}
DECODER = {"kind": "decoder", **PADS}
ENDS = {"start_id": 1, "eos_id": 2, **PADS}


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(128, 32)

    def embed(self, ids):
        return self.words(ids) + self.places.weight[: ids.shape[1]]


def future_in_eval():
    """The decoder makes its causal mask in train mode alone."""

    class Decoder(Embedded):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.out = nn.Linear(32, 50)

        def forward(self, ids):
            future = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
            return self.out(self.layer(self.embed(ids), future if self.training else None))

    return {"model": Decoder(), **DECODER}


def position_zero():
    """Decoding gives every token the first position."""

    class Decoder(Embedded):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 50)

        def forward(self, ids, cache=None):
            x = self.embed(ids)
            q, k, v = self.qkv(x).chunk(3, -1)
            if cache is not None:
                cache[:] = k, v = [torch.cat(pair, 1) for pair in zip(cache, (k, v), strict=True)]
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
            return self.out(x)

        def generate(self, _, ids):  # one token at a time, with a cache
            cache = [torch.empty(len(ids), 0, 32).to(self.words.weight)] * 2
            return torch.cat([self(ids[:, [i]], cache) for i in range(ids.shape[1])], 1)

    model = Decoder()
    return {"model": model, "generate": model.generate, **DECODER}


class ByHand(Embedded):
    """A decoder of one attention."""

    def __init__(self, closed: float, transposed: bool) -> None:
        super().__init__()
        self.closed, self.transposed = closed, transposed
        self.qkv, self.project = nn.Linear(32, 96), nn.Linear(32, 32)
        self.out = nn.Linear(32, 50)

    def forward(self, ids):
        (B, T), H = ids.shape, 4
        x = self.embed(ids)
        q, k, v = self.qkv(x).view(B, T, 3, H, 32 // H).permute(2, 0, 3, 1, 4)  # (B, H, T, 8)
        scores = q @ k.transpose(-1, -2) / math.sqrt(32 // H)
        scores = scores.masked_fill(torch.ones(T, T).triu(1) == 1, self.closed)
        heads = scores.softmax(-1) @ v
        heads = heads.transpose(1, 2) if self.transposed else heads
        return self.out(x + self.project(heads.reshape(B, T, 32)))


def masks_that_close_nothing():
    """Closed scores hold -1e-12."""
    return {"model": ByHand(closed=-1e-12, transposed=True), **DECODER}


def mixed_heads():
    """Heads are merged without a transpose."""
    return {"model": ByHand(closed=-math.inf, transposed=False), **DECODER}


def pads_in_cross_attention():
    """`nn.Transformer` without `memory_key_padding_mask`."""

    class Translator(Embedded):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            layer = nn.TransformerDecoderLayer(32, 4, 64, batch_first=True)
            self.decoder = nn.TransformerDecoder(layer, 2)
            self.out = nn.Linear(32, 50)

        def forward(self, src, tgt):
            future = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
            memory = self.encoder(self.embed(src), src_key_padding_mask=src == 0)
            return self.out(self.decoder(self.embed(tgt), memory, tgt_mask=future))

    return {"model": Translator(), **PADS}


def sound_model():
    torch.manual_seed(0)
    table = nn.Embedding(50, 50)

    def model(src, tgt_in):
        weights = (src != 0) / torch.arange(1, src.shape[1] + 1)
        return table(tgt_in).cumsum(1) + (table(src) * weights[..., None]).sum(1, keepdim=True)

    return model


def scored_pads():
    """The loss counts pads as labels."""

    def loss(logits, labels):  # (B, T, V), (B, T)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return {"model": sound_model(), "loss": loss, **ENDS}


def divided_by_pads():
    """The loss skips pads, and divides by them."""

    def loss(logits, labels):  # (B, T, V), (B, T)
        right = F.one_hot(labels, 50) * (labels != 0)[..., None]  # pads: all zero
        divergence = nn.KLDivLoss(reduction="batchmean")
        return divergence(logits.log_softmax(-1).flatten(0, 1), right.to(logits).flatten(0, 1))

    return {"model": sound_model(), "loss": loss, **ENDS}
