"""Attention and dropout, faster: the numbers of `eager_attention`, and of torch's dropout by other
draws.

On a CPU attention takes few passes over memory, with its gradient written by hand. On a GPU it is
torch's fused kernel, where that can express it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from toytrans.model.context import AttentionContext


def backend_for(q: Tensor, context: AttentionContext, cap: float) -> Callable[..., Tensor] | None:
    """The attention that takes the arguments of `eager_attention` and gives its outputs; None =
    none can. The fused kernel has no cap, and rounds a bias to bf16."""
    if q.device.type == "cpu":
        return cpu_attention
    rounds = context.distances is not None and context.distances.needs_fp32
    return fused_attention if q.device.type == "cuda" and not cap and not rounds else None


def split_heads(projected: Tensor, parts: int, n_heads: int) -> tuple[Tensor, ...]:
    """A projection (B, L, parts D) -> its parts (B, H, L, Dh) each.

    A CPU multiplies what lies in one piece, so all parts are copied at once. A GPU's kernels read
    them where they are, and put their gradients together in one pass.
    """
    heads = projected.unflatten(-1, (parts, n_heads, -1))
    if projected.device.type == "cuda":
        return tuple(part.transpose(1, 2) for part in heads.unbind(2))
    return heads.permute(2, 0, 3, 1, 4).contiguous().unbind()


# On a CPU ------------------------------------------------------------------------------------


def cpu_attention(
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


# On a GPU ------------------------------------------------------------------------------------


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: AttentionContext,
    bias: Tensor | None = None,
    cap: float = 0.0,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """The outputs (B, H, Tq, Dh) of `eager_attention`, without a cap.

    context: with the numbers of `for_kernel`
    """
    assert not cap
    mask, visible = context.additive, context.has_visible_key
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias + mask
    some = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    # flash attention takes no mask; cuDNN's kernel makes a plan for every new shape, which takes
    # far longer than a step of a toy
    with sdpa_kernel(some if mask is not None else [SDPBackend.FLASH_ATTENTION, *some]):
        output = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale
        )
    return output if visible is None else output * visible


# Dropout (Srivastava et al. 2014) ------------------------------------------------------------
# On a CPU torch draws one random number an element, which costs more than the layer around it. Here
# one 64-bit word of torch's generator decides eight elements.


def keep_mask(x: Tensor, rate: float) -> Tensor:
    """0 with probability `rate`, else 1 / (1 - rate), like x: x times it is dropout.

    On a CPU: of the 256 values of a random byte, the lowest 256 rate drop an element; that number
    is rounded up or down at random for each mask, so that the rate holds on average.
    """
    if x.device.type != "cpu":
        return F.dropout(torch.ones_like(x), rate)
    lowest = int(256 * rate + float(torch.rand(())))
    scale = 1 / (1 - rate)
    if lowest in (0, 256):
        return torch.full_like(x, 0 if lowest else scale)
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    highest = lowest - 129  # of the bytes -128 .. 127 that drop
    shares = words.view(torch.int8)[: x.numel()].view(x.shape)
    kept = shares.clamp(highest, highest + 1).sub_(highest)  # 0 or 1, quicker than to compare
    return kept.to(x.dtype).mul_(scale)


def dropout(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """x with elements zeroed with probability `rate` and the others made up for it."""
    if not training or not rate:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    return x * keep_mask(x, rate)


class Dropout(nn.Module):
    """`dropout` as a layer."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate, self.training)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
