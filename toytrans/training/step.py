"""The loss that training minimises, in nats: summed over the real target tokens of a step, then
divided once by their number. A fault of the config may change it (`Objective`)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.data.batches import Batch
from toytrans.tokens import PAD_ID


def token_losses(
    logits: Tensor,
    tgt_out: Tensor,
    label_smoothing: float = 0.0,
    *,
    ignored: int = PAD_ID,
    reduction: str = "none",
) -> Tensor:
    """Cross entropy of each label in nats, in fp32 at least.

    logits: (B, T, V).
    tgt_out: (B, T) labels. The loss of the id `ignored` is 0.
    reduction: "none" returns (B T,), "sum" a scalar.
    """
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    return F.cross_entropy(
        logits.flatten(0, 1),
        tgt_out.flatten(),
        ignore_index=ignored,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def summed_loss(logits: Tensor, tgt_out: Tensor, *given: Any, **options: Any) -> Tensor:
    """Cross entropy in nats, summed over real target tokens: (B, T, V), (B, T) -> a scalar.

    given, options: as of `token_losses`. The caller divides once, by the number of real target
    tokens of the whole step.
    """
    return token_losses(logits, tgt_out, *given, **options, reduction="sum")


class Objective(NamedTuple):
    """What one update minimises.

    batch: changes a batch before the model reads it.
    loss: (logits, tgt_out, label_smoothing) -> the summed loss, a scalar.
    tokens: the number that the summed loss of a batch is divided by.
    """

    batch: Callable[[Batch], Batch] = lambda batch: batch
    loss: Callable[..., Tensor] = summed_loss
    tokens: Callable[[Batch], int] = lambda batch: batch.target_tokens

    def mean(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of one batch, in nats per token: a scalar."""
        return self.loss(logits, batch.tgt_out, 0.0) / self.tokens(batch)
