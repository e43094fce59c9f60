"""Faults: mistakes to make on purpose, in a model or in its training objective.

The config key `fault` names one. `build_model` plants it, so a broken run stays broken wherever it
is loaded. Evaluation is never broken: it shows the effect of the fault.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from toytrans.config.hidden_fault import fault_remark, named_fault, planted_fault
from toytrans.config.names import FaultName
from toytrans.config.schema import ModelSettings, Settings
from toytrans.data.batches import Batch
from toytrans.errors import BadKey, UserError, did_you_mean
from toytrans.model.attention import Attention
from toytrans.model.build import as_transformer, build_sound_model
from toytrans.model.layers import DecoderLayer, EncoderLayer, Residual
from toytrans.model.masks import MaskMaker
from toytrans.model.positions.base import Positions
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from toytrans.training.loss import SOUND, Objective, token_losses

Part = TypeVar("Part", bound=nn.Module)


def build_model(settings: Settings, vocabulary: Vocabulary) -> Seq2Seq:
    """The model of a run, with its fault in it: in fp64 where it is trained so, else in fp32.

    Raises UserError where the user's own model cannot be built, or a fault would change nothing.
    """
    model = build_sound_model(settings.model, vocabulary)
    if settings.fault is not None:
        plant(settings.fault, model)
    return model.double() if settings.train.precision == "fp64" else model


def plant(fault: str, model: Seq2Seq) -> None:
    """Break a model in place. Faults of the batch or of the loss leave it as it is.

    Raises UserError for a fault without effect, and for a model that is no transformer.
    """
    check_fault(fault, model.settings)
    if name := planted_fault(fault):
        FAULTS[name].plant(as_transformer(model))


def objective_of(fault: str | None) -> Objective:
    """The training objective under a fault; evaluation never uses it."""
    name = planted_fault(fault)
    return FAULTS[name].objective if name else SOUND


def check_fault(fault: str | None, settings: ModelSettings, processes: int = 1) -> None:
    """Raise UserError if a fault has no effect on a model, or meets several processes: a loss that
    is no sum over rows has another meaning in each shard.

    A hidden fault is not refused for having no effect, because the error would tell its name.
    """
    if fault is not None and processes > 1:
        raise UserError(f"{fault_remark(fault)}: trains in one process, without torchrun")
    name = named_fault(fault)
    if name is not None and name not in FAULTS:
        raise BadKey("fault", f"found {name!r}; {did_you_mean(name, FAULTS)}")
    if name and (reason := FAULTS[name].no_effect(settings)):
        raise UserError(f"fault: {fault} {reason}")


class NoCausalMask(MaskMaker):
    """Masks pads in the decoder as in the encoder, but not the future."""

    is_causal = False

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        return self.encoder_self(tgt_in)


class TriangleOffByOne(MaskMaker):
    """Query t may attend to keys 0 .. t + 1."""

    is_causal = False

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        length = tgt_in.shape[1]
        one_too_many = torch.ones(length, length, device=tgt_in.device).tril(1).bool()
        return self.encoder_self(tgt_in) & one_too_many


class PadVisible(MaskMaker):
    """Masks the future, but no pads."""

    def encoder_self(self, src: Tensor) -> Tensor:
        return torch.ones_like(super().encoder_self(src))

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        return super().decoder_self(torch.full_like(tgt_in, BOS_ID))

    def cross(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        return torch.ones_like(super().cross(src, tgt_in))


class MaskFlipped(MaskMaker):
    """Inverts every mask."""

    is_causal = False

    def encoder_self(self, src: Tensor) -> Tensor:
        return ~super().encoder_self(src)

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        return ~super().decoder_self(tgt_in)

    def cross(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        return ~super().cross(src, tgt_in)


def _mask_with(maker: type[MaskMaker], model: Transformer) -> None:
    model.masks = maker(model.settings.pad_mask)


class Silence(nn.Module):
    """A sub-layer whose output is 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


def _without_residual(residual: Residual, x: Tensor, sublayer: nn.Module) -> Tensor:
    if residual.pre:
        output: Tensor = residual.drop(sublayer(residual.norm(x)))
    else:
        output = residual.norm(residual.drop(sublayer(x)))
    return output


class LabelsNotShifted(Objective):
    """Labels are the decoder's input, without the shift."""

    def prepare(self, batch: Batch) -> Batch:
        return Batch(batch.src, batch.tgt_in, batch.tgt_in, batch.counts)


