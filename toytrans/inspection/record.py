"""Record what modules receive and return in one forward pass.

Attention is observed from outside by hooks. An `AttentionCall` then runs the same attention again
with its own code and weights. So tables show what a model computes, correct or not.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from toytrans.data.batches import Batch
from toytrans.errors import UserError
from toytrans.model.attention import (
    Attention,
    AttentionContext,
    AttentionSteps,
    KeysValues,
    eager_attention,
)
from toytrans.model.build import as_transformer
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer

Part = Literal["encoder", "decoder", "cross"]
PARTS: tuple[Part, ...] = get_args(Part)


class ModuleCall(NamedTuple):
    """The arguments of one call of a module, and what it returned."""

    args: tuple[Any, ...]
    output: Tensor


@contextlib.contextmanager
def recording(modules: Iterable[nn.Module]) -> Iterator[dict[nn.Module, list[ModuleCall]]]:
    """Record the calls of each module, in the order in which they happen."""
    calls: dict[nn.Module, list[ModuleCall]] = {module: [] for module in modules}

    def record(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        calls[module].append(ModuleCall(args, output))

    with contextlib.ExitStack() as hooks:
        for module in calls:
            hooks.enter_context(module.register_forward_hook(record))
        yield calls


@torch.no_grad()
def record_pass(
    model: Seq2Seq, batch: Batch, modules: Iterable[nn.Module], device: torch.device | None = None
) -> dict[nn.Module, list[ModuleCall]]:
    """Let a model read a batch, and record the calls of some of its modules.

    device: where the pass runs; None = where the model is. The model goes back there afterwards,
    and so does what was recorded, because tables are computed beside it.
    """
    home = next(model.parameters()).device
    there = batch.to(device or home)
    model.to(device or home)
    try:
        with recording(modules) as calls:
            model(there.src, there.tgt_in)
    finally:
        model.to(home)
    return {module: [_moved(call, home) for call in each] for module, each in calls.items()}


def _moved(value: Any, device: torch.device) -> Any:
    """A value with the tensors in it on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        moved = [_moved(each, device) for each in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: _moved(getattr(value, part.name), device) for part in fields(value)}
        return replace(value, **parts)
    return value


class AttentionCall(NamedTuple):
    """One call of an attention.

    x: (B, Tq, D), the input.
    memory_kv: keys and values of the encoder's output, for cross-attention.
    """

    module: Attention
    x: Tensor
    context: AttentionContext
    memory_kv: KeysValues | None = None

    @torch.no_grad()
    def intermediates(self, context: AttentionContext | None = None) -> AttentionSteps:
        """Every intermediate of a pass without dropout, optionally with another mask.

        Raises UserError if the model has diverged.
        """
        module, context = self.module, context or self.context
        q, k, v = module.queries_keys_values(self.x, context, self.memory_kv)
        bias = module.position_bias(context)
        steps = eager_attention(q, k, v, context, bias, module.cap, scale=module.scale)
        if not bool(steps.weights.isfinite().all()):
            raise UserError(
                "the attention weights are not finite, so the model has diverged; choose an "
                "earlier checkpoint, or train again with a lower train.lr"
            )
        return steps

    def unmasked(self) -> AttentionSteps:
        """Every intermediate of the same attention without a mask."""
        return self.intermediates(
            replace(self.context, mask=None, mask_bias=None, has_visible_key=None)
        )


def attentions(model: Transformer) -> dict[tuple[Part, int], Attention]:
    """Every attention of a model by part and layer; layers count from 1."""
    encoder, decoder = model.encoder_stack(), model.decoder_stack()
    modules: dict[Part, list[Attention]] = {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "cross": [layer.cross_attention for layer in decoder],
    }
    return {(part, n): each for part in PARTS for n, each in enumerate(modules[part], 1)}


def capture(
    model: Seq2Seq, batch: Batch, device: torch.device | None = None
) -> dict[tuple[Part, int], AttentionCall]:
    """Every attention call of one forward pass by part and layer. device: as of `record_pass`.

    Raises UserError for a model that is no `Transformer`.
    """
    modules = attentions(as_transformer(model))
    calls = record_pass(model, batch, modules.values(), device)
    # a shared module is called once for each of its layers
    return {at: AttentionCall(each, *calls[each].pop(0).args) for at, each in modules.items()}
