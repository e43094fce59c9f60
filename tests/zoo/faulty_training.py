"""Faults of loss, batch and layers' structure, and of decoding step by step."""

import torch
from torch.nn import functional as F

from . import END, PAD, START, faulty, sound
from .parts import (
    Attention,
    Layer,
    Translator,
    filled,
    given,
    make_batch,
    mean_loss,
    of_batch,
    of_loss,
    real,
)


@faulty("labels")
@of_batch
def labels_not_shifted(src, tgt_in, tgt_out):
    """Labels are the decoder's inputs."""
    return src, tgt_in, tgt_in


@faulty("labels")
@of_batch
def labels_shifted_twice(src, tgt_in, tgt_out):
    """The target is cut by the batch maker and once more for the labels."""
    return src, tgt_in, F.pad(tgt_out[:, 1:], (0, 1), value=PAD)


@faulty("rows labels")
@of_batch
def sources_of_another_row(src, tgt_in, tgt_out):
    """Sources are sorted by length, targets are not."""
    return src[(src != PAD).sum(1).argsort()], tgt_in, tgt_out


@faulty("labels")
def source_and_target_swapped():
    """The batch maker takes the pairs the other way round."""
    return given(batch=lambda pairs: make_batch([(target, source) for source, target in pairs]))


@faulty("labels")
@of_batch
def end_is_never_a_label(src, tgt_in, tgt_out):
    """Labels stop with the last symbol: the model never learns to stop."""
    return src, tgt_in, tgt_out.masked_fill(tgt_out == END, PAD)


@faulty("labels")
@of_loss
def end_is_never_scored(logits, labels):
    """The loss ignores the end."""
    return mean_loss(logits, labels.masked_fill(labels == END, PAD))


@faulty("labels")
def pad_is_the_end_and_ignored():
    """Pad and end share an id that the loss ignores."""

    def batch(pairs):
        src = filled([s + [PAD] for s, _ in pairs])
        tgt_in = filled([[START, *t] for _, t in pairs])
        return src, tgt_in, filled([[*t, PAD] for _, t in pairs])

    return given(batch=batch, eos_id=PAD)


@faulty("labels")
@of_batch
def decoding_starts_otherwise(src, tgt_in, tgt_out):
    """Training starts targets with 3, decoding with 1."""
    return src, tgt_in.masked_fill(tgt_in == START, 3), tgt_out


@faulty("loss")
@of_loss
def a_sum(logits, labels):
    """The sum over labels, which grows with the batch."""
    return mean_loss(logits, labels, reduction="sum")


@faulty("loss")
@of_loss
def the_wrong_labels_ignored(logits, labels):
    """ignore_index is left at -100, and the batch fills labels with its pad id."""
    return F.cross_entropy(logits.mT, labels, ignore_index=-100)


@faulty("loss labels")
@of_loss
def first_label_ignored(logits, labels):
    """logits[:, 1:] against labels[:, 1:]: the first label is never scored."""
    return mean_loss(logits[:, 1:], labels[:, 1:])


@faulty("loss", says="its sign is wrong")
@of_loss
def the_sign_of_the_loss(logits, labels):
    """The mean log-probability of the labels, which training should raise, as a loss."""
    return -mean_loss(logits, labels)


@faulty("loss", says="it takes softmax twice; give cross entropy the logits")
@of_loss
def softmax_in_the_loss(logits, labels):
    """Cross entropy of probabilities."""
    return mean_loss(logits.softmax(-1), labels)


@faulty("loss", says="take log_softmax before nll_loss")
@of_loss
def no_softmax_at_all(logits, labels):
    """nll_loss of logits."""
    return F.nll_loss(logits.mT, labels, ignore_index=PAD)


@faulty("loss", says="the model gives probabilities")
def softmax_in_the_model():
    """The model gives probabilities, and the loss is cross entropy."""

    class Model(Translator):
        def forward(self, src, tgt):
            return super().forward(src, tgt).softmax(-1)

    return given(model=Model())


@faulty("sublayers")
class no_residual(Translator):
    """Sub-layers replace their input."""

    class layer(Layer):
        def branch(self, x, norm, sublayer):
            return self.dropout(sublayer(norm(x)))


class _Bypassed(Layer):
    def feed_forward(self, x):
        self.fc2(self.fc1(x).relu())
        return torch.zeros_like(x)


@faulty("sublayers")
class feed_forward_is_not_added(Translator):
    """The feed-forward layer runs, and its result is dropped."""

    layer = _Bypassed


@faulty("pads")
class masked_scores_dropped(Translator):
    """Dropout comes before softmax: a masked score that it makes zero is seen in training."""

    class attention(Attention):
        def weights(self, scores, mask):
            masked = scores.masked_fill(~mask, -1e9)
            return F.dropout(masked, 0.1, self.training).softmax(-1)


class Steps:
    """Decodes with a cache of what self-attention has read; each method may be spoilt."""

    def __init__(self, model):
        self.model = model

    def place(self, step):
        return step

    @torch.no_grad()
    def step(self, src, memory, kept, token, step):
        """Logits (B, V) of one token (B, 1)."""
        model, (layer,) = self.model, self.model.decoder
        places = model.target.places(torch.zeros(1, self.place(step) + 1)).to(memory)
        y = model.target.tokens(token) + places[-1]
        kept.append(layer.self_attn_norm(y))
        past = torch.cat(kept, 1)
        mask = torch.ones(1, 1, 1, past.shape[1], dtype=torch.bool)
        y = y + layer.self_attn(kept[-1], past, mask)
        y = y + layer.encoder_attn(layer.encoder_attn_norm(y), memory, real(src)[:, None, None])
        y = y + layer.feed_forward(layer.fc_norm(y))
        return model.head(model.decoder_norm(y))[:, 0]

    def logits(self, src, tgt):
        memory, kept = self.model.encode(src), []
        tokens = enumerate(tgt.split(1, 1))
        return torch.stack([self.step(src, memory, kept, t, k) for k, t in tokens], 1)


def _logits(steps):
    model = Translator().eval()
    return {"model": model, "generate": steps(model).logits}


@sound()
def steps_with_a_cache():
    """Logits of each step, with a cache."""
    return _logits(Steps)


@faulty("steps")
def steps_one_place_late():
    """The first step counts its place as 1."""

    class Late(Steps):
        def place(self, step):
            return step + 1

    return _logits(Late)
