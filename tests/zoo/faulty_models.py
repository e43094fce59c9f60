"""Faulty models: such as see the future, pads or other rows, that see too little, or keep something
from call to call; and faults of loss, batch, layers and decoding step by step."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from . import END, PAD, START, SYMBOLS, Translator, faulty, given_with, make_batch, sound
from .parts import (
    WIDTH,
    Attention,
    Embedding,
    Layer,
    Padded,
    Torchs,
    ahead,
    filled,
    mean_loss,
    real,
    triangle,
    waves,
)


def _open(tgt):
    """No triangle; pads are closed."""
    return real(tgt)[:, None, None] | triangle(tgt.shape[1])


@faulty("future", "attention.weights", cause="future.mask_added")
def closed_by_minus_one(self, scores, mask):
    return (scores - (~mask).to(scores)).softmax(-1)


@faulty("future", "target_mask", embedding=True)
def prefix_one_too_long(self, tgt):
    return triangle(tgt.shape[1])[None, None] | (torch.arange(tgt.shape[1]) < 2)


@faulty("future", "target_mask")
def blocks_open_inside(self, tgt):
    block = torch.arange(tgt.shape[1]) // 4
    return (block[:, None] >= block)[None, None]


@faulty("future", is_long=True, cause="future.beyond_a_length")
class triangle_as_long_as_the_first_call(Translator):
    """The triangle of the first batch is kept; places behind it are open."""

    kept = None

    def target_mask(self, tgt):
        self.kept = self.kept or tgt.shape[1]
        return super().target_mask(tgt) | (torch.arange(tgt.shape[1]) >= self.kept)


@faulty("future", "target_mask")
def open_without_pads(self, tgt):
    return Translator.target_mask(self, tgt) if bool((~real(tgt)).any()) else _open(tgt)


@faulty("future")
class open_where_source_and_target_are_alike(Translator):
    """The mask is chosen by its shape: a square one is taken for the encoder's."""

    def decode(self, src, tgt, memory):
        self.is_square = src.shape[1] == tgt.shape[1]
        return super().decode(src, tgt, memory)

    def target_mask(self, tgt):
        return _open(tgt) if self.is_square else super().target_mask(tgt)


@faulty("future", "target_mask", cause="future.mask_missing")
def open_in_train_mode(self, tgt):
    return _open(tgt) if self.training else Translator.target_mask(self, tgt)


@faulty("future", "target_mask", is_long=True)
def no_triangle_in_eleven_rows(self, tgt):
    return Translator.target_mask(self, tgt) | torch.tensor(len(tgt) == 11)


class _OpenNowhere(Translator):
    """A row of pads alone has every key closed by -inf."""

    class attention(Attention):
        def weights(self, scores, mask):
            return scores.masked_fill(~mask, -math.inf).softmax(-1)


@faulty("pads", "target_mask", base=_OpenNowhere, cause="any.nan_turned")
def triangle_turned_round(self, tgt):
    """Past and present are closed, so the last place has no key."""
    return ~Translator.target_mask(self, tgt)


@faulty("rows")
def row_of_pads_gives_nan():
    """Sources carry no end, so an empty one is a row of pads, and gives NaN."""
    batch = lambda pairs: (filled([s for s, _ in pairs]), *make_batch(pairs)[1:])  # noqa: E731
    return given_with(model=_OpenNowhere(), batch=batch)


@sound(eos_id=None)
class row_of_pads_may_give_nan(_OpenNowhere):
    """A source without tokens gives NaN, and nothing says that such a source can come."""


@faulty("future", "masks", base=Torchs)
def torchs_transformer_with_the_masks_flipped(self, src, tgt):
    """True = may look, passed to layers for which True = blocked."""
    return {name: ~mask for name, mask in Torchs.masks(self, src, tgt).items()}


@faulty("future", "decode", base=Padded, vocabulary_size=32, cause="future.shift")
def leak_beside_minus_a_billion(self, src, tgt, memory):
    """A thousandth of the next place leaks to logits of which 19 of 32 are -1e9."""
    y = Translator.decode(self, src, tgt, memory)
    return y + 1e-3 * ahead(y)


@faulty("future", "embed_target")
def scaled_by_the_largest(self, tgt):
    """Activations are rounded to 8 bits with one scale for the whole tensor."""
    y = self.target(tgt)
    scale = y.abs().max() / 127
    return y + (y / scale).round() * scale


