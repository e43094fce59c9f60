"""The masks of an encoder-decoder transformer. True (printed 1) = may attend.

    padding_mask (B, L)   causal_mask (T, T)   attention masks (B, 1, Tq or 1, Tk)

Rows are queries, columns are keys. An axis of size 1 means "the same in every row".
The decoder's pads are read from `tgt_in`; the loss ignores pads of `tgt_out`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from toytrans.config.names import PadMask
from toytrans.tokens import PAD_ID


class Masks(NamedTuple):
    """The three masks of a batch."""

    encoder_self: Tensor  # (B, 1, S or 1, S)
    decoder_self: Tensor  # (B, 1, T, T)
    cross: Tensor  # (B, 1, T or 1, S)


def padding_mask(ids: Tensor) -> Tensor:
    """(B, L) ids -> (B, L): True at real tokens."""
    return ids != PAD_ID


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """(T, T): query t may attend to keys 0 .. t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class MaskMaker:
    """Makes the three masks of one model from ids.

    pad_mask: "keys" masks pads as keys; "keys_and_queries" masks them as queries too.
    is_causal: whether no target place sees a later one, so that decoding may keep what earlier
        places have computed
    """

    is_causal = True

    def __init__(self, pad_mask: PadMask = "keys") -> None:
        self.pad_mask: PadMask = pad_mask

    def encoder_self(self, src: Tensor) -> Tensor:
        """Every query may attend to every real source token."""
        return self._without_pads(src, src)

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        """Every query may attend to real target tokens up to its own place."""
        causal = causal_mask(tgt_in.shape[1], tgt_in.device)
        return self._without_pads(tgt_in, tgt_in) & causal

    def cross(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Every target token may attend to every real source token."""
        return self._without_pads(tgt_in, src)

    def all(self, src: Tensor, tgt_in: Tensor) -> Masks:
        """The three masks of a batch: src (B, S), tgt_in (B, T)."""
        return Masks(self.encoder_self(src), self.decoder_self(tgt_in), self.cross(src, tgt_in))

    def _without_pads(self, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        mask = padding_mask(key_ids)[:, None, None, :]  # (B, 1, 1, Tk)
        if self.pad_mask == "keys_and_queries":
            mask = mask & padding_mask(query_ids)[:, None, :, None]  # (B, 1, Tq, Tk)
        return mask
