"""Faults of loss, batch and layers' structure, and of decoding step by step."""

import torch
from torch import nn
from torch.nn import functional as F

from . import faulty, sound
from .parts import (
    END,
    PAD,
    START,
    SYMBOLS,
    WIDTH,
    Attention,
    Embedding,
    Layer,
    Translator,
    filled,
    given_with,
    make_batch,
    mean_loss,
    real,
    triangle,
)

# Batches -----------------------------------------------------------------------------------------


@faulty("labels", "batch")
def labels_not_shifted(src, tgt_in, tgt_out):
    """Labels are the decoder's inputs."""
    return src, tgt_in, tgt_in


@faulty("labels", "batch")
def labels_shifted_twice(src, tgt_in, tgt_out):
    """The target is cut by the batch maker and once more for the labels."""
    return src, tgt_in, F.pad(tgt_out[:, 1:], (0, 1), value=PAD)


@faulty("rows labels", "batch")
def sources_of_another_row(src, tgt_in, tgt_out):
    """Sources are sorted by length, targets are not."""
    return src[(src != PAD).sum(1).argsort()], tgt_in, tgt_out


@faulty("labels")
def source_and_target_swapped():
    """The batch maker takes the pairs the other way round."""
    return given_with(batch=lambda pairs: make_batch([(tgt, src) for src, tgt in pairs]))


@faulty("labels", "batch")
def end_is_never_a_label(src, tgt_in, tgt_out):
    """Labels stop with the last symbol: the model never learns to stop."""
    return src, tgt_in, tgt_out.masked_fill(tgt_out == END, PAD)


@faulty("labels", eos_id=PAD)
def pad_is_the_end_and_ignored():
    """Pad and end share an id that the loss ignores."""

    def batch(pairs):
        tgt_in = make_batch(pairs)[1]
        return filled([s + [PAD] for s, _ in pairs]), tgt_in, F.pad(tgt_in[:, 1:], (0, 1))

    return given_with(batch=batch)


@faulty("labels", "batch")
def decoding_starts_otherwise(src, tgt_in, tgt_out):
    """Training starts targets with 3, decoding with 1."""
    return src, tgt_in.masked_fill(tgt_in == START, 3), tgt_out


# Losses ------------------------------------------------------------------------------------------


@faulty("labels", "loss")
def end_is_never_scored(logits, labels):
    """The loss ignores the end."""
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
    """logits[:, 1:] against labels[:, 1:]: the first label is never scored."""
    return mean_loss(logits[:, 1:], labels[:, 1:])


@faulty("loss", "loss", says="its sign is wrong")
def the_sign_of_the_loss(logits, labels):
    """The mean log-probability of the labels, which training should raise, as a loss."""
    return -mean_loss(logits, labels)


@faulty("loss", "loss", says="it takes softmax twice; give cross entropy the logits")
def softmax_in_the_loss(logits, labels):
    """Cross entropy of probabilities."""
    return mean_loss(logits.softmax(-1), labels)


@faulty("loss", "loss", says="take log_softmax before nll_loss")
def no_softmax_at_all(logits, labels):
    """nll_loss of logits."""
    return F.nll_loss(logits.mT, labels, ignore_index=PAD)


@faulty("loss", says="the model gives probabilities")
def softmax_in_the_model():
    """The model gives probabilities, and the loss is cross entropy."""

    class Model(Translator):
        def forward(self, src, tgt):
            return super().forward(src, tgt).softmax(-1)

    return given_with(model=Model())


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
    """Labels have no end."""

    def batch(pairs):
        rows = [[START, *target] for _, target in pairs]
        return filled(rows), filled([r[:-1] for r in rows]), filled([r[1:] for r in rows])

    return given_with(model=_Decoder(), batch=batch)


# Layers ------------------------------------------------------------------------------------------


@faulty("sublayers", "layer.branch")
def no_residual(self, x, norm, sublayer):
    """Sub-layers replace their input."""
    return self.dropout(sublayer(norm(x)))


@faulty("sublayers", "layer.feed_forward")
def feed_forward_is_not_added(self, x):
    """The feed-forward layer runs, and its result is dropped."""
    self.fc2(self.fc1(x).relu())
    return torch.zeros_like(x)


@faulty("pads", "attention.weights")
def masked_scores_dropped(self, scores, mask):
    """Dropout comes before softmax: a masked score that it makes zero is seen in training."""
    return F.dropout(scores.masked_fill(~mask, -1e9), 0.1, self.training).softmax(-1)


# Decoding ----------------------------------------------------------------------------------------


def _in_steps(late=0):
    """A model and its logits step by step, with a cache of what self-attention has read."""
    model = Translator().eval()
    (layer,) = model.decoder

    @torch.no_grad()
    def step(src, memory, kept, token, place):
        """Logits (B, V) of one token (B, 1)."""
        places = model.target.places(torch.zeros(1, place + 1)).to(memory)
        y = model.target.tokens(token) + places[-1]
        kept.append(layer.self_attn_norm(y))
        past = torch.cat(kept, 1)
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


@sound()
def steps_with_a_cache():
    """Logits of each step, with a cache."""
    return _in_steps()


@faulty("steps")
def steps_one_place_late():
    """The first step counts its place as 1."""
    return _in_steps(late=1)


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
