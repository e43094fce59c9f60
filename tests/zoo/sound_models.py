"""Sound models: other kinds of attention, masks, norms and layers; torch's own parts, or none of a
transformer's stack; and such as answer, or are called, in an unusual way."""

import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from toytrans.checks.adapters import TorchTransformer

from . import END, PAD, START, SYMBOLS, Translator, entry, given_with, sound
from .parts import (
    HEADS,
    WIDTH,
    Attention,
    Embedding,
    Layer,
    Padded,
    Torchs,
    filled,
    mean_loss,
    merge_heads,
    real,
    split_heads,
    waves,
)


class _PlacesInside(Translator):
    """Places are not in the embedding; self-attention has them, cross-attention has not."""

    def __init__(self):
        super().__init__()
        self.source, self.target = Embedding(places=False), Embedding(places=False)
        for layer in self.decoder:
            layer.encoder_attn = Attention()


def rotated(x):
    """Rotary embedding of (B, H, T, Dh)."""
    half = x.shape[-1] // 2
    sine, cosine = waves(torch.arange(x.shape[-2]), 2 * half).to(x).chunk(2, -1)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


@sound("", "attention.scores", base=_PlacesInside)
def rotary(self, q, k):
    """RoPE in self-attention."""
    return Attention.scores(self, rotated(q), rotated(k))


@sound()
class relative_keys(_PlacesInside):
    """Shaw's relative keys."""

    class attention(Attention):
        def __init__(self):
            super().__init__()
            self.relative = nn.Parameter(torch.randn(17, WIDTH // HEADS))

        def scores(self, q, k):
            places = torch.arange(q.shape[-2])
            keys = self.relative[(places - places[:, None]).clamp(-8, 8) + 8]
            return (q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, keys)) / math.sqrt(q.shape[-1])


@sound("", "attention.weights")
def closed_by_the_least_number(self, scores, mask):
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)


@sound("", "source_mask")
def pads_closed_as_queries_too(self, src):
    return real(src)[:, None, None] & real(src)[:, None, :, None]


@sound("", "forward")
def pointer_network(self, src, tgt):
    """A copy mechanism: part of the attention is added to the logits of source ids."""
    memory = self.encode(src)
    y = self.decode(src, tgt, memory)
    weights = (y @ memory.mT).masked_fill(~real(src)[:, None], -1e9).softmax(-1)
    places = src[:, None].expand(-1, tgt.shape[1], -1)
    return self.head(y).scatter_add(2, places, weights)


@sound("", "attention.forward", verdict="PASS or cannot judge")
def fused_attention_with_dropout(self, x, memory, mask):
    """Dropout by an argument of scaled_dot_product_attention, which no module shows."""
    q, k, v = map(split_heads, (self.q_proj(x), self.k_proj(memory), self.v_proj(memory)))
    p = 0.1 if self.training else 0.0
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
    return self.out_proj(merge_heads(y.nan_to_num(0.0)))


sound("", "depth", name="pre norm")(2)


@sound()
class no_norms(Translator):
    final_norm = nn.Identity

    class layer(Layer):
        norm = nn.Identity


@sound("", "layer.forward")
def parallel_branches(self, x, mask, memory=None, cross_mask=None):
    """Attention and feed-forward side by side, as in GPT-J."""
    h = self.self_attn_norm(x)
    y = x + self.self_attn(h, h, mask) + self.feed_forward(h)
    if memory is None:
        return y
    return y + self.encoder_attn(self.encoder_attn_norm(y), memory, cross_mask)


@sound()
def closed_gates_and_decoding():
    """ReZero: each branch is multiplied with a gate that is zero at the start, and has the name of
    a bias."""

    class Model(Translator):
        class layer(Layer):
            def __init__(self, attention, cross):
                super().__init__(attention, cross)
                self.b = nn.Parameter(torch.zeros(1))

            def branch(self, x, norm, sublayer):
                return x + self.b * sublayer(norm(x))

    model = Model()
    return {"model": model, "generate": lambda src, tgt: model.eval()(src, tgt)}


@sound()
class experts_one_for_each_token(Translator):
    """A mixture of six experts, of which one works for a token, and some are never chosen."""

    class layer(Layer):
        def __init__(self, attention, cross):
            super().__init__(attention, cross)
            del self.fc1, self.fc2
            self.router = nn.Linear(WIDTH, 6)
            self.experts = nn.ModuleList(_Expert() for _ in range(6))

        def feed_forward(self, x):
            weight, chosen = self.router(x).softmax(-1).max(-1, keepdim=True)
            each = [expert(x) * (chosen == n) for n, expert in enumerate(self.experts)]
            return weight * sum(each)


class _Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


@sound("", "layer.forward")
def gradient_checkpointing(self, *given):
    """Layers are computed again in the backward pass, in train mode."""
    if self.training:
        return checkpoint(partial(Layer.forward, self), *given, use_reentrant=False)
    return Layer.forward(self, *given)


sound(name="torchs transformer")(Torchs)


@sound(batch_first=False)
class torchs_transformer_time_first(Torchs):
    """Ids (S, B) and (T, B) to logits (T, B, V), which is told."""

    def __init__(self):
        super().__init__(batch_first=False)

    def forward(self, src, tgt):
        x, y = (f(ids.mT).transpose(0, 1) for f, ids in ((self.source, src), (self.target, tgt)))
        return self.head(self.transformer(x, y, **self.masks(src.mT, tgt.mT)))


