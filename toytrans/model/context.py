"""What an attention needs besides queries, keys and values: its mask and relative positions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from toytrans.model.positions.base import Distances


@dataclass(frozen=True)
class AttentionContext:
    """Mask and relative positions of one attention. It is made once and used by every layer.

    mask: (B, 1, Tq or 1, Tk) bool; None = every key is visible
    additive: the mask as numbers to add to scores; on a GPU those of `for_kernel`
    has_visible_key: (B, 1, Tq or 1, 1) bool; None = every query has one
    distances: from queries to keys, as the position scheme measures them; None = no bias
    """

    mask: Tensor | None = None
    additive: Tensor | None = None
    has_visible_key: Tensor | None = None
    distances: Distances | None = None

    @staticmethod
    def of(mask: Tensor, distances: Distances | None, dtype: torch.dtype) -> "AttentionContext":
        """The context of a mask. dtype: of the model's weights."""
        visible = has_visible_key(mask)
        if mask.device.type == "cuda":
            return AttentionContext(mask, for_kernel(mask, visible, dtype), visible, distances)
        # reading a value would make another device wait
        all_visible = mask.device.type == "cpu" and bool(visible.all())
        numbers = additive(mask, torch.promote_types(dtype, torch.float32))
        return AttentionContext(mask, numbers, None if all_visible else visible, distances)

    def select(self, rows: Tensor) -> "AttentionContext":
        """The context of some rows (R,) of the batch, in that order, without distances."""
        parts = (self.mask, self.additive, self.has_visible_key)
        mask, additive, visible = (None if part is None else part[rows] for part in parts)
        return AttentionContext(mask, additive, visible)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers to add to scores: 0 = may attend, the lowest finite number = may not.

    It is finite because softmax turns a row of -inf into NaN; see `has_visible_key`.
    """
    lowest = torch.finfo(dtype).min
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, lowest)


def for_kernel(mask: Tensor, visible: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers in the dtype that a GPU computes in.

    dtype: of the model's weights.
    A fused kernel may make NaN of queries without a visible key, so they see every key here. They
    become zero after it.
    """
    autocast = torch.is_autocast_enabled("cuda")
    return additive(mask | ~visible, torch.get_autocast_dtype("cuda") if autocast else dtype)


def has_visible_key(mask: Tensor) -> Tensor:
    """(B, 1, Tq, Tk) -> (B, 1, Tq, 1): True for queries that may attend to at least one key."""
    return mask.any(-1, keepdim=True)
