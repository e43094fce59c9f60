"""Attention on a CPU in few passes over memory, its gradient written by hand."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from toytrans.model.backends.dropout import keep_mask
from toytrans.model.context import AttentionContext


def fits(q: Tensor, context: AttentionContext, cap: float) -> bool:
    """Any attention on a CPU."""
    return q.device.type == "cpu"


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: AttentionContext,
    bias: Tensor | None = None,
    cap: float = 0.0,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """The outputs (B, H, Tq, Dh) of `eager_attention`, for a CPU.

    Products run in the dtype of q, k and v, everything between them in fp32 or fp64.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    given = q, k, v, context.additive, bias, context.has_visible_key
    if torch.is_grad_enabled():
        return _CpuAttention.apply(*given, scale, cap, dropout)  # type: ignore[no-untyped-call]
    # oneDNN copies its operands into a layout of its own, which costs more than a few queries gain
    without_onednn = _onednn_multiplies and q.shape[2] <= 8
    if without_onednn:
        leave_products_to_onednn(False)
    try:
        return _forward(*given, scale, cap, dropout, in_place=True)[0]
    finally:
        if without_onednn:
            leave_products_to_onednn(True)


_onednn_multiplies = False


def leave_products_to_onednn(wanted: bool) -> None:
    """Whether products of fp32 matrices, those of a few queries apart, are oneDNN's in this whole
    process; as long as nobody calls this, torch's setting is left alone."""
    global _onednn_multiplies
    _onednn_multiplies = wanted
    torch.set_float32_matmul_precision("medium" if wanted else "highest")


def products_as_they_are() -> Callable[[], None]:
    """What puts the library of fp32 products back as it is now."""
    wanted, setting = _onednn_multiplies, torch.get_float32_matmul_precision()

    def put_back() -> None:
        leave_products_to_onednn(wanted)
        torch.set_float32_matmul_precision(setting)

    return put_back


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    additive: Tensor | None,
    bias: Tensor | None,
    has_visible_key: Tensor | None,
    scale: float,
    cap: float,
    dropout: float,
    in_place: bool = False,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The outputs (B, H, Tq, Dh), and what its gradient needs (in_place: it needs nothing).

    The cap is taken as cap tanh(x / cap) = 2 cap g - cap with the gate g = sigmoid(2 x / cap),
    which a CPU computes several times faster. Softmax does not see the constant.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    flat_q, flat_k, flat_v = (x.flatten(0, 1) for x in (q, k, v))  # (B H, T, Dh)
    scores = torch.bmm(flat_q, flat_k.mT).view(*q.shape[:3], k.shape[2])  # (B, H, Tq, Tk)
    scores = scores.to(wide)
    gate = scores.mul_(2 * scale / cap).sigmoid_() if cap else None
    logits, factor = (scores, scale) if gate is None else (gate, 2 * cap)
    out = logits if in_place else None
    if additive is None:
        masked = torch.mul(logits, factor, out=out)
    else:
        masked = torch.add(additive, logits, alpha=factor, out=out)
    if bias is not None:
        masked += bias
    weights = _softmax(masked)
    if has_visible_key is not None:
        weights *= has_visible_key
    keep = keep_mask(weights, dropout) if dropout else None
    dropped = (weights if keep is None else weights * keep).to(v.dtype).flatten(0, 1)
    outputs = torch.bmm(dropped, flat_v).view(q.shape)
    return outputs, (flat_q, flat_k, flat_v, weights, dropped, gate, keep)


class _CpuAttention(torch.autograd.Function):
    """`_forward` with its backward pass by hand.

    With w the weights, G the gradient of the outputs and g the gate of the cap: dv = w^T G;
    dw = G v^T; dz = w (dw - sum over keys of w dw); through the cap ds = 4 g (1 - g) dz;
    dq = ds k and dk = ds^T q, both times the scale, 1 / root Dh.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Tensor:
        """The outputs of `_forward`, which says what the others are."""
        outputs, saved = _forward(q, k, v, *others)
        ctx.save_for_backward(*saved)
        _, bias, _, ctx.scale, _, _ = others  # additive, bias, has_visible_key, scale, cap, dropout
        ctx.bias_shape = None if bias is None else bias.shape
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """G (B, H, Tq, Dh) -> gradients of q, k, v and bias; None for what is not learned."""
        q, k, v, weights, dropped, gate, keep = ctx.saved_tensors
        shape, gradient = gradients[0].shape, gradients[0].flatten(0, 1)
        d_v = torch.bmm(dropped.mT, gradient)
        d_weights = torch.bmm(gradient, v.mT).view(weights.shape).to(weights.dtype)
        if keep is not None:
            d_weights *= keep
        d_masked = d_weights.mul_(weights)
        d_masked = torch.addcmul(d_masked, weights, d_masked.sum(-1, keepdim=True), value=-1)
        d_bias = None if ctx.bias_shape is None else d_masked.sum_to_size(ctx.bias_shape)
        scale = ctx.scale
        if gate is not None:
            d_masked, scale = torch.ops.aten.sigmoid_backward(d_masked, gate), 4 * scale
        d_scores = (d_masked * scale).to(q.dtype).flatten(0, 1)
        d_q, d_k = torch.bmm(d_scores, k).view(shape), torch.bmm(d_scores.mT, q)
        like_k = (*shape[:2], weights.shape[-1], shape[-1])
        not_learned = (None, None, None, None)  # has_visible_key, scale, cap, dropout
        return d_q, d_k.view(like_k), d_v.view(like_k), None, d_bias, *not_learned


def _softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis; torch's is several times slower below 16 numbers, the width of
    a CPU's vector of fp32."""
    width = x.shape[-1]
    if width >= 16:
        return x.softmax(-1)
    return F.pad(x, (0, 16 - width), value=-torch.inf).softmax(-1)[..., :width].contiguous()