entry(
    verdict="cannot judge",
    cause="rows.layout_guessed",
    name="torchs transformer of which nobody says that it is time first",
)(torchs_transformer_time_first)
sound("", "forward", name="in inference mode")(torch.inference_mode()(Translator.forward))


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
    return torch.jit.script(_Scripted())


class Recurrent(nn.Module):
    """A packed bidirectional GRU, another that decodes, and Luong's dot products between them."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(SYMBOLS, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(2 * WIDTH, SYMBOLS)

    def encode(self, src):
        lengths = real(src).sum(1).clamp(min=1)
        packed = pack_padded_sequence(self.source(src), lengths, True, enforce_sorted=False)
        return pad_packed_sequence(self.encoder(packed)[0], True, total_length=src.shape[1])[0]

    def attend(self, y, memory, keep):
        scores = (y @ memory.mT).masked_fill(~keep[:, None], -1e9)
        return scores.softmax(-1) @ memory

    def forward(self, src, tgt):
        memory = self.encode(src)
        y = self.decoder(self.target(tgt))[0]
        return self.head(torch.cat((y, self.attend(y, memory, real(src))), -1))


sound(name="gru with dot products")(Recurrent)


@sound()
class input_feeding(Recurrent):
    """A loop over steps, each fed with the context of the last."""

    def __init__(self):
        super().__init__()
        self.step = nn.LSTMCell(2 * WIDTH, WIDTH)

    def forward(self, src, tgt):
        memory, keep = self.encode(src), real(src)
        y = self.target(tgt)
        context = y.new_zeros(len(y), WIDTH)
        state, found = (context, context), []
        for place in range(y.shape[1]):
            state = self.step(torch.cat((y[:, place], context), -1), state)
            context = self.attend(state[0][:, None], memory, keep)[:, 0]
            found.append(self.head(torch.cat((state[0], context), -1)))
        return torch.stack(found, 1)


@sound("", "forward")
def a_tuple(self, src, tgt):
    memory = self.encode(src)
    return self.head(self.decode(src, tgt, memory)), memory


@sound()
class a_static_buffer(Translator):
    """Logits are written to one buffer that every call reuses."""

    def __init__(self):
        super().__init__()
        self.room = {}

    @torch.no_grad()
    def forward(self, src, tgt):
        logits = super().forward(src, tgt)
        key = (*logits.shape, logits.dtype)
        return self.room.setdefault(key, torch.empty_like(logits)).copy_(logits)


sound(name="ids closed by minus a billion", vocabulary_size=32)(Padded)


@sound("", "forward")
def log_probabilities(self, src, tgt):
    return Translator.forward(self, src, tgt).log_softmax(-1)


@sound()
class a_large_constant(Translator):
    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.head.bias[5] = 1e6


@sound("", "forward", verdict="refused")
def nan_everywhere(self, src, tgt):
    """A diverged checkpoint: nothing can be judged."""
    return Translator.forward(self, src, tgt) * math.nan


@sound("pads rows", "forward", says="of one length in every batch")
def source_and_target_of_one_length(self, src, tgt):
    if src.shape != tgt.shape:
        raise ValueError(f"source {tuple(src.shape)} and target {tuple(tgt.shape)} differ")
    return Translator.forward(self, src, tgt)


@sound("pads future", "forward", is_long=True, says="give max_length=...")
def twenty_places_that_are_not_given(self, src, tgt):
    """Takes 20 places at most, and check is not told so."""
    if max(src.shape[1], tgt.shape[1]) > 20:
        raise RuntimeError(f"{src.shape[1]} and {tgt.shape[1]} places are too many")
    return Translator.forward(self, src, tgt)


@sound("", "keys", verdict="cannot judge", is_long=True, says="give source_pad_id=3")
def another_source_pad_that_is_not_given(self, src):
    """Sources are padded with 3, and check is not told so."""
    return (src != 3)[:, None, None]


@sound(verdict="refused", embedding=None)
def a_function_in_train_mode():
    """A plain function around a module in train mode: its user forgot eval()."""
    model = Translator().train()
    return {"model": lambda src, tgt: model(src, tgt)}


sound("", "loss", name="cross entropy")(mean_loss)


@sound("", "loss")
def one_against_the_rest(logits, labels):
    keep = labels != PAD
    wanted = F.one_hot(labels, logits.shape[-1]).to(logits)[keep]
    return F.binary_cross_entropy_with_logits(logits[keep], wanted)


@sound(verdict="PASS or cannot judge")
def pad_that_is_the_end():
    """The pad is the end, as in GPT-2's vocabulary, and labels of -100 tell them apart."""

    def batch(pairs):
        src = filled([s + [END] for s, _ in pairs], END)
        tgt_in = filled([[START, *t] for _, t in pairs], END)
        return src, tgt_in, filled([[*t, END] for _, t in pairs], -100)

    class Model(Translator):
        def keys(self, src):
            after = (src == END).cumsum(1) - (src == END).long()
            return (after == 0)[:, None, None]

    loss = lambda a, b: F.cross_entropy(a.mT, b, ignore_index=-100)  # noqa: E731
    return given_with(model=Model(), batch=batch, loss=loss, pad_id=END)


@sound(vocabulary_size=200, max_length=24, length=12, is_long=True)
def in_bf16_of_some_width():
    """A width of 128, four layers: rounding in bf16 adds up."""
    torch.manual_seed(2)
    core = nn.Transformer(128, 8, 4, 4, 256, batch_first=True)
    embeddings = (Embedding(200, 128), Embedding(200, 128))
    model = TorchTransformer(core, *embeddings, nn.Linear(128, 200)).bfloat16().eval()
    return {"model": lambda src, tgt: model(src, tgt)}
