"""Losses as they are written by hand, in two styles where they differ, and own losses of models."""

from functools import partial

import torch
import transformers as hf
from torch.nn import functional as F

from . import PAD, SYMBOLS, entry
from .hugging_face import bart, llama
from .parts import given_with, mean_loss

of_loss = {"part": "loss", "only": "loss,labels", "is_quick": True}
faulty = partial(entry, "", verdict="FAIL", is_first=True, **of_loss)
sound = partial(entry, "loss", verdict="PASS", **of_loss)


@faulty(cause="loss.reshaped")
def logits_reshaped_to_classes_second(logits, labels):
    rows, places, size = logits.shape
    return F.cross_entropy(logits.reshape(rows, size, places), labels, ignore_index=PAD)


@faulty(cause="loss.length_first")
def logits_flattened_length_first(logits, labels):
    flat = logits.transpose(0, 1).reshape(-1, SYMBOLS)
    return F.cross_entropy(flat, labels.reshape(-1), ignore_index=PAD)


@faulty(cause="loss.shifted")
def labels_shifted_in_the_loss(logits, labels):
    """The batch maker has shifted them already."""
    return mean_loss(logits[:, :-1], labels[:, 1:])


@faulty(cause="loss.shifted")
def labels_shifted_in_the_loss_by_hand(logits, labels):
    chances = logits.log_softmax(-1)[:, :-1].gather(-1, labels[:, 1:, None])[..., 0]
    keep = labels[:, 1:] != PAD
    return -chances[keep].sum() / keep.sum()


@faulty(cause="loss.id_not_scored")
def a_symbol_that_is_ignored(logits, labels):
    """Two ids are ignored, of which one is a symbol."""
    return mean_loss(logits, labels.masked_fill(labels == 7, PAD))


@faulty(cause="loss.mean_of_parts")
def a_mean_of_two_processes_means(logits, labels):
    """Each process takes every other row, and means are averaged."""
    return (mean_loss(logits[::2], labels[::2]) + mean_loss(logits[1::2], labels[1::2])) / 2


@faulty(cause="loss.mean_of_parts")
def a_mean_of_accumulated_halves(logits, labels):
    halves = zip(logits.chunk(2), labels.chunk(2), strict=True)
    return torch.stack([mean_loss(*half) for half in halves]).mean()


@entry("", verdict="cannot judge", cause="loss.no_known_mean", **of_loss)
def a_loss_with_another_term(logits, labels):
    return mean_loss(logits, labels) + mean_loss(logits, labels).exp()


@sound()
def classes_weighed(logits, labels):
    weight = torch.linspace(1, 2, SYMBOLS).to(logits)
    return F.cross_entropy(logits.mT, labels, weight, ignore_index=PAD)


@sound()
def labels_smoothed(logits, labels):
    return mean_loss(logits, labels, label_smoothing=0.1)


@entry("loss", verdict="PASS", only="loss", is_quick=True, doubts="loss.large")
def logits_of_a_large_table():
    """A table of unit scale that is the output layer too."""
    made = given_with(loss=mean_loss)
    with torch.no_grad():
        made["model"].head.weight.mul_(300)
    return made


@entry("pads loss", vocabulary_size=32, verdict="PASS", is_quick=True, only="pads,loss")
def banned_symbols_and_a_loss():
    """Logits of ids that are no words are -1e9, labels among them."""
    from .parts import Padded

    return given_with(model=Padded(), loss=mean_loss)


# The model's own -----------------------------------------------------------------------------


class LlamaTwice(hf.LlamaForCausalLM):
    """Shifts its labels by hand, and calls the loss that shifts them."""

    def forward(self, input_ids=None, labels=None, **named):
        found = super().forward(input_ids=input_ids, **named)
        if labels is not None:
            once = F.pad(labels[:, 1:], (0, 1), value=-100)
            found.loss = self.loss_function(found.logits, once, vocab_size=30)
        return found


class BartTwice(hf.BartForConditionalGeneration):
    """Takes labels that are shifted, and shifts them once more for the loss."""

    def forward(self, *given, labels=None, **named):
        found = super().forward(*given, labels=labels, **named)
        if labels is not None:
            found.loss = mean_loss(
                found.logits[:, :-1], labels[:, 1:].masked_fill(labels[:, 1:] == -100, PAD)
            )
        return found


own = {"only": "loss", "is_quick": True}
_twice = partial(entry, "loss", verdict="FAIL", cause="loss.own_shifted", **own)
_twice(name="llama that shifts twice")(partial(llama, LlamaTwice))
_twice(name="bart that shifts twice")(partial(bart, BartTwice))
entry("loss", verdict="PASS", name="llama and its own loss", **own)(llama)
