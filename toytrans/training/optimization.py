"""What training minimises, and how a step moves the weights.

The loss is cross entropy in nats, summed over the real target tokens of a step, then divided once
by their number. A fault may change what a batch holds, how its losses are summed, or what they are
divided by: each is a method of `Objective`. AdamW turns the gradient into a step.
"""

from pkgutil import resolve_name

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.adamw import adamw

from toytrans.config.faults import FAULTS, decoded_fault
from toytrans.config.schema import TrainConfig
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
    name = decoded_fault(fault)
    if name is None:
        return Objective()
    objective: Objective = resolve_name(FAULTS[name])()
    return objective


class AdamW:
    """AdamW (Loshchilov and Hutter 2019), by default with the betas of Vaswani et al. 2017.

    Weight decay applies to matrices only, not to biases, norms and parameters of positions. The
    update is torch's function `adamw`, because torch's own class first imports a compiler, which
    takes most of a second.

    state: what the update remembers of each parameter: "step", a scalar, and "exp_avg" and
        "exp_avg_sq", the running means of its gradient and of that squared, of its shape.
    """

    def __init__(self, model: nn.Module, train: TrainConfig) -> None:
        self.parameters = list(model.parameters())
        decayed, others = list[nn.Parameter](), list[nn.Parameter]()
        for name, parameter in model.named_parameters():
            is_decayed = parameter.dim() > 1 and "bias" not in name and "positions" not in name
            (decayed if is_decayed else others).append(parameter)
        self.groups = (decayed, train.weight_decay), (others, 0.0)
        self.betas, self.eps = train.betas, train.eps
        device = self.parameters[0].device
        self.fused = device.type in ("cpu", "cuda")
        counting = device if self.fused else "cpu"  # unfused kernels read the count on the host
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {
            parameter: {
                "step": torch.zeros((), device=counting),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            for parameter in self.parameters
        }

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float | Tensor) -> None:
        """Update every parameter that has a gradient.

        lr: a number, or a scalar on the device, which the host does not read.
        """
        for parameters, decay in self.groups:
            moved = [parameter for parameter in parameters if parameter.grad is not None]
            states = [self.state[parameter] for parameter in moved]
            adamw(
                moved,  # type: ignore[arg-type]
                [parameter.grad for parameter in moved if parameter.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                max_exp_avg_sqs=[],  # those of AMSGrad alone
                state_steps=[state["step"] for state in states],
                fused=self.fused,
                capturable=isinstance(lr, Tensor),
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=lr,
                weight_decay=decay,
                eps=self.eps,
                maximize=False,
            )
