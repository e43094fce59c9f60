"""Differences of tensors, in which NaN never passes and equal infinities are 0 apart; and places,
some of many, and in words."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def apart(a: Tensor, b: Tensor) -> Tensor:
    """a - b, where equal infinities are 0 apart."""
    return torch.where(a == b, torch.zeros_like(a), a - b)


def largest(difference: Tensor) -> float:
    """The largest absolute number; NaN if there is one, 0 if there is no number at all."""
    return float(difference.detach().abs().max()) if difference.numel() else 0.0


def worst(differences: Iterable[float]) -> float:
    """The largest of some differences; NaN is larger than any."""
    return max(differences, key=lambda value: math.inf if math.isnan(value) else value)


def spread_out(count: int, most: int) -> list[int]:
    """Of the places 0 .. count - 1 the ends and some between, `most` at most."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def listed_places(places: list[int]) -> str:
    """Places in words, the first eight of them."""
    listed = ", ".join(map(str, places[:8])) + ", ..." * (len(places) > 8)
    return f"place{'s' * (len(places) > 1)} {listed}"
