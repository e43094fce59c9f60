"""Targets whose symbols are those of the source in another order, other symbols, or one symbol."""

import torch
from torch import Tensor

from toytrans.data.pairs import Sequences, real_places


def copy(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    return src, length


def reverse(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    places = torch.arange(src.shape[1], device=src.device)
    return src.gather(1, (length[:, None] - 1 - places).clamp(min=0)), length


def shift(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    return src + symbols, length


def sort(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    last = src.masked_fill(~real_places(length, src.shape[1]), symbols)
    return last.sort(1).values, length


def duplicate(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    places = torch.arange(2 * src.shape[1], device=src.device)
    return src.gather(1, places % length[:, None].clamp(min=1)), 2 * length


def odds_first(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    places = torch.arange(src.shape[1], device=src.device)
    odds = length[:, None] // 2
    order = torch.where(places < odds, 2 * places + 1, 2 * (places - odds))
    return src.gather(1, order.clamp(0, max(src.shape[1] - 1, 0))), length


def parity(src: Tensor, length: Tensor, symbols: int, seed: int) -> Sequences:
    total = src.masked_fill(~real_places(length, src.shape[1]), 0).sum(1, keepdim=True)
    return total % symbols, torch.ones_like(length)
