"""Attention over long sequences, some queries at a time."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from toytrans.model.context import AttentionContext, LazyContext

_max_scores: int | None = None


@contextlib.contextmanager
def limit_scores(most: int | None) -> Iterator[None]:
    """Inside, no attention of a pass makes more scores than this at once; None = no limit.

    Its memory is then linear in the length.
    """
    global _max_scores
    before, _max_scores = _max_scores, most
    try:
        yield
    finally:
        _max_scores = before


def within_limit(
    attend: Callable[[Tensor, Tensor, Tensor, AttentionContext], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: AttentionContext | LazyContext,
) -> Tensor:
    """`attend`, for as many queries at a time as the limit allows: (B, H, Tq, Dh).

    Masks and distances too are made for these queries alone. Queries start at place 0.
    """
    if isinstance(context, LazyContext):
        scores = q.shape[0] * q.shape[1] * k.shape[2]  # of one query
        if _max_scores is not None and scores * q.shape[2] > _max_scores:
            size = max(1, _max_scores // scores)
            chunks = [context.queries[i : i + size] for i in range(0, q.shape[2], size)]
            parts = [
                attend(q[:, :, chunk.start : chunk.stop], k, v, context.rows(chunk))
                for chunk in chunks
            ]
            return torch.cat(parts, 2)
    return attend(q, k, v, context.whole)
