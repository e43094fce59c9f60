"""Habits of well-known repositories, sound and faulty, that are easily misjudged."""

import torch
from torch import nn

from toytrans.checks.adapters import TorchTransformer

from . import END, PAD, START, SYMBOLS, faulty, sound
from .parts import (
    WIDTH,
    Attention,
    Embedding,
    Layer,
    Translator,
    filled,
    make_batch,
    mean_loss,
    triangle,
)


def _again(model):
    """The model, and its greedy decoding by parallel passes."""

    @torch.no_grad()
    def generate(src):
        ids = torch.full((len(src), 1), START)
        for _ in range(6):
            best = model.eval()(src, ids)[:, -1].argmax(-1)
            ids = torch.cat((ids, best.masked_fill((ids == END).any(1), PAD)[:, None]), 1)
        return ids

    return {"model": model, "generate": generate}


@sound()
def closed_gates_and_decoding():
    """ReZero: each branch is multiplied with a gate that is zero at the start."""

    class Gated(Layer):
        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            self.gate = nn.Parameter(torch.zeros(1))

        def branch(self, x, norm, sublayer):
            return x + self.gate * sublayer(norm(x))

    class Model(Translator):
        layer = Gated

    model = Model()
    return {"model": model, "generate": lambda src, tgt: model.eval()(src, tgt)}


class _Places(nn.Module):
    """Embeddings of tokens and of places."""

    def __init__(self, symbols, width):
        super().__init__()
        self.tokens, self.places = nn.Embedding(symbols, width), nn.Embedding(100, width)

    def forward(self, ids):
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))


@sound(vocabulary_size=200, max_length=24, length=12, is_long=True)
def in_bf16_of_some_width():
    """A width of 128, four layers: rounding in bf16 adds up."""
    torch.manual_seed(2)
    core = nn.Transformer(128, 8, 4, 4, 256, batch_first=True)
    embeddings = (_Places(200, 128), _Places(200, 128))
    model = TorchTransformer(core, *embeddings, nn.Linear(128, 200)).bfloat16().eval()
    return {"model": lambda src, tgt: model(src, tgt)}


class _Decoder(nn.Module):
    """One stream of ids, causal."""

    def __init__(self):
        super().__init__()
        self.tokens, self.layer = Embedding(), Layer(Attention, False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS)

    def forward(self, ids):
        x = self.tokens(ids)
        return self.head(self.norm(self.layer(x, triangle(ids.shape[1])[None, None])))


def _decoder(**others):
    return {"model": _Decoder(), "kind": "decoder", "batch": make_batch, "loss": mean_loss} | others


@faulty("labels")
def a_decoder_that_never_learns_to_stop():
    """Labels have no end."""

    def batch(pairs):
        rows = [[START, *target] for _, target in pairs]
        return filled(rows), filled([r[:-1] for r in rows]), filled([r[1:] for r in rows])

    return _decoder(batch=batch)


@faulty("steps")
def nothing_but_pads_decoded():
    """Behind the start stand pads, where the model ranks symbols first."""
    made = _again(Translator())
    greedy = made["generate"]
    return made | {"generate": lambda src: greedy(src).index_fill(1, torch.arange(1, 7), PAD)}


@sound(checks="steps")
def pads_that_are_ranked_first():
    """An untrained model ranks the pad first, and ids are decoded as it ranks them."""
    made = _again(Translator())
    with torch.no_grad():
        made["model"].head.bias[PAD] = 20.0
    return made
