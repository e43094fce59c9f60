"""Attention by torch's fused kernel, for a GPU."""

from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from toytrans.model.context import AttentionContext


def fits(q: Tensor, context: AttentionContext, cap: float) -> bool:
    """Whether the kernel can express this attention: it has no cap, and rounds a bias to bf16."""
    rounds = context.distances is not None and context.distances.needs_fp32
    return q.device.type == "cuda" and not cap and not rounds


def kernels(mask: Tensor | None) -> list[SDPBackend]:
    """The kernels that torch may choose from. mask: what is added to the scores, or None.

    cuDNN's is not among them: it makes a plan for every new shape, which takes far longer than a
    step of a toy. Flash attention takes no mask.
    """
    some = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return [SDPBackend.FLASH_ATTENTION, *some] if mask is None else some


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
    """The outputs (B, H, Tq, Dh) of `eager_attention`, without a cap.

    context: with the numbers of `for_kernel`
    """
    assert not cap
    mask, visible = context.additive, context.has_visible_key
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias + mask
    with sdpa_kernel(kernels(mask)):
        output = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale
        )
    return output if visible is None else output * visible