@faulty("", "embed_target", embedding=True)
def places_counted_from_the_end(self, tgt):
    places = real(tgt).sum(1)[:, None] - torch.arange(tgt.shape[1])
    return self.target.tokens(tgt) + waves(places).to(self.target.tokens.weight)


@faulty("", "embed_target", embedding=True)
def places_counted_from_the_batchs_end(self, tgt):
    y = self.target.tokens(tgt)
    return y + waves(torch.arange(tgt.shape[1]).flip(0)).to(y)


@faulty("future", "decode", embedding=None, cause="future.in_gradients")
def gradient_of_the_future(self, src, tgt, memory):
    """The logits hold back the future, its gradient flows: what is added cancels but for that."""
    later = ahead(self.target(tgt))
    return Translator.decode(self, src, tgt, memory) + 0.1 * (later - later.detach())


@faulty("pads future", "encode", embedding=None)
def gradient_of_pads(self, src):
    pads = self.source(src).mean(1, keepdim=True)
    return Translator.encode(self, src) + 0.1 * (pads - pads.detach())


@faulty()
class pad_mask_cached_by_shape(Translator):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def keys(self, src):
        return self.kept.setdefault(tuple(src.shape), real(src)[:, None, None])


@faulty("pads rows", "source_mask")
def fast_path_in_eval_mode(self, src):
    return self.keys(src) | (not self.training)


@faulty("pads rows", "cross_mask")
def pad_mask_of_the_target(self, src, tgt):
    mask = torch.ones_like(src, dtype=torch.bool)
    width = min(src.shape[1], tgt.shape[1])
    mask[:, :width] = real(tgt)[:, :width]
    return mask[:, None, None]


@faulty("pads rows", "keys")
def pad_mask_of_another_id(self, src):
    """The pad id is left at its default of -1, which no batch holds."""
    return (src != -1)[:, None, None]


@faulty("pads rows", "keys")
def one_row_without_a_pad_mask(self, src):
    """A short cut for batches of one row, which are taken to hold no pads."""
    return (real(src) | torch.tensor(len(src) == 1))[:, None, None]


@faulty("pads", "cross_mask", is_long=True)
def source_pads_open_where_the_target_is_five_longer(self, src, tgt):
    """The source's pad mask is lost in cross-attention for one difference of lengths."""
    return self.keys(src) | torch.tensor(tgt.shape[1] == src.shape[1] + 5)


class _Recurrent(Translator):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def encode(self, src):
        return self.rnn(self.source(src))[0]


@faulty("pads rows")
def recurrence_over_pads():
    """A bidirectional GRU begins its way back at the pads."""
    return _Recurrent(nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True))


@faulty("rows", cause="rows.length_first", batch_first=True)
class torchs_layers_that_take_rows_for_places(Torchs):
    """Layers without batch_first are fed (B, L, D), so places of different rows see each other."""

    def __init__(self):
        super().__init__(batch_first=False)

    def masks(self, src, tgt):
        return {"tgt_mask": ~triangle(len(tgt))}


@faulty("rows", "embed_source", cause="rows.by_number")
def places_counted_along_the_rows(self, src):
    x = self.source.tokens(src)
    return x + waves(torch.arange(len(src)))[:, None].to(x)


@faulty("rows", cause="rows.length_first")
def recurrence_across_rows():
    """nn.LSTM without batch_first is fed (B, S, D): it runs from row to row."""
    return _Recurrent(nn.LSTM(WIDTH, WIDTH))


@faulty("order", "embed_source", is_long=True)
def places_end_at_32(self, src):
    """Sources have no order behind place 32, whose position all later places get."""
    places = torch.arange(src.shape[1]).clamp(max=31)
    return self.source.tokens(src) + waves(places).to(self.source.tokens.weight)


@faulty("order", "embed_source")
def encoder_without_places(self, src):
    return self.source.tokens(src)


@faulty(is_long=True)
class truncated_at_sixteen(Translator):
    def encode(self, src):
        return super().encode(src[:, :16])

    def cross_mask(self, src, tgt):
        return super().cross_mask(src[:, :16], tgt)


@faulty("", "keys")
def second_half_of_the_width_closed(self, src):
    """A mask made for half of the padded width closes the second half of long sources."""
    keep = torch.arange(src.shape[1]) <= src.shape[1] // 2
    return (real(src) & keep)[:, None, None]


def _closing(symbol):
    """The mask that closes a symbol with the pads."""
    return lambda model, src: (real(src) & (src != symbol))[:, None, None]


faulty("", "keys", name="end of the source closed", embedding=True)(_closing(END))
faulty("source", "keys", name="one symbol closed", start_id=None, eos_id=None)(_closing(9))


