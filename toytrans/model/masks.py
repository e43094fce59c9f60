"""Masks, all of them. True (printed 1) = may attend.

    padding_mask (B, L)   causal_mask (T, T)   attention masks (B, 1, Tq or 1, Tk)

Query rows run down, key columns across; an axis of size 1 stands for "the same in every row".
The decoder's pads are read from `tgt_in`; the loss ignores pads of `tgt_out`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from toytrans.config import PadMask
from toytrans.tokens import PAD_ID


class Masks(NamedTuple):
    """encoder_self (B, 1, S or 1, S), decoder_self (B, 1, T, T), cross (B, 1, T or 1, S)."""

    encoder_self: Tensor
    decoder_self: Tensor
    cross: Tensor


def padding_mask(ids: Tensor) -> Tensor:
    """(B, L) ids -> (B, L): True at real tokens."""
    return ids != PAD_ID


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """(T, T): query t may look at keys 0 .. t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def encoder_self_mask(src: Tensor, pad_mask: PadMask = "keys") -> Tensor:
    """Source pads are closed as keys; as queries too if asked for."""
    return _closing_pads(padding_mask(src), padding_mask(src), pad_mask)


def decoder_self_mask(tgt_in: Tensor, pad_mask: PadMask = "keys") -> Tensor:
    """Target pads are closed, and so is the future."""
    real = padding_mask(tgt_in)
    return _closing_pads(real, real, pad_mask) & causal_mask(tgt_in.shape[1], tgt_in.device)


def cross_mask(src: Tensor, tgt_in: Tensor, pad_mask: PadMask = "keys") -> Tensor:
    """Source pads are closed. Target pads play no part as keys, and the source has no future."""
    return _closing_pads(padding_mask(tgt_in), padding_mask(src), pad_mask)


def make_masks(src: Tensor, tgt_in: Tensor, pad_mask: PadMask = "keys") -> Masks:
    """The three masks of a batch, by the same functions that the model's passes call."""
    return Masks(
        encoder_self_mask(src, pad_mask),
        decoder_self_mask(tgt_in, pad_mask),
        cross_mask(src, tgt_in, pad_mask),
    )


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers to add to scores: 0 = may attend, the lowest finite number = may not.

    Finite, because a row of -inf alone turns into NaN; `open_rows` deals with such rows.
    """
    lowest = torch.finfo(dtype).min
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, lowest)


def open_rows(mask: Tensor) -> Tensor:
    """(B, 1, Tq, Tk) -> (B, 1, Tq, 1): True for queries that see at least one key."""
    return mask.any(-1, keepdim=True)


def _closing_pads(queries: Tensor, keys: Tensor, pad_mask: PadMask) -> Tensor:
    mask = keys[:, None, None, :]  # (B, 1, 1, Tk)
    if pad_mask == "keys_and_queries":
        mask = mask & queries[:, None, :, None]  # (B, 1, Tq, Tk)
    return mask
