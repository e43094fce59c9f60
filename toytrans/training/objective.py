"""What a step learns from: how a batch is put to the model, and what of its answer is scored."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.data.batches import Batch
from toytrans.tokens import PAD_ID

CrossEntropy = Callable[..., Tensor]
"""`F.cross_entropy`, or the same by hand."""


def summed_loss(
    logits: Tensor,
    tgt_out: Tensor,
    label_smoothing: float = 0.0,
    cross_entropy: CrossEntropy = F.cross_entropy,
) -> Tensor:
    """Cross entropy in nats, summed over real target tokens: (B, T, V), (B, T) -> a scalar.

    PAD labels are ignored; the sum is divided once, by the tokens of the whole step.
    """
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    return cross_entropy(
        logits.flatten(0, 1),
        tgt_out.flatten(),
        ignore_index=PAD_ID,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


class Objective(NamedTuple):
    """batch: what teacher forcing makes of a batch; loss (logits, tgt_out, label_smoothing) ->
    the summed loss; tokens: by how many it is divided."""

    batch: Callable[[Batch], Batch] = lambda batch: batch
    loss: Callable[..., Tensor] = summed_loss
    tokens: Callable[[Batch], int] = lambda batch: batch.target_tokens

    def mean(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of one batch, in nats per token: a scalar."""
        return self.loss(logits, batch.tgt_out, 0.0) / self.tokens(batch)


SOUND = Objective()
