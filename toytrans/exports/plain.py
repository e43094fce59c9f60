"""An exported model in plain PyTorch. It needs torch and safetensors, and nothing of toytrans.

Copy this file to use it elsewhere:

    model = load("reverse.safetensors")
    print(translate(model, "5 7 9"))

It computes whole prefixes without a cache, so it is short and slow. docs/internals.md describes the
model. Ids are 0 = PAD, 1 = BOS, 2 = EOS, then the symbols.
"""

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

PAD, BOS, EOS, FIRST_SYMBOL = 0, 1, 2, 3

BY_DISTANCE = ("alibi", "relative", "t5", "anchored")
POSITIONS = ("sinusoidal", "learned", "none", "rotary", *BY_DISTANCE)
"""What `model.positions` may be. Those by distance add a bias to the scores of self-attention."""

CROSS_POSITIONS = ("none", "anchored")
"""What `model.cross_positions` may be."""


class PlainTransformer(nn.Module):
    """An encoder-decoder transformer. about: the JSON in the metadata of its file."""

    def __init__(self, weights: dict[str, Tensor], about: dict[str, Any]) -> None:
        super().__init__()
        self.about, self.options = about, about["model"]
        self.names = {name: name.replace(".", "_") for name in weights}
        for name, values in weights.items():
            self.register_buffer(self.names[name], values)

    def encode(self, src: Tensor) -> Tensor:
        """Source ids (B, S) -> memory (B, S, D)."""
        x = self.embed("src_embedding", src)
        mask, distance = (src != PAD)[:, None, None], self.self_distance(src)
        for layer in self.layers("encoder"):
            part = f"{layer}.self_attention"
            x = self.residual(x, f"{layer}.residuals.0", self.attend, part, None, mask, distance)
            x = self.residual(x, f"{layer}.residuals.1", self.feed_forward, layer)
        return self.norm(x, "encoder_norm") if self.options["norm"] == "pre" else x

    def decode(self, tgt: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """Target ids (B, T), memory (B, S, D) and its ids (B, S) -> logits (B, T, V)."""
        x = self.embed("tgt_embedding", tgt)
        places = torch.arange(tgt.shape[1], device=tgt.device)
        mask = (tgt != PAD)[:, None, None] & (places[:, None] >= places)
        cross_mask, distance = (src != PAD)[:, None, None], self.self_distance(tgt)
        cross = self.anchor_distance(tgt, src)
        for layer in self.layers("decoder"):
            own, other = f"{layer}.self_attention", f"{layer}.cross_attention"
            x = self.residual(x, f"{layer}.residuals.0", self.attend, own, None, mask, distance)
            x = self.residual(
                x, f"{layer}.residuals.1", self.attend, other, memory, cross_mask, cross
            )
            x = self.residual(x, f"{layer}.residuals.2", self.feed_forward, layer)
        x = self.norm(x, "decoder_norm") if self.options["norm"] == "pre" else x
        return F.linear(x, self.weight("output.weight", "src_embedding.weight"))

    def weight(self, *names: str) -> Tensor:
        """The first of some names that the file has: tied tables are in it once."""
        return getattr(self, next(self.names[name] for name in names if name in self.names))

    def layers(self, side: str) -> list[str]:
        """The names of a stack's layers; shared layers occur several times."""
        shared, depth = self.options["share_layers"], self.options[f"n_{side}_layers"]
        return [f"{side}_layers.{0 if shared else n}" for n in range(depth)]

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return F.layer_norm(x, x.shape[-1:], weight, bias)

    def residual(
        self, x: Tensor, name: str, part: Callable[..., Tensor], *arguments: Any
    ) -> Tensor:
        if self.options["norm"] == "pre":
            return x + part(self.norm(x, f"{name}.norm"), *arguments)
        return self.norm(x + part(x, *arguments), f"{name}.norm")

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"))

    def feed_forward(self, x: Tensor, layer: str) -> Tensor:
        kind = self.options["activation"]
        x = self.linear(x, f"{layer}.feed_forward.0")
        x = F.relu(x) if kind == "relu" else F.gelu(x, approximate=GELU[kind])
        return self.linear(x, f"{layer}.feed_forward.3")

    def attend(
        self, x: Tensor, name: str, memory: Tensor | None, mask: Tensor, distance: Tensor | None
    ) -> Tensor:
        """Attention to memory, or to x itself. distance: (B or 1, H or 1, Tq, Tk)."""
        heads = self.options["n_heads"]
        of = [x, x, x] if memory is None else [x, memory, memory]
        weights = self.weight(f"{name}.in_proj.weight").chunk(3)
        biases = self.weight(f"{name}.in_proj.bias").chunk(3)
        q, k, v = (
            F.linear(y, weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2)
            for y, weight, bias in zip(of, weights, biases, strict=True)
        )
        if memory is None and self.options["positions"] == "rotary":
            q, k = self.rotate(q), self.rotate(k)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if cap := self.options["score_cap"]:
            scores = cap * torch.tanh(scores / cap)
        if distance is not None:
            scores = scores + self.bias(name, distance, "self" if memory is None else "cross")
        shares = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
        return self.linear((shares @ v).transpose(1, 2).flatten(2), f"{name}.out_proj")

    # Positions -----------------------------------------------------------------------------------

    def embed(self, table: str, ids: Tensor) -> Tensor:
        """Embeddings with their positions: (B, L) -> (B, L, D)."""
        x = self.weight(f"{table}.weight", "src_embedding.weight")[ids]
        x = x * x.shape[-1] ** 0.5
        places = torch.arange(ids.shape[1], device=ids.device)
        if "positions.fixed" in self.names:  # random positions
            places = self.weight("positions.fixed")[places]
        if self.options["positions"] == "learned":
            return x + self.weight("positions.table")[places]
        if self.options["positions"] == "sinusoidal":
            return x + torch.stack(sines(places, x), -1).flatten(-2)
        return x

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary positions of queries or keys (B, H, L, Dh)."""
        sin, cos = sines(torch.arange(x.shape[2], device=x.device), x)
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def self_distance(self, ids: Tensor) -> Tensor | None:
        """From places i to places j of one sequence, i - j: (1, 1, L, L)."""
        if self.options["positions"] not in BY_DISTANCE:
            return None
        places = torch.arange(ids.shape[1], device=ids.device)
        return (places[:, None] - places)[None, None]

    def anchor_distance(self, tgt: Tensor, src: Tensor) -> Tensor | None:
        """From target places to each head's anchor in the source: (B, H, T, S)."""
        if self.options["cross_positions"] != "anchored":
            return None
        t = torch.arange(tgt.shape[1], device=tgt.device)[:, None]
        j = torch.arange(src.shape[1], device=src.device)
        n = (src >= FIRST_SYMBOL).sum(1)[:, None, None]
        since = j.expand(src.shape)
        if separators := self.about["separators"]:
            separates = (src[..., None] == torch.tensor(separators, device=src.device)).any(-1)
            earlier = separates[:, None] & (j < j[:, None])
            since = j - torch.where(earlier, j, 0).amax(-1)
        distances = {
            "start": t - since[:, None],
            "end": t - (n + 1 - j),
            "wrap": t - n - j,
        }
        shape = src.shape[0], tgt.shape[1], src.shape[1]
        anchors = [ANCHORS[head % len(ANCHORS)] for head in range(self.options["n_heads"])]
        return torch.stack([distances[anchor].expand(shape) for anchor in anchors], 1)

    def bias(self, name: str, distance: Tensor, kind: str) -> Tensor:
        """What a position scheme adds to the scores of an attention: (B or 1, H, Tq, Tk)."""
        scheme = self.options["positions" if kind == "self" else "cross_positions"]
        heads = torch.arange(self.options["n_heads"], device=distance.device)[:, None, None]
        if scheme == "alibi":
            return -(2.0 ** (-8.0 * (heads + 1) / len(heads))) * distance.abs()
        table, far = self.weight(f"{name}.bias_table"), distance.abs()
        if scheme == "relative":
            return table[heads, distance.clamp(-16, 16) + 16]
        if scheme == "t5":
            begins = torch.tensor(T5_BEGINS, device=distance.device)
            bucket = far.clamp(max=8) + (far[..., None] >= begins).sum(-1)
            return table[heads, bucket + 16 * (distance < 0)]
        if scheme == "anchored":
            return 16 * table[heads, distance.clamp(-3, 3) + 3] - far
        raise ValueError(f"positions {scheme}: `bias` has no formula for it")


GELU = {"gelu": "none", "gelu_tanh": "tanh"}

ANCHORS = ("start", "end", "wrap", "start")
"""Of the heads of anchored cross-attention, repeated."""

T5_BEGINS = [math.ceil(8 * 16 ** (k / 8)) for k in range(1, 8)]
"""Where the eight wide buckets of T5 begin, the first apart, which begins at 8."""


def sines(places: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Sines and cosines of places (L,), (L, W / 2) each, for vectors (..., W)."""
    width = like.shape[-1]
    even = torch.arange(0, width, 2, dtype=torch.float64, device=places.device)
    angles = places[:, None] * torch.exp(even * (-math.log(10_000.0) / width))
    return angles.sin().to(like.dtype), angles.cos().to(like.dtype)


def load(path: str) -> PlainTransformer:
    """The model of a file."""
    with safe_open(path, "pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return PlainTransformer(weights, json.loads(file.metadata()["toytrans"]))


@torch.no_grad()
def greedy(model: PlainTransformer, src: Tensor, most: int) -> Tensor:
    """Source ids (B, S), with their ends -> at most `most` target ids, EOS included: (B, T)."""
    memory, tgt = model.encode(src), torch.full_like(src[:, :1], BOS)
    while tgt.shape[1] <= most and not bool((tgt == EOS).any(1).all()):
        logits = model.decode(tgt, memory, src)[:, -1]
        newest = logits[:, EOS:].argmax(-1, keepdim=True) + EOS  # neither PAD nor BOS
        tgt = torch.cat((tgt, newest), 1)
    return tgt[:, 1:]


def translate(model: PlainTransformer, sequence: str) -> str:
    """The translation of a sequence such as "5 7 9". Raises ValueError."""
    symbols = model.about["symbols"]
    if unknown := [symbol for symbol in sequence.split() if symbol not in symbols]:
        known = f"{' '.join(symbols[:9])}{' ...' * (len(symbols) > 9)}"
        raise ValueError(f"no symbol {unknown[0]!r}; put blanks between these: {known}")
    ids = [symbols.index(symbol) + FIRST_SYMBOL for symbol in sequence.split()]
    start = [BOS] if model.about["source_bos"] else []
    src = torch.tensor([[*start, *ids, EOS]])
    output = greedy(model, src, model.about["target_growth"] * len(ids) + 10)[0].tolist()
    end = output.index(EOS) if EOS in output else len(output)
    return " ".join(symbols[i - FIRST_SYMBOL] for i in output[:end])


if __name__ == "__main__":
    exported = load(sys.argv[1])
    for given in sys.argv[2:]:
        try:
            print(translate(exported, given))
        except ValueError as error:
            sys.exit(f"plain.py: {error}")
