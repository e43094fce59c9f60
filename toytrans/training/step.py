"""One update: summed loss / real tokens -> backward -> clip -> AdamW."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from toytrans.config.schema import TrainConfig
from toytrans.data.batches import Batch
from toytrans.training.devices import Precision
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext
from toytrans.training.objective import Objective
from toytrans.training.optimizer import AdamW

Updated = tuple[Tensor, int, Tensor]
"""Of one update: the summed loss, the number of real target tokens, the norm of the gradient."""


@dataclass(frozen=True)
class Update:
    """One update from some batches: forward, loss, backward, clip, AdamW.

    forward: (src, tgt_in) -> logits (B, T, V).
    """

    forward: Callable[[Tensor, Tensor], Tensor]
    optimizer: AdamW
    device: torch.device
    train: TrainConfig
    precision: Precision
    objective: Objective = Objective()
    context: DistributedContext = field(default_factory=lambda: SINGLE_PROCESS)

    def __call__(
        self, batches: Sequence[Batch], *, lr: float | Tensor, tokens: Tensor | None = None
    ) -> Updated:
        """The norm of the gradient is that before clipping. tokens: as in `backward`."""
        self.optimizer.zero_grad()
        loss, counted = self.backward(batches, tokens)
        self.context.sum_gradients(self.optimizer.state)
        limit = self.train.clip_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.optimizer.state, limit)
        self.optimizer.step(lr)
        return loss, counted, norm

    def backward(
        self, batches: Sequence[Batch], tokens: Tensor | None = None
    ) -> tuple[Tensor, int]:
        """Add the gradients of the mean loss per real target token of some batches together.

        They equal the gradients of one large batch that holds all rows.

        tokens: their number as a scalar on the device, for a graph; None = it is counted.
        Returns the summed loss, a scalar tensor, and the number of real target tokens, 0 if
        `tokens` is given. Both are sums over all processes, and the gradients are this process's
        share.
        """
        batches = [self.objective.batch(batch) for batch in batches]
        counted = sum(map(self.objective.tokens, batches)) if tokens is None else 0
        divisor = counted if tokens is None else tokens
        total = torch.zeros((), device=self.device)
        for batch in batches:
            src, tgt_in, tgt_out = self.context.shard(batch).to(self.device)
            bf16 = self.precision == "bf16"
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
                logits = self.forward(src, tgt_in)
            loss = self.objective.loss(logits, tgt_out, self.train.label_smoothing)
            (loss / divisor).backward()
            total = total + loss.detach()
        return self.context.sum(total), counted
