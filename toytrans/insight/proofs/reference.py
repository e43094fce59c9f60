"""What an attention was asked, what it answered, and what the reference gives from its weights."""

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.model.attention import Attention
from toytrans.model.context import AttentionContext


class Call:
    """What an attention was asked and what it answered, and what the reference answers."""

    def __init__(self, module: nn.Module, stack: contextlib.ExitStack, pads: Tensor) -> None:
        self.module, self.met, self.pads = module, False, pads
        self.given: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}
        self.parts: dict[str, Tensor] = {}
        self.output = torch.empty(0)
        if isinstance(module, Attention | nn.MultiheadAttention):
            stack.enter_context(
                _removing(module.register_forward_hook(self._whole, with_kwargs=True))
            )
            return
        for name in ("q_proj", "k_proj", "v_proj"):
            part = getattr(module, name)
            keep = lambda _, __, output, name=name: self.parts.__setitem__(name, output)  # noqa: E731
            stack.enter_context(_removing(part.register_forward_hook(keep)))
        stack.enter_context(_removing(module.out_proj.register_forward_pre_hook(self._context)))  # type: ignore[union-attr]

    @property
    def heads(self) -> int:
        ours = getattr(self.module, "n_heads", 1)
        return int(getattr(self.module, "num_heads", ours))

    @property
    def width(self) -> int:
        """Of a head."""
        return self.output.shape[-1] // self.heads

    def _whole(self, _: nn.Module, given: Any, named: Any, output: Any) -> None:
        self.given, self.named, self.met = given, named, True
        self.output = output[0] if isinstance(output, tuple) else output

    def _context(self, _: nn.Module, given: Any) -> None:
        self.output, self.met = given[0], True

    def reference(self, factor: float = 1.0) -> Iterable[Tensor]:
        """The answers that are right: one, or one for every mask that may have been meant. With a
        factor, those of scores that many times as large."""
        if isinstance(self.module, Attention):
            return [_reference_of_ours(self.module, factor, *self.given, **self.named)]
        if isinstance(self.module, nn.MultiheadAttention):
            return [_reference_of_torch(self.module, factor, *self.given, **self.named)]
        if set(self.parts) != {"q_proj", "k_proj", "v_proj"}:
            return []
        q, k, v = (self.parts[name] for name in ("q_proj", "k_proj", "v_proj"))
        heads = int(self.module.num_heads)  # type: ignore[arg-type]
        plain = q.dim() == 3 and q.shape[0] == len(self.pads) and q.shape[-1] % heads == 0
        if not plain or not q.shape[-1] == k.shape[-1] == v.shape[-1] or len(k) != len(q):
            return []  # grouped queries, time first, or another layout
        q = q * factor
        triangle = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
        masks = [None, triangle]
        if self.pads.shape[1] == k.shape[1]:
            masks.append(~self.pads[:, None, None])
        return [
            softmax_attention(_heads(q, heads), _heads(k, heads), _heads(v, heads), mask)
            for mask in masks
        ]


@contextlib.contextmanager
def _removing(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    added: Tensor | None = None,
    cap: float = 0,
) -> Tensor:
    """softmax(q k / root of Dh) v in plain steps: (B, H, T, Dh) -> (B, Tq, D), heads merged.

    mask: True = may attend; a row without any gives zeros.
    """
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if added is not None:
        scores = scores + added
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2)


def _heads(x: Tensor, heads: int) -> Tensor:
    parted: Tensor = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return parted


def _reference_of_ours(
    module: Attention,
    factor: float,
    x: Tensor,
    context: AttentionContext,
    memory: Any = None,
    cache: Any = None,
) -> Tensor:
    weights, biases = module.in_proj.weight.chunk(3), module.in_proj.bias.chunk(3)
    q, k, v = (
        _heads(F.linear(x, w, b), module.n_heads) for w, b in zip(weights, biases, strict=True)
    )
    if memory is not None:
        k, v = memory
    else:
        q, k = (module.rotate(part, range(x.shape[1])) for part in (q, k))
    merged = softmax_attention(
        q * factor, k, v, context.mask, module.score_bias(context), module.cap
    )
    output: Tensor = module.out_proj(merged)
    return output


def _reference_of_torch(
    module: nn.MultiheadAttention,
    factor: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Tensor:
    given = [x if module.batch_first else x.transpose(0, 1) for x in (query, key, value)]
    assert module.in_proj_weight is not None
    weights, biases = module.in_proj_weight.chunk(3), [None] * 3
    if module.in_proj_bias is not None:
        biases = list(module.in_proj_bias.chunk(3))  # type: ignore[arg-type]
    q, k, v = (
        _heads(F.linear(x, w, b), module.num_heads)
        for x, w, b in zip(given, weights, biases, strict=True)
    )
    added = torch.zeros(q.shape[-2], k.shape[-2], dtype=q.dtype)
    if attn_mask is not None and attn_mask.dim() == 3:  # (B H, Tq, Tk)
        attn_mask = attn_mask.unflatten(0, (len(q), -1))
    for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
        if mask is None:
            continue
        if mask.dtype == torch.bool:  # torch's own polarity: True = blocked
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -math.inf)
        added = added + mask
    merged = softmax_attention(q * factor, k, v, None, added)
    output: Tensor = module.out_proj(merged if module.batch_first else merged.transpose(0, 1))
    return output
