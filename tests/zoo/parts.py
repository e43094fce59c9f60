"""A small encoder-decoder transformer, written to be varied in one place.

Masks are boolean, (B or 1, H or 1, Tq or 1, Tk), True = may look. `Translator` calls a method for
each mask, embedding and half of the model; an entry of the zoo overrides one of them.
"""

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAD, START, END, SYMBOLS = 0, 1, 2, 20
"""Ids and size of the vocabulary that most models share."""
WIDTH, HEADS = 8, 2


def triangle(length: int) -> Tensor:
    """(T, T): place t may look at 0 .. t."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def real(ids: Tensor) -> Tensor:
    """(B, L): where ids are no pads."""
    return ids != PAD


def waves(places: Tensor, width: int = WIDTH) -> Tensor:
    """Sines and cosines of places (...) -> (..., D)."""
    rates = 100 ** (-torch.arange(0, width, 2) / width)
    angles = places[..., None] * rates
    return torch.cat((angles.sin(), angles.cos()), -1)


def split_heads(x: Tensor) -> Tensor:
    """(B, T, D) -> (B, H, T, Dh)."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, Dh) -> (B, T, D)."""
    return x.transpose(1, 2).flatten(2)


def ahead(x: Tensor) -> Tensor:
    """(B, T, D) as it is a step later, zeros behind the end."""
    return F.pad(x[:, 1:], (0, 0, 0, 1))


class Embedding(nn.Module):
    """Tokens and sinusoidal places."""

    def __init__(self, symbols: int = SYMBOLS, width: int = WIDTH, places: bool = True) -> None:
        super().__init__()
        self.tokens, self.has_places = nn.Embedding(symbols, width), places

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return x + self.places(ids).to(x) if self.has_places else x

    def places(self, ids: Tensor) -> Tensor:
        return waves(torch.arange(ids.shape[1]), self.tokens.embedding_dim)


class Attention(nn.Module):
    """Multi-head attention, its projections named as in BART."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(WIDTH, WIDTH) for _ in range(4)
        )

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q, k = split_heads(self.q_proj(x)), split_heads(self.k_proj(memory))
        v = split_heads(self.v_proj(memory))
        return self.out_proj(merge_heads(self.weights(self.scores(q, k), mask) @ v))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(q.shape[-1])

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        """A row with every key closed gives zeros."""
        return scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0)


class Layer(nn.Module):
    """Self-attention, cross-attention in a decoder, and feed-forward, each on a pre-norm branch."""

    norm: type[nn.Module] = nn.LayerNorm

    def __init__(self, attention: type[nn.Module], cross: bool) -> None:
        super().__init__()
        self.self_attn, self.self_attn_norm = attention(), self.norm(WIDTH)
        if cross:
            self.encoder_attn, self.encoder_attn_norm = attention(), self.norm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.fc_norm, self.dropout = self.norm(WIDTH), nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor, memory=None, cross_mask=None) -> Tensor:
        x = self.branch(x, self.self_attn_norm, lambda h: self.self_attn(h, h, mask))
        if memory is not None:
            cross = lambda h: self.encoder_attn(h, memory, cross_mask)  # noqa: E731
            x = self.branch(x, self.encoder_attn_norm, cross)
        return self.branch(x, self.fc_norm, self.feed_forward)

    def branch(self, x: Tensor, norm: nn.Module, sublayer) -> Tensor:
        return x + self.dropout(sublayer(norm(x)))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x).relu())


class Translator(nn.Module):
    """Encoder and decoder."""

    attention: type[nn.Module] = Attention
    layer: type[nn.Module] = Layer
    final_norm: type[nn.Module] = nn.LayerNorm
    depth = 1

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = Embedding(), Embedding()
        self.encoder = nn.ModuleList(self.layer(self.attention, False) for _ in range(self.depth))
        self.decoder = nn.ModuleList(self.layer(self.attention, True) for _ in range(self.depth))
        self.encoder_norm, self.decoder_norm = self.final_norm(WIDTH), self.final_norm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.head(self.decode(src, tgt, self.encode(src)))

    def encode(self, src: Tensor) -> Tensor:
        x = self.embed_source(src)
        for layer in self.encoder:
            x = layer(x, self.source_mask(src))
        return self.encoder_norm(x)

    def decode(self, src: Tensor, tgt: Tensor, memory: Tensor) -> Tensor:
        y = self.embed_target(tgt)
        for layer in self.decoder:
            y = layer(y, self.target_mask(tgt), memory, self.cross_mask(src, tgt))
        return self.decoder_norm(y)

    def embed_source(self, src: Tensor) -> Tensor:
        return self.source(src)

    def embed_target(self, tgt: Tensor) -> Tensor:
        return self.target(tgt)

    def keys(self, src: Tensor) -> Tensor:
        """What encoder and decoder may see of the source."""
        return real(src)[:, None, None]

    def source_mask(self, src: Tensor) -> Tensor:
        return self.keys(src)

    def target_mask(self, tgt: Tensor) -> Tensor:
        """The triangle alone: pads stand behind all that is real."""
        return triangle(tgt.shape[1])[None, None]

    def cross_mask(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.keys(src)


class Torchs(nn.Module):
    """nn.Transformer; True = blocked."""

    def __init__(self, batch_first=True):
        super().__init__()
        sizes = (WIDTH, HEADS, 1, 1, 2 * WIDTH)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on nested tensors
            self.transformer = nn.Transformer(*sizes, batch_first=batch_first)
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


class Padded(Translator):
    """13 of 32 ids are real; the logits of others are -1e9."""

    def __init__(self):
        super().__init__()
        self.source, self.target = Embedding(32), Embedding(32)
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, src, tgt):
        logits = super().forward(src, tgt)
        return logits.masked_fill(torch.arange(32) >= 13, -1e9)


def filled(rows, value=PAD):
    """Ragged rows to a tensor (N, L)."""
    width = max(1, *(len(row) for row in rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def make_batch(pairs):
    """The usual batch: the source ends with the end, labels are the next inputs."""
    src = filled([s + [END] for s, _ in pairs])
    tgt_in = filled([[START, *t] for _, t in pairs])
    return src, tgt_in, filled([[*t, END] for _, t in pairs])


def mean_loss(logits, labels, **options):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, **options)


def given_with(**arguments):
    """A plain model with a loss and a batch maker, some of them others."""
    return {"model": Translator(), "batch": make_batch, "loss": mean_loss} | arguments
