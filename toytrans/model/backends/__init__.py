"""Backends of attention: the numbers of `eager_attention`, faster.

A backend is a module with `fits(q, context, cap)` and `attend(...)`, listed in BACKENDS.
"""

from collections.abc import Callable

from torch import Tensor

from toytrans.model.backends import cpu, sdpa
from toytrans.model.context import AttentionContext

BACKENDS = (sdpa, cpu)

__all__ = ["BACKENDS", "first_fitting", "split_heads"]


def first_fitting(q: Tensor, context: AttentionContext, cap: float) -> Callable[..., Tensor] | None:
    """The first backend that can express an attention; None = `eager_attention`."""
    return next((each.attend for each in BACKENDS if each.fits(q, context, cap)), None)


def split_heads(projected: Tensor, parts: int, n_heads: int) -> tuple[Tensor, ...]:
    """A projection (B, L, parts D) -> its parts (B, H, L, Dh) each.

    A CPU multiplies what lies in one piece, so all parts are copied at once. A GPU's kernels read
    them where they are, and put their gradients together in one pass.
    """
    heads = projected.unflatten(-1, (parts, n_heads, -1))
    if projected.device.type == "cuda":
        return tuple(part.transpose(1, 2) for part in heads.unbind(2))
    return heads.permute(2, 0, 3, 1, 4).contiguous().unbind()
