"""A forward pass with bf16 weights, whose masters are fp32 (Micikevicius et al. 2018, section 3.1).

    fp32 weights -> bf16 copies -> forward, backward -> bf16 gradients -> fp32 gradients

All weights are rounded once a pass; autocast rounds them wherever they are used. The model keeps
its fp32 weights, and everyone but the pass sees these: AdamW, checkpoints, evaluation.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from toytrans.model.positions.relative import Relative
from toytrans.model.transformer import Transformer


class Bf16Weights(nn.Module):
    """A model that computes with bf16 copies of its weights.

    What position schemes learn for biases stays fp32: scores are fp32 where it is added.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        biases = {
            parameter
            for module in model.modules()
            for name, parameter in module.named_parameters()
            if isinstance(module, Relative) or name == "bias_table"
        }
        self.weights = [p for p in model.parameters() if p not in biases]
        number = {weight: place for place, weight in enumerate(self.weights)}
        self.places = [  # where the model has each of them; a tied weight has several
            (module, name, number[parameter])
            for module in model.modules()
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if parameter in number
        ]

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """(B, S), (B, T) -> logits (B, T, V), bf16."""
        self._put(_Rounded.apply(*self.weights))  # type: ignore[no-untyped-call]
        try:
            logits: Tensor = self.model(src, tgt_in)
        finally:
            self._put(self.weights)
        return logits

    def _put(self, weights: Sequence[Tensor]) -> None:
        values: Sequence[Any] = weights  # for a moment no parameters
        for module, name, number in self.places:
            module._parameters[name] = values[number]


class _Rounded(torch.autograd.Function):
    """fp32 tensors -> bf16 copies, all at once; and their gradients the other way."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # a weight that a pass leaves out has none
        return tuple(_copies(weights, torch.bfloat16))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        copies = iter(_copies([g for g in gradients if g is not None], torch.float32))
        return tuple(None if g is None else next(copies) for g in gradients)


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies
