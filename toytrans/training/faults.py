"""Faults: mistakes to make on purpose, in a model or in its training objective.

The config key `fault` names one, and `toytrans.config.faults` says which class it is. Building a
model plants it, so a broken run stays broken wherever it is loaded. Evaluation is never broken: it
shows the effect of the fault.
"""

from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from toytrans.config.schema import ModelSettings
from toytrans.data.batches import Batch
from toytrans.model.attention import Attention
from toytrans.model.layers import DecoderLayer, EncoderLayer, Residual
from toytrans.model.masks import MaskMaker
from toytrans.model.positions.base import Positions
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from toytrans.training.optimization import Objective, token_losses

Part = TypeVar("Part", bound=nn.Module)


class Fault(Objective):
    """One fault. It changes a model in `plant`, or what is learned by the methods of an
    `Objective`; what it does not override is sound."""

    def no_effect(self, settings: ModelSettings) -> str:
        """Why the fault changes nothing in a model; empty if it changes something."""
        return ""

    def plant(self, model: Transformer) -> None:
        """Break a model in place."""


# Faults of masks -----------------------------------------------------------------------------


class NoCausal(Fault):
    """The decoder sees the future."""

    def plant(self, model: Transformer) -> None:
        model.masks = WithoutTriangle(model.settings.pad_mask)


class WithoutTriangle(MaskMaker):
    """Masks pads in the decoder as in the encoder, but not the future."""

    is_causal = False

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        return self.encoder_self(tgt_in)


class TriangleOffByOne(Fault):
    """The decoder sees one token too many, which is the one that it has to predict."""

    def plant(self, model: Transformer) -> None:
        model.masks = WithLargeTriangle(model.settings.pad_mask)


class WithLargeTriangle(MaskMaker):
    """Query t may attend to keys 0 .. t + 1."""

    is_causal = False

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        length = tgt_in.shape[1]
        one_too_many = torch.ones(length, length, device=tgt_in.device).tril(1).bool()
        return self.encoder_self(tgt_in) & one_too_many


class PadVisible(Fault):
    """Pads are attended to as real tokens are."""

    def plant(self, model: Transformer) -> None:
        model.masks = WithoutPadMask(model.settings.pad_mask)


class WithoutPadMask(MaskMaker):
    """Masks the future, but no pads."""

    def encoder_self(self, src: Tensor) -> Tensor:
        return torch.ones_like(super().encoder_self(src))

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        return super().decoder_self(torch.full_like(tgt_in, BOS_ID))

    def cross(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        return torch.ones_like(super().cross(src, tgt_in))


class MaskFlipped(Fault):
    """Masks are read the wrong way round."""

    def plant(self, model: Transformer) -> None:
        model.masks = Flipped(model.settings.pad_mask)


class Flipped(MaskMaker):
    """Inverts every mask."""

    is_causal = False

    def encoder_self(self, src: Tensor) -> Tensor:
        return ~super().encoder_self(src)

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        return ~super().decoder_self(tgt_in)

    def cross(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        return ~super().cross(src, tgt_in)


# Faults of the batch and of the loss ----------------------------------------------------------


class LabelsNotShifted(Fault):
    """Labels are the decoder's input, without the shift."""

    def prepare(self, batch: Batch) -> Batch:
        return Batch(batch.src, batch.tgt_in, batch.tgt_in)


class PadIsEos(Fault):
    """EOS labels become PAD and are ignored, as with a tokenizer that has one id for both."""

    def prepare(self, batch: Batch) -> Batch:
        end = batch.tgt_out.masked_fill(batch.tgt_out == EOS_ID, PAD_ID)
        return Batch(batch.src, batch.tgt_in, end)


class WrongStart(Fault):
    """Training starts targets with EOS, as BART does; decoding starts with BOS."""

    def prepare(self, batch: Batch) -> Batch:
        start = batch.tgt_in.masked_fill(batch.tgt_in == BOS_ID, EOS_ID)
        return Batch(batch.src, start, batch.tgt_out)


class LossOnPads(Fault):
    """PAD labels count as all others do."""

    def loss(self, logits: Tensor, tgt_out: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return token_losses(logits, tgt_out, label_smoothing, ignored=-1).sum()

    def divisor(self, batch: Batch) -> int:
        return batch.tgt_out.numel()


class MeanOfMeans(Fault):
    """The mean over rows of each row's mean loss."""

    def loss(self, logits: Tensor, tgt_out: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """That mean times the number of tokens, because the caller divides by it."""
        losses = token_losses(logits, tgt_out, label_smoothing).view_as(tgt_out)
        tokens = tgt_out.ne(PAD_ID).sum(1)
        means = losses.sum(1) / tokens.clamp(min=1)
        rows = tokens.gt(0).sum()  # without the empty rows that fill up a batch
        return means.sum() / rows * tokens.sum()


# Faults of the layers -------------------------------------------------------------------------


class WrongScale(Fault):
    """Scores are divided by the root of d_model, not of the head's width."""

    def no_effect(self, settings: ModelSettings) -> str:
        return "is no fault with one head; take model.n_heads 2" if settings.n_heads == 1 else ""

    def plant(self, model: Transformer) -> None:
        for attention in _parts(model, Attention):
            attention.scale = model.settings.d_model**-0.5


class NoScale(Fault):
    """Scores are not divided at all."""

    def plant(self, model: Transformer) -> None:
        for attention in _parts(model, Attention):
            attention.scale = 1.0


class NoPosition(Fault):
    """The model has no information about the order of tokens."""

    def no_effect(self, settings: ModelSettings) -> str:
        none = settings.positions == settings.cross_positions == "none"
        return "takes nothing from model.positions: none" if none else ""

    def plant(self, model: Transformer) -> None:
        model.positions = model.cross_positions = Positions(model.settings, Vocabulary(()))


class NoResidual(Fault):
    """Sub-layers replace their input: x is not added."""

    def plant(self, model: Transformer) -> None:
        for residual in _parts(model, Residual):
            residual.forward = partial(  # type: ignore[method-assign]
                _without_residual, residual
            )


def _without_residual(residual: Residual, x: Tensor, sublayer: nn.Module) -> Tensor:
    if residual.pre:
        output: Tensor = residual.drop(sublayer(residual.norm(x)))
    else:
        output = residual.norm(residual.drop(sublayer(x)))
    return output


class NoNorm(Fault):
    """The model has no layer normalization."""

    def plant(self, model: Transformer) -> None:
        for module in _parts(model, nn.Module):
            for name, child in module.named_children():
                if isinstance(child, nn.LayerNorm):
                    setattr(module, name, nn.Identity())


class NoFeedForward(Fault):
    """Layers have only attention."""

    def plant(self, model: Transformer) -> None:
        for layer in (*_parts(model, EncoderLayer), *_parts(model, DecoderLayer)):
            layer.feed_forward = Silence()


class Silence(nn.Module):
    """A sub-layer whose output is 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


def _parts(model: Transformer, kind: type[Part]) -> list[Part]:
    return [part for part in model.modules() if isinstance(part, kind)]
