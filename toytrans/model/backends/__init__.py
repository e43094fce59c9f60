"""Backends of attention: the numbers of `eager_attention`, faster; and limited memory.

A backend is a module with `fits(q, context, cap)` and `attend(...)`, listed in BACKENDS.
"""

from collections.abc import Callable

from torch import Tensor

from toytrans.model.backends import cpu, sdpa
from toytrans.model.backends.chunked import within_limit
from toytrans.model.context import AttentionContext

BACKENDS = (sdpa, cpu)

__all__ = ["BACKENDS", "within_limit", "first_fitting"]


def first_fitting(q: Tensor, context: AttentionContext, cap: float) -> Callable[..., Tensor] | None:
    """The first backend that can express an attention; None = `eager_attention`."""
    return next((each.attend for each in BACKENDS if each.fits(q, context, cap)), None)
