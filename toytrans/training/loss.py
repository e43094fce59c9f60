"""The loss that training minimises, in nats: cross entropy summed over the real target tokens of a
step, then divided once by their number. A fault may change what a batch holds, how its losses are
summed, or what they are divided by: each is a method of `Objective`."""

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.config.faults import FAULTS, planted_fault
from toytrans.data.batches import Batch
from toytrans.named import import_named
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


def summed_loss(logits: Tensor, tgt_out: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross entropy in nats, summed over real target tokens: (B, T, V), (B, T) -> a scalar.

    The caller divides once, by the number of real target tokens of the whole step.
    """
    return token_losses(logits, tgt_out, label_smoothing, reduction="sum")


class Objective:
    """What one update minimises: `loss`, summed over batches, divided by their `divisor`s."""

    def prepare(self, batch: Batch) -> Batch:
        """The batch as the model is to see it."""
        return batch

    def loss(self, logits: Tensor, tgt_out: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """The summed loss of a prepared batch: (B, T, V), (B, T) -> a scalar."""
        return summed_loss(logits, tgt_out, label_smoothing)

    def divisor(self, batch: Batch) -> int:
        """The number that the summed loss of a prepared batch is divided by."""
        return batch.target_tokens

    def mean(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of one prepared batch, in nats per token: a scalar."""
        return self.loss(logits, batch.tgt_out) / self.divisor(batch)


def objective_of(fault: str | None) -> Objective:
    """What a training minimises. A fault may change that; evaluation never asks."""
    name = planted_fault(fault)
    if name is None:
        return Objective()
    objective: Objective = import_named(FAULTS[name])()
    return objective
