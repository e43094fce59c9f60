"""Attention's fused kernel for a GPU, dropout for a CPU, and which library multiplies there.

A CPU takes `eager_attention` as it is written. A GPU takes torch's fused kernel, where that can
express what is asked for.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from toytrans.model.context import AttentionContext


def backend_for(q: Tensor, context: AttentionContext, cap: float) -> Callable[..., Tensor] | None:
    """What computes the outputs of `eager_attention` faster from the same arguments, or None.

    The fused kernel has no cap, and rounds a bias to bf16.
    """
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


# Which library multiplies on a CPU ------------------------------------------------------------

_onednn_multiplies = False


def leave_products_to_onednn(wanted: bool) -> None:
    """Whether oneDNN multiplies fp32 matrices in this whole process. As long as nobody calls this,
    torch's setting is left alone."""
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


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the keys: (B, H, Tq, Tk) -> (B, H, Tq, Tk).

    A CPU's vector holds 16 numbers of fp32, and torch is several times slower for shorter rows,
    so that these are filled up with scores that get no weight.
    """
    keys = scores.shape[-1]
    if scores.device.type != "cpu" or keys >= 16:
        return scores.softmax(-1)
    return F.pad(scores, (0, 16 - keys), value=-torch.inf).softmax(-1)[..., :keys]


@contextlib.contextmanager
def torchs_own_products() -> Iterator[None]:
    """Until the block ends, torch multiplies with the library that it would choose by itself.

    Decoding multiplies many small matrices. oneDNN copies each of them into a layout of its own
    first, which takes longer than it saves.
    """
    wanted = _onednn_multiplies
    if wanted:
        leave_products_to_onednn(False)
    try:
        yield
    finally:
        if wanted:
            leave_products_to_onednn(True)


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