class PadIsEos(Objective):
    """EOS labels become PAD and are ignored, as with a tokenizer that has one id for both."""

    def prepare(self, batch: Batch) -> Batch:
        end = batch.tgt_out.masked_fill(batch.tgt_out == EOS_ID, PAD_ID)
        return Batch(batch.src, batch.tgt_in, end)


class WrongStart(Objective):
    """Training starts targets with EOS, as BART does; decoding starts with BOS."""

    def prepare(self, batch: Batch) -> Batch:
        start = batch.tgt_in.masked_fill(batch.tgt_in == BOS_ID, EOS_ID)
        return Batch(batch.src, start, batch.tgt_out, batch.counts)


class LossOnPads(Objective):
    """PAD labels count as all others do."""

    def loss(self, logits: Tensor, tgt_out: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return token_losses(logits, tgt_out, label_smoothing, ignored=-1).sum()

    def tokens(self, batch: Batch) -> int:
        return batch.tgt_out.numel()


class MeanOfMeans(Objective):
    """The mean over rows of each row's mean loss."""

    def loss(self, logits: Tensor, tgt_out: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """That mean times the number of tokens, because the caller divides by it."""
        losses = token_losses(logits, tgt_out, label_smoothing).view_as(tgt_out)
        tokens = tgt_out.ne(PAD_ID).sum(1)
        means = losses.sum(1) / tokens.clamp(min=1)
        rows = tokens.gt(0).sum()  # without the empty rows that fill up a batch
        return means.sum() / rows * tokens.sum()


def _parts(model: Transformer, kind: type[Part]) -> list[Part]:
    return [part for part in model.modules() if isinstance(part, kind)]


def _leave_as_it_is(model: Transformer) -> None:
    """The plant of a fault of the batch or of the loss."""


def _scale_by_model_width(model: Transformer) -> None:
    for attention in _parts(model, Attention):
        attention.scale = model.settings.d_model**-0.5


def _do_not_scale(model: Transformer) -> None:
    for attention in _parts(model, Attention):
        attention.scale = 1.0


def _no_position(model: Transformer) -> None:
    model.positions = model.cross_positions = Positions(model.settings, Vocabulary(()))


def _no_residual(model: Transformer) -> None:
    for residual in _parts(model, Residual):
        residual.forward = partial(_without_residual, residual)  # type: ignore[method-assign]


def _no_norm(model: Transformer) -> None:
    for module in _parts(model, nn.Module):
        for name, child in module.named_children():
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, nn.Identity())


def _no_feed_forward(model: Transformer) -> None:
    for layer in (*_parts(model, EncoderLayer), *_parts(model, DecoderLayer)):
        layer.feed_forward = Silence()


def _always_changes_something(settings: ModelSettings) -> str:
    return ""


def _one_head_is_as_wide_as_the_model(settings: ModelSettings) -> str:
    return "is no fault with one head; take model.n_heads 2" if settings.n_heads == 1 else ""


def _there_are_no_positions(settings: ModelSettings) -> str:
    none = settings.positions == settings.cross_positions == "none"
    return "takes nothing from model.positions: none" if none else ""


class Fault(NamedTuple):
    """One fault.

    plant: changes a model in place.
    objective: what training learns from.
    no_effect: why the fault changes nothing in a model; empty if it changes something.
    """

    plant: Callable[[Transformer], None] = _leave_as_it_is
    objective: Objective = SOUND
    no_effect: Callable[[ModelSettings], str] = _always_changes_something


FAULTS: dict[FaultName, Fault] = {
    "no_causal": Fault(partial(_mask_with, NoCausalMask)),
    "triangle_off_by_one": Fault(partial(_mask_with, TriangleOffByOne)),
    "pad_visible": Fault(partial(_mask_with, PadVisible)),
    "mask_flipped": Fault(partial(_mask_with, MaskFlipped)),
    "labels_not_shifted": Fault(objective=LabelsNotShifted()),
    "pad_is_eos": Fault(objective=PadIsEos()),
    "wrong_start": Fault(objective=WrongStart()),
    "wrong_scale": Fault(_scale_by_model_width, no_effect=_one_head_is_as_wide_as_the_model),
    "no_scale": Fault(_do_not_scale),
    "no_position": Fault(_no_position, no_effect=_there_are_no_positions),
    "loss_on_pads": Fault(objective=LossOnPads()),
    "batch_mean_of_means": Fault(objective=MeanOfMeans()),
    "no_residual": Fault(_no_residual),
    "no_norm": Fault(_no_norm),
    "no_feed_forward": Fault(_no_feed_forward),
}
