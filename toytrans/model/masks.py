"""The masks of an encoder-decoder transformer, made from ids. True (printed 1) = may attend.

A row is a query, and a column is a key. `padding_mask` (B, L) tells real tokens from pads, and
`causal_mask` (T, T) closes the future. `MaskMaker` joins them to the mask of each of the three
attentions, (B, 1, Tq or 1, Tk): the axis of size 1 after B is that of the heads, and that of the
queries is 1 where all queries see the same keys. The decoder's pads are those of `tgt_in`; that
pads of `tgt_out` do not count is up to the loss.
"""

import torch
from torch import Tensor

from toytrans.config.schema import PadMask
from toytrans.tokens import PAD_ID


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
        places have computed. Faults that let places see the future set it to False.
    """

    is_causal = True

    def __init__(self, pad_mask: PadMask = "keys") -> None:
        self.pad_mask: PadMask = pad_mask

    def encoder_self(self, src: Tensor) -> Tensor:
        """Every query may attend to every real source token: (B, S) -> (B, 1, S or 1, S)."""
        return self._without_pads(src, src)

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        """Every query may attend to real target tokens up to its own place: (B, T) ->
        (B, 1, T, T)."""
        causal = causal_mask(tgt_in.shape[1], tgt_in.device)
        return self._without_pads(tgt_in, tgt_in) & causal

    def cross(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Every target token may attend to every real source token: (B, S) and (B, T) ->
        (B, 1, T or 1, S)."""
        return self._without_pads(tgt_in, src)

    def _without_pads(self, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        mask = padding_mask(key_ids)[:, None, None, :]  # (B, 1, 1, Tk)
        if self.pad_mask == "keys_and_queries":
            mask = mask & padding_mask(query_ids)[:, None, :, None]  # (B, 1, Tq, Tk)
        return mask
