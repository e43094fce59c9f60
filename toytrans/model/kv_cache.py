"""Keys and values of the places decoded so far."""

import torch
from torch import Tensor

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