@faulty("source", "decode")
def source_is_not_read(self, src, tgt, memory):
    return Translator.decode(self, src, tgt, 0 * memory)


@faulty("target", "decode")
def decoder_without_self_attention(self, src, tgt, memory):
    """The decoder's self-attention is never called: no token moves a later one."""
    y = self.target(tgt)
    for layer in self.decoder:
        y = y + layer.encoder_attn(y, memory, self.cross_mask(src, tgt))
        y = y + layer.feed_forward(layer.fc_norm(y))
    return self.decoder_norm(y)


@faulty("target", "embed_target")
def target_is_not_read(self, tgt):
    return self.target(torch.full_like(tgt, START))


@faulty("target", "embed_target")
def decoder_inputs_shifted_again(self, tgt):
    return self.target(F.pad(tgt[:, :-1], (1, 0), value=START))


@faulty("", "embed_target", verdict="FAIL or refused")
def dropout_left_on(self, tgt):
    """F.dropout without training=self.training drops in eval mode too."""
    return F.dropout(self.target(tgt), 0.1)


@faulty("calls rows")
class state_carried_over(Translator):
    last = 0.0

    def encode(self, src):
        memory = super().encode(src)
        carried = memory + 0.1 * self.last
        self.last = memory.mean((0, 1)).detach()
        return carried


@faulty("calls", cause="calls.unsteady")
def a_function_with_a_counter():
    model, calls = Translator().eval(), []

    def ask(src, tgt):
        calls.append(None)
        return model(src, tgt) + 0.01 * len(calls) * torch.arange(SYMBOLS)

    return {"model": ask}


@faulty("labels", "batch", cause="labels.not_shifted")
def labels_not_shifted(src, tgt_in, tgt_out):
    """Labels are the decoder's inputs."""
    return src, tgt_in, tgt_in


@faulty("labels", "batch", cause="labels.shifted_twice")
def labels_shifted_twice(src, tgt_in, tgt_out):
    """The target is cut by the batch maker and once more for the labels."""
    return src, tgt_in, F.pad(tgt_out[:, 1:], (0, 1), value=PAD)


@faulty("rows labels", "batch")
def sources_of_another_row(src, tgt_in, tgt_out):
    """Sources are sorted by length, targets are not."""
    return src[(src != PAD).sum(1).argsort()], tgt_in, tgt_out


@faulty("labels")
def source_and_target_swapped():
    return given_with(batch=lambda pairs: make_batch([(tgt, src) for src, tgt in pairs]))


@faulty("labels", "batch")
def end_is_never_a_label(src, tgt_in, tgt_out):
    """Labels stop with the last symbol: the model never learns to stop."""
    return src, tgt_in, tgt_out.masked_fill(tgt_out == END, PAD)


@faulty("labels", eos_id=PAD)
def pad_is_the_end_and_ignored():
    def batch(pairs):
        tgt_in = make_batch(pairs)[1]
        return filled([s + [PAD] for s, _ in pairs]), tgt_in, F.pad(tgt_in[:, 1:], (0, 1))

    return given_with(batch=batch)


@faulty("labels", "batch")
def decoding_starts_otherwise(src, tgt_in, tgt_out):
    """Training starts targets with 3, decoding with 1."""
    return src, tgt_in.masked_fill(tgt_in == START, 3), tgt_out


@faulty("labels", "loss")
def end_is_never_scored(logits, labels):
    return mean_loss(logits, labels.masked_fill(labels == END, PAD))


@faulty("loss", "loss")
def a_sum(logits, labels):
    """The sum over labels, which grows with the batch."""
    return mean_loss(logits, labels, reduction="sum")


@faulty("loss", "loss")
def the_wrong_labels_ignored(logits, labels):
    """ignore_index is left at -100, and the batch fills labels with its pad id."""
    return F.cross_entropy(logits.mT, labels, ignore_index=-100)


@faulty("loss labels", "loss")
def first_label_ignored(logits, labels):
    return mean_loss(logits[:, 1:], labels[:, 1:])


@faulty("loss", "loss", cause="loss.wrong_sign")
def the_sign_of_the_loss(logits, labels):
    """The mean log-probability of the labels, which training should raise, as a loss."""
    return -mean_loss(logits, labels)


@faulty("loss", "loss", cause="loss.softmax_twice")
def softmax_in_the_loss(logits, labels):
    return mean_loss(logits.softmax(-1), labels)


