"""What the queries of an attention see of its keys."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toytrans.model import masks
from toytrans.model.scheme import Distances


@dataclass(frozen=True)
class Sight:
    """What each query may look at and how far away it is: made once, used by every layer.

    mask (B, 1, Tq or 1, Tk) bool; additive: the same as numbers to add; both None where all is
    open. open_rows (B, 1, Tq, 1), or None where every query sees something; distances
    of the position scheme.
    """

    mask: Tensor | None = None
    additive: Tensor | None = None
    open_rows: Tensor | None = None
    distances: Distances | None = None

    @staticmethod
    def of(mask: Tensor, distances: Distances | None, dtype: torch.dtype) -> "Sight":
        open_rows = masks.open_rows(mask)
        # to look would make a GPU wait, and break a compiled graph
        looks = mask.device.type == "cpu" and not torch.compiler.is_compiling()
        all_open = looks and bool(open_rows.all())
        additive = masks.additive(mask, torch.promote_types(dtype, torch.float32))
        return Sight(mask, additive, None if all_open else open_rows, distances)

    def select(self, rows: Tensor) -> "Sight":
        """That of some rows of the batch (R,), in that order; without distances."""
        parts = (self.mask, self.additive, self.open_rows)
        mask, additive, open_rows = (None if part is None else part[rows] for part in parts)
        return Sight(mask, additive, open_rows)


@dataclass(frozen=True)
class Blocks:
    """The sight of many queries, made for one block of them after the other, so that neither
    scores nor distances of all queries are ever there at once. sight: that of a block."""

    queries: tuple[range, ...]
    sight: Callable[[range], Sight]
