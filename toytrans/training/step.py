"""One update: summed loss / real tokens -> backward -> clip -> AdamW."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from toytrans.config import TrainConfig
from toytrans.data.batches import Batch
from toytrans.training.devices import Precision
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext
from toytrans.training.objective import SOUND, Objective
from toytrans.training.optimizer import AdamW


def backward(
    forward: Callable[[Tensor, Tensor], Tensor],
    batches: Sequence[Batch],
    device: torch.device,
    *,
    objective: Objective = SOUND,
    label_smoothing: float = 0.0,
    precision: Precision = "fp32",
    context: DistributedContext = SINGLE_PROCESS,
) -> tuple[Tensor, int]:
    """Add the gradients of the mean loss per real target token of some batches together.

    They equal the gradients of one large batch that holds all rows.

    forward: (src, tgt_in) -> logits (B, T, V).
    Returns the summed loss, a scalar tensor, and the number of real target tokens. Both are
    sums over all processes.
    """
    batches = [objective.batch(batch) for batch in batches]
    tokens = sum(objective.tokens(batch) for batch in batches)
    total = torch.zeros((), device=device)
    for number, batch in enumerate(batches, 1):
        src, tgt_in, tgt_out = context.shard(batch).to(device)
        with context.accumulating(last=number == len(batches)):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                logits = forward(src, tgt_in)
            loss = objective.loss(logits, tgt_out, label_smoothing)
            (loss / (tokens / context.size)).backward()  # gradients are averaged over the processes
        total = total + loss.detach()
    return context.sum(total), tokens


def update(
    forward: Callable[[Tensor, Tensor], Tensor],
    optimizer: AdamW,
    batches: Sequence[Batch],
    device: torch.device,
    train: TrainConfig,
    *,
    lr: float,
    precision: Precision,
    objective: Objective = SOUND,
    context: DistributedContext = SINGLE_PROCESS,
) -> tuple[Tensor, int, Tensor]:
    """One update from some batches: forward, loss, backward, clip, AdamW.

    The caller clears the gradients first. Returns the summed loss, the number of real target
    tokens, and the norm of the gradient before clipping.
    """
    loss, tokens = backward(
        forward,
        batches,
        device,
        objective=objective,
        label_smoothing=train.label_smoothing,
        precision=precision,
        context=context,
    )
    limit = train.clip_norm or math.inf
    norm = torch.nn.utils.clip_grad_norm_(optimizer.state, limit)
    optimizer.step(lr)
    return loss, tokens, norm
