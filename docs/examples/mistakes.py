"""The mistakes of docs/mistakes/ in one small translator; `toytrans check --model mistakes.py:NAME`
asks one."""

import math

import torch
from torch import nn
from torch.nn import functional as F

PAD, START, END = 0, 1, 2
ENDS = {"pad_id": PAD, "start_id": START, "eos_id": END, "vocabulary_size": 50}


class Translator(nn.Module):
    """nn.Transformer with embeddings and the masks that it needs; True = blocked."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(128, 32)
        self.core = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
        self.out = nn.Linear(32, 50)

    def embed(self, ids):
        return self.words(ids) + self.places.weight[: ids.shape[1]]

    def masks(self, src, tgt_in):
        return {
            "src_key_padding_mask": src == PAD,
            "memory_key_padding_mask": src == PAD,
            "tgt_key_padding_mask": tgt_in == PAD,
            "tgt_mask": torch.ones(2 * tgt_in.shape[1:]).triu(1).bool(),
        }

    def forward(self, src, tgt_in):
        x, y = self.embed(src), self.embed(tgt_in)
        return self.out(self.core(x, y, **self.masks(src, tgt_in)))


def sound():
    return {"model": Translator(), **ENDS}


# Masks ----------------------------------------------------------------------------------------


def masks_inverted():
    class Inverted(Translator):
        def masks(self, src, tgt_in):
            return {
                "src_key_padding_mask": src != PAD,
                "memory_key_padding_mask": src != PAD,
                "tgt_key_padding_mask": tgt_in == PAD,
                "tgt_mask": torch.ones(2 * tgt_in.shape[1:]).triu(1).bool(),
            }

    return {"model": Inverted(), **ENDS}


def pads_in_cross_attention():
    class Seeing(Translator):
        def masks(self, src, tgt_in):
            return {
                "src_key_padding_mask": src == PAD,
                "tgt_key_padding_mask": tgt_in == PAD,
                "tgt_mask": torch.ones(2 * tgt_in.shape[1:]).triu(1).bool(),
            }

    return {"model": Seeing(), **ENDS}


def no_causal_mask():
    class Seeing(Translator):
        def masks(self, src, tgt_in):
            masks = super().masks(src, tgt_in)
            del masks["tgt_mask"]
            return masks

    return {"model": Seeing(), **ENDS}


def triangle_off_by_one():
    class Seeing(Translator):
        def masks(self, src, tgt_in):
            triangle = torch.ones(2 * tgt_in.shape[1:]).triu(2).bool()
            return super().masks(src, tgt_in) | {"tgt_mask": triangle}

    return {"model": Seeing(), **ENDS}


# Softmax --------------------------------------------------------------------------------------


class Reader(nn.Module):
    """A decoder with one layer of attention that is written by hand."""

    axis = -1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(128, 32)
        self.q, self.k, self.v, self.out = (nn.Linear(32, n) for n in (32, 32, 32, 50))

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        return self.out(x + self.attention(self.q(x), self.k(x), self.v(x)))

    def attention(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, T, S)
        future = torch.ones(2 * scores.shape[-1:]).triu(1).bool()
        weights = scores.masked_fill(future, -1e9).softmax(-1)
        return weights @ v


def softmax_over_queries():
    class Turned(Reader):
        def attention(self, q, k, v):
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, T, S)
            future = torch.ones(2 * scores.shape[-1:]).triu(1).bool()
            weights = scores.masked_fill(future, -1e9).softmax(1)
            return weights @ v

    return {"model": Turned(), "kind": "decoder", "pad_id": PAD, "vocabulary_size": 50}


# Labels and loss ------------------------------------------------------------------------------


def filled(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def batch(pairs):
    src = filled([source + [END] for source, _ in pairs])
    tgt = filled([[START, *target, END] for _, target in pairs])
    return src, tgt[:, :-1], tgt[:, 1:]


def loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD)


def labels_not_shifted():
    def batch(pairs):
        src = filled([source + [END] for source, _ in pairs])
        tgt = filled([[START, *target, END] for _, target in pairs])
        return src, tgt, tgt

    return {"model": Translator(), "batch": batch, "loss": loss, **ENDS}


def labels_shifted_twice():
    def shifted(pairs):
        src, tgt_in, tgt_out = batch(pairs)
        return src, tgt_in[:, :-1], tgt_out[:, 1:]

    return {"model": Translator(), "batch": shifted, "loss": loss, **ENDS}


def shifted_inside():
    class Shifting(Translator):
        def forward(self, src, tgt_in):
            tgt_in = F.pad(tgt_in[:, :-1], (1, 0), value=START)
            return super().forward(src, tgt_in)

    return {"model": Shifting(), "batch": batch, "loss": loss, **ENDS}


def loss_counts_pads():
    def loss(logits, labels):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return {"model": Translator(), "batch": batch, "loss": loss, **ENDS}


def loss_over_all_places():
    def loss(logits, labels):
        each = F.cross_entropy(logits.mT, labels, ignore_index=PAD, reduction="none")
        return each.mean()

    return {"model": Translator(), "batch": batch, "loss": loss, **ENDS}