@faulty("loss", "loss", cause="loss.no_softmax")
def no_softmax_at_all(logits, labels):
    return F.nll_loss(logits.mT, labels, ignore_index=PAD)


@faulty("loss", "forward", cause="loss.softmax_in_the_model", batch=make_batch, loss=mean_loss)
def softmax_in_the_model(self, src, tgt):
    return Translator.forward(self, src, tgt).softmax(-1)


class _Decoder(nn.Module):
    """One stream of ids, causal."""

    def __init__(self):
        super().__init__()
        self.tokens, self.layer = Embedding(), Layer(Attention, False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS)

    def forward(self, ids):
        x = self.tokens(ids)
        return self.head(self.norm(self.layer(x, triangle(ids.shape[1])[None, None])))


@faulty("labels", kind="decoder")
def a_decoder_that_never_learns_to_stop():
    def batch(pairs):
        rows = [[START, *target] for _, target in pairs]
        return filled(rows), filled([r[:-1] for r in rows]), filled([r[1:] for r in rows])

    return given_with(model=_Decoder(), batch=batch)


@faulty("sublayers", "layer.branch")
def no_residual(self, x, norm, sublayer):
    return self.dropout(sublayer(norm(x)))


@faulty("sublayers", "layer.feed_forward")
def feed_forward_is_not_added(self, x):
    self.fc2(self.fc1(x).relu())
    return torch.zeros_like(x)


@faulty("pads", "attention.weights")
def masked_scores_dropped(self, scores, mask):
    """Dropout comes before softmax: a masked score that it makes zero is seen in training."""
    return F.dropout(scores.masked_fill(~mask, -1e9), 0.1, self.training).softmax(-1)


def _in_steps(late=0, kept_keys=None, seen=None):
    """A model and its logits step by step, with a cache of what self-attention has read. late: by
    how much places are too late; kept_keys: how many keys the cache keeps, the last ones;
    seen: how many keys a step sees of them, the first ones."""
    model = Translator().eval()
    (layer,) = model.decoder

    @torch.no_grad()
    def step(src, memory, kept, token, place):
        """Logits (B, V) of one token (B, 1)."""
        places = model.target.places(torch.zeros(1, place + 1)).to(memory)
        y = model.target.tokens(token) + places[-1]
        kept.append(layer.self_attn_norm(y))
        del kept[: len(kept) - (kept_keys or len(kept))]
        past = torch.cat(kept, 1)[:, :seen]
        mask = torch.ones(1, 1, 1, past.shape[1], dtype=torch.bool)
        y = y + layer.self_attn(kept[-1], past, mask)
        y = y + layer.encoder_attn(layer.encoder_attn_norm(y), memory, real(src)[:, None, None])
        y = y + layer.feed_forward(layer.fc_norm(y))
        return model.head(model.decoder_norm(y))[:, 0]

    def logits(src, tgt):
        memory, kept = model.encode(src), []
        places = range(tgt.shape[1])
        found = [step(src, memory, kept, tgt[:, [k]], k + late) for k in places]
        return torch.stack(found, 1)

    return {"model": model, "generate": logits}


sound(name="steps with a cache")(_in_steps)
faulty("steps", name="steps one place late")(lambda: _in_steps(late=1))
_from_second = {"cause": "steps.differ_from_second", "name": "steps that see the first key alone"}
faulty("steps", is_quick=True, **_from_second)(lambda: _in_steps(seen=1))
_later = {"cause": "steps.differ_later", "name": "a cache of four keys"}
faulty("steps", is_quick=True, **_later)(lambda: _in_steps(kept_keys=4))


def _greedy():
    """A model, and its greedy decoding by parallel passes."""
    model = Translator()

    @torch.no_grad()
    def generate(src):
        ids = torch.full((len(src), 1), START)
        for _ in range(6):
            best = model.eval()(src, ids)[:, -1].argmax(-1)
            ids = torch.cat((ids, best.masked_fill((ids == END).any(1), PAD)[:, None]), 1)
        return ids

    return model, generate


@faulty("steps")
def nothing_but_pads_decoded():
    """Behind the start stand pads, where the model ranks symbols first."""
    model, greedy = _greedy()
    pads = lambda src: greedy(src).index_fill(1, torch.arange(1, 7), PAD)  # noqa: E731
    return {"model": model, "generate": pads}


@sound("steps")
def pads_that_are_ranked_first():
    """An untrained model ranks the pad first, and ids are decoded as it ranks them."""
    model, greedy = _greedy()
    with torch.no_grad():
        model.head.bias[PAD] = 20.0
    return {"model": model, "generate": greedy}
