"""The attention weights of any model, met where torch computes them: in softmax, or in its fused
attention, whose weights are computed again from its arguments."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class AttentionMaps(TorchDispatchMode):
    """Which cells of the attentions of Tq queries to Tk keys hold any weight: `seen` (B, Tq, Tk),
    over all layers and heads; None where there was no such attention."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: skipping it would import the compiler, which takes longer than all proofs."""
        return False

    def __init__(self, queries: int, keys: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shape = (queries, keys)
        self.seen: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        name = func.__name__ if hasattr(func, "__name__") else str(func)
        if "softmax" in name and "backward" not in name and isinstance(result, Tensor):
            self._add(result if "log" not in name else result.exp())
        elif "scaled_dot_product" in name and "backward" not in name:
            self._add(_weights(*args, **named))
        return result

    def _add(self, weights: Tensor) -> None:
        if weights.dim() < 2 or tuple(weights.shape[-2:]) != self.shape:
            return
        cells = ~(weights.detach() == 0)
        flat = cells.reshape(-1, *self.shape)
        self.seen = flat.any(0) if self.seen is None else self.seen | flat.any(0)


def _weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *others: Any,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """Of a fused attention, from its arguments; the mask may come by position or by name."""
    mask = attn_mask
    for value in others:
        if isinstance(value, Tensor):
            mask = value
        elif isinstance(value, bool):
            is_causal = is_causal or value
    if q.shape[-3] != k.shape[-3]:  # grouped queries
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    scores = q @ k.transpose(-2, -1) * (scale or 1 / math.sqrt(q.shape[-1]))
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    if is_causal:
        closed = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(closed, -math.inf)
    return scores.softmax(-1)
