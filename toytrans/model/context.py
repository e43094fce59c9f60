"""What an attention needs besides its queries: a mask, relative positions, and in decoding the keys
and values of the places before."""

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


KeysValues = tuple[Tensor, Tensor]
"""Keys and values split into heads, (B, H, Tk, Dh) each."""


class KVCache:
    """The keys and values of one attention, allocated once.

    The W beams of a source share one cache: place t of beam w is key t W + w.

    place: the next place, at which every beam stands; whoever decodes tells it.
    """

    place = 0

    def __init__(
        self, sources: int, heads: int, places: int, beams: int, width: int, like: Tensor
    ) -> None:
        self.beams = beams
        self.keys = like.new_empty(sources, heads, places * beams, width)
        self.values = torch.empty_like(self.keys)

    def extend(self, k: Tensor, v: Tensor) -> KeysValues:
        """Append k and v (A, H, W, Dh) of one place. Returns those of all places so far."""
        start = self.place * self.beams
        stop = start + self.beams
        self.keys[:, :, start:stop] = k
        self.values[:, :, start:stop] = v
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def select(self, sources: Tensor, places: int) -> None:
        """Keep some sources (A',), in that order, in the same storage. places: filled so far."""
        filled = places * self.beams
        for storage in (self.keys, self.values):
            storage[: len(sources), :, :filled] = storage[sources, :, :filled]
        self.keys, self.values = self.keys[: len(sources)], self.values[: len(sources)]
