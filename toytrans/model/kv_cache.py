"""Keys and values of the places decoded so far."""

import torch
from torch import Tensor

KeysValues = tuple[Tensor, Tensor]
"""Keys and values split into heads, (B, H, Tk, Dh) each."""


class KVCache:
    """The keys and values of one attention, allocated once.

    The W beams of a source share one cache: place t of beam w is key t W + w.
    """

    def __init__(
        self, sources: int, heads: int, places: int, beams: int, width: int, like: Tensor
    ) -> None:
        self.beams, self.length = beams, 0
        self.keys = like.new_empty(sources, heads, places * beams, width)
        self.values = torch.empty_like(self.keys)

    @property
    def places(self) -> range:
        """The next place, at which every beam stands."""
        place = self.length // self.beams
        return range(place, place + 1)

    def extend(self, k: Tensor, v: Tensor) -> KeysValues:
        """Append k and v (A, H, W, Dh) of one place. Returns those of all places so far."""
        start, self.length = self.length, self.length + k.shape[2]
        self.keys[:, :, start : self.length] = k
        self.values[:, :, start : self.length] = v
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def select(self, sources: Tensor) -> None:
        """Keep some sources (A',), in that order, in the same storage."""
        for storage in (self.keys, self.values):
            storage[: len(sources), :, : self.length] = storage[sources, :, : self.length]
        self.keys, self.values = self.keys[: len(sources)], self.values[: len(sources)]
