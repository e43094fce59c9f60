"""Rows of ids: what a model is asked."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Symbols = Sequence[tuple[list[int], list[int]]]
"""Ragged pairs of symbol ids, without start, end or pads."""

IGNORED = -100
"""The label that torch's cross entropy, and with it Hugging Face's models, ignores."""


class Ids(NamedTuple):
    """What a model is asked: src (B, S) and tgt_in (B, T). masked: which places of tgt_in a mask
    closes, (B, T), where the model is given a mask; None means the pads."""

    src: Tensor
    tgt_in: Tensor
    masked: Tensor | None = None


def rolled(x: Tensor, by: Tensor) -> Tensor:
    """Rows (B, L, ...), each moved so many places on, (B,); what falls off at the end comes in at
    the front."""
    index = (torch.arange(x.shape[1], device=x.device) - by[:, None].to(x.device)) % x.shape[1]
    return x[torch.arange(len(x), device=x.device)[:, None], index]


def wider(ids: Tensor, places: int, value: int) -> Tensor:
    """Rows of ids with so many pads behind them."""
    return F.pad(ids, (0, places), value=value)


def filled_up(rows: list[list[int]], value: int) -> Tensor:
    """Ragged rows of ids, each filled up with a value, at least one place wide: (N, L)."""
    width = max(1, *(len(row) for row in rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])
