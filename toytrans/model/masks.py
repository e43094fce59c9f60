"""Masks, all of them. True (printed 1) = may attend.

    padding_mask (B, L)   causal_mask (T, T)   attention masks (B, 1, Tq or 1, Tk)

Query rows run down, key columns across; an axis of size 1 stands for "the same in every row".
The decoder's pads are read from `tgt_in`; the loss ignores pads of `tgt_out`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from toytrans.choices import PadMask
from toytrans.tokens import PAD_ID


class Masks(NamedTuple):
    """encoder_self (B, 1, S or 1, S), decoder_self (B, 1, T, T), cross (B, 1, T or 1, S)."""

    encoder_self: Tensor
    decoder_self: Tensor
    cross: Tensor


def padding_mask(ids: Tensor) -> Tensor:
    """(B, L) ids -> (B, L): True at real tokens."""
    return ids != PAD_ID


def causal_mask(
    length: int, device: torch.device | None = None, queries: range | None = None
) -> Tensor:
    """(T, T), or the rows of some queries: query t may look at keys 0 .. t."""
    rows = range(length) if queries is None else queries
    return torch.ones(len(rows), length, dtype=torch.bool, device=device).tril(rows.start)


class MaskMaker:
    """Makes the masks of one model: the only one that its passes ask.

    queries: the places of some queries, whose rows alone are made; None = all.
    """

    def __init__(self, pad_mask: PadMask = "keys") -> None:
        self.pad_mask: PadMask = pad_mask

    def encoder_self(self, src: Tensor, queries: range | None = None) -> Tensor:
        """Source pads are closed as keys; as queries too if asked for."""
        real = padding_mask(src)
        return self._closing_pads(real, real, queries)

    def decoder_self(self, tgt_in: Tensor, queries: range | None = None) -> Tensor:
        """Target pads are closed, and so is the future."""
        real = padding_mask(tgt_in)
        causal = causal_mask(tgt_in.shape[1], tgt_in.device, queries)
        return self._closing_pads(real, real, queries) & causal

    def cross(self, src: Tensor, tgt_in: Tensor, queries: range | None = None) -> Tensor:
        """Source pads are closed. Target pads play no part as keys, and the source has no
        future."""
        return self._closing_pads(padding_mask(tgt_in), padding_mask(src), queries)

    def all(self, src: Tensor, tgt_in: Tensor) -> Masks:
        """The three masks of a batch."""
        cross = self.cross(src, tgt_in)
        return Masks(self.encoder_self(src), self.decoder_self(tgt_in), cross)

    def _closing_pads(self, real: Tensor, keys: Tensor, queries: range | None = None) -> Tensor:
        """real (B, Tq) and keys (B, Tk): which places hold a token."""
        mask = keys[:, None, None, :]  # (B, 1, 1, Tk)
        if self.pad_mask == "keys_and_queries":
            rows = real if queries is None else real[:, queries.start : queries.stop]
            mask = mask & rows[:, None, :, None]  # (B, 1, Tq, Tk)
        return mask


def make_masks(src: Tensor, tgt_in: Tensor, pad_mask: PadMask = "keys") -> Masks:
    """The three masks of a batch, as a model with this `pad_mask` makes them."""
    return MaskMaker(pad_mask).all(src, tgt_in)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers to add to scores: 0 = may attend, the lowest finite number = may not.

    Finite, because a row of -inf alone turns into NaN; `open_rows` deals with such rows.
    """
    lowest = torch.finfo(dtype).min
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, lowest)


def open_rows(mask: Tensor) -> Tensor:
    """(B, 1, Tq, Tk) -> (B, 1, Tq, 1): True for queries that see at least one key."""
    return mask.any(-1, keepdim=True)
