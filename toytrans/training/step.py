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
from toytrans.training.objective import SOUND, Objective
from toytrans.training.optimizer import AdamW

Updated = tuple[Tensor, int, Tensor]
"""Of one update: the summed loss, the number of real target tokens, the norm of the gradient."""


def backward(
    forward: Callable[[Tensor, Tensor], Tensor],
    batches: Sequence[Batch],
    device: torch.device,
    *,
    objective: Objective = SOUND,
    label_smoothing: float = 0.0,
    precision: Precision = "fp32",
    context: DistributedContext = SINGLE_PROCESS,
    tokens: Tensor | None = None,
) -> tuple[Tensor, int]:
    """Add the gradients of the mean loss per real target token of some batches together.

    They equal the gradients of one large batch that holds all rows.

    forward: (src, tgt_in) -> logits (B, T, V).
    tokens: their number as a scalar on the device, for a graph; None = it is counted.
    Returns the summed loss, a scalar tensor, and the number of real target tokens, 0 if `tokens`
    is given. Both are sums over all processes, and the gradients are this process's share.
    """
    batches = [objective.batch(batch) for batch in batches]
    counted = sum(objective.tokens(batch) for batch in batches) if tokens is None else 0
    divisor = counted if tokens is None else tokens
    total = torch.zeros((), device=device)
    for batch in batches:
        src, tgt_in, tgt_out = context.shard(batch).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = forward(src, tgt_in)
        loss = objective.loss(logits, tgt_out, label_smoothing)
        (loss / divisor).backward()
        total = total + loss.detach()
    return context.sum(total), counted


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
    objective: Objective = SOUND
    context: DistributedContext = field(default_factory=lambda: SINGLE_PROCESS)

    def __call__(
        self, batches: Sequence[Batch], *, lr: float | Tensor, tokens: Tensor | None = None
    ) -> Updated:
        """The norm of the gradient is that before clipping."""
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
        """Gradients, summed loss and number of real target tokens; see `backward`."""
        return backward(
            self.forward,
            batches,
            self.device,
            objective=self.objective,
            label_smoothing=self.train.label_smoothing,
            precision=self.precision,
            context=self.context,
            tokens=tokens,
        )
