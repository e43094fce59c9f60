"""The optimiser: AdamW over the parameters of a model."""

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw


class AdamW:
    """AdamW (Loshchilov and Hutter 2019) with betas 0.9 and 0.98, as in Vaswani et al. 2017.

    Weight decay applies to matrices only, not to biases, norms and parameters of positions. The
    update is torch's function `adamw`, because torch's own class first imports a compiler, which
    takes most of a second.

    state: what the update remembers of each parameter: "step", a scalar, and "exp_avg" and
        "exp_avg_sq", the running means of its gradient and of that squared, of its shape.
    """

    def __init__(self, model: nn.Module, weight_decay: float) -> None:
        self.parameters = list(model.parameters())
        decayed, others = list[nn.Parameter](), list[nn.Parameter]()
        for name, parameter in model.named_parameters():
            is_decayed = parameter.dim() > 1 and "bias" not in name and "positions" not in name
            (decayed if is_decayed else others).append(parameter)
        self.groups = (decayed, weight_decay), (others, 0.0)
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
                beta1=0.9,
                beta2=0.98,
                lr=lr,
                weight_decay=decay,
                eps=1e-8,
                maximize=False,
            )
