"""One update: summed loss / real tokens -> backward -> clip -> AdamW. Its objective, its rate."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.adamw import adamw

from toytrans.config.schema import TrainConfig
from toytrans.data.batches import Batch
from toytrans.tokens import PAD_ID
from toytrans.training.devices import Precision
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext


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


FLOOR = 0.02
"""Linear and cosine decay end at this share of the peak."""


class AdamW:
    """AdamW (Loshchilov and Hutter 2019) with betas 0.9 and 0.98, as in Vaswani et al. 2017.

    Weight decay applies to matrices only, not to biases, norms and parameters of positions. The
    update is torch's function `adamw`. Torch's own class imports a compiler first, which takes most
    of a second.

    state: by parameter: "step", and "exp_avg" and "exp_avg_sq" of the parameter's shape.
    """

    def __init__(self, model: nn.Module, weight_decay: float) -> None:
        decayed, others = list[nn.Parameter](), list[nn.Parameter]()
        for name, parameter in model.named_parameters():
            decays = parameter.dim() > 1 and "bias" not in name and "positions" not in name
            (decayed if decays else others).append(parameter)
        self.groups = (decayed, weight_decay), (others, 0.0)
        device = next(model.parameters()).device
        self.fused = device.type in ("cpu", "cuda")
        counting = device if self.fused else "cpu"  # unfused kernels read the count on the host
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {
            parameter: {
                "step": torch.zeros((), device=counting),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            for parameter in model.parameters()
        }

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.state:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float | Tensor) -> None:
        """Update every parameter that has a gradient. lr: a scalar on the device is not read by
        the host."""
        for parameters, decay in self.groups:
            moved = [parameter for parameter in parameters if parameter.grad is not None]
            states = [self.state[parameter] for parameter in moved]
            adamw(
                moved,  # type: ignore[arg-type]
                [parameter.grad for parameter in moved if parameter.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=self.fused,
                capturable=isinstance(lr, Tensor),
                amsgrad=False,
                beta1=0.9,
                beta2=0.98,
                lr=lr,
                weight_decay=decay,
                eps=1e-8,
                maximize=False,
            )


def learning_rate(step: int, train: TrainConfig) -> float:
    """The learning rate of step 1, 2, ...: linear warm-up to lr, then the schedule.

    inverse_sqrt: lr sqrt(warmup / step).
    linear, cosine: fall to 2% of lr at max_steps.
    """
    warmup = train.warmup_steps or 0
    if step <= warmup:
        return train.lr * step / warmup
    if train.schedule == "constant":
        return train.lr
    if train.schedule == "inverse_sqrt":
        return train.lr * math.sqrt(max(warmup, 1) / step)
    done = min(1.0, (step - warmup) / max(1, train.max_steps - warmup))
    left = 1 - done if train.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return train.lr * (FLOOR + (1 - FLOOR) * left)


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
