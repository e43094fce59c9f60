"""Record what modules receive and return in one forward pass.

Attention is observed from outside by hooks. An `AttentionCall` then runs the same attention again
with its own code and weights, so tables show what a model computes, whether it is correct or not.
"""

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from toytrans.data.batches import Batch
from toytrans.model.attention import Attention, Intermediates, eager_attention, merge_heads
from toytrans.model.build import as_transformer
from toytrans.model.context import AttentionContext
from toytrans.model.kv_cache import KeysValues
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer

Part = Literal["encoder", "decoder", "cross"]
PARTS: tuple[Part, ...] = get_args(Part)


class ModuleCall(NamedTuple):
    """The arguments of one call of a module, and what it returned."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor


def intermediates(
    module: Attention, x: Tensor, context: AttentionContext, memory_kv: KeysValues | None = None
) -> tuple[Intermediates, Tensor]:
    """Every intermediate, and the output (B, Tq, D), of a pass without dropout.

    x, context, memory_kv: what `Attention.forward` takes.
    """
    q, k, v = module.queries_keys_values(x, memory_kv)
    steps = eager_attention(
        q, k, v, context, module.score_bias(context), module.cap, scale=module.scale
    )
    return steps, module.out_proj(merge_heads(steps.outputs))


def named(steps: Intermediates) -> dict[str, Tensor]:
    """Intermediates as tables and JSON name them, who call the outputs context."""
    tensors = steps._asdict()
    tensors["context"] = tensors.pop("outputs")
    return tensors


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention.

    x: (B, Tq, D), the input.
    memory_kv: keys and values of the encoder's output, for cross-attention.
    output: (B, Tq, D), what the attention returned.
    """

    module: Attention
    x: Tensor
    context: AttentionContext
    memory_kv: KeysValues | None
    output: Tensor

    @staticmethod
    def of(call: ModuleCall) -> "AttentionCall":
        assert isinstance(call.module, Attention)
        bound = inspect.signature(Attention.forward).bind(call.module, *call.args, **call.kwargs)
        given = bound.arguments
        return AttentionCall(
            call.module, given["x"], given["context"], given.get("memory_kv"), call.output
        )

    def run(self, context: AttentionContext | None = None) -> tuple[Intermediates, Tensor]:
        """Every intermediate, and the output, optionally with another mask."""
        with torch.no_grad():
            return intermediates(self.module, self.x, context or self.context, self.memory_kv)

    def intermediates(self, context: AttentionContext | None = None) -> Intermediates:
        """Every intermediate, optionally with another mask."""
        return self.run(context)[0]

    def unmasked(self) -> Intermediates:
        """Every intermediate of the same attention without a mask."""
        return self.intermediates(
            replace(self.context, mask=None, additive=None, has_visible_key=None)
        )


@contextlib.contextmanager
def recording(
    modules: Mapping[Any, nn.Module], rewrite: Callable[[ModuleCall], Tensor | None] | None = None
) -> Iterator[dict[Any, list[ModuleCall]]]:
    """Record the calls of some modules by name, in the order in which they happen.

    rewrite: may return another output, with which the forward pass goes on.
    """
    calls: dict[Any, list[ModuleCall]] = {name: [] for name in modules}

    def recorder(name: Any) -> Callable[..., Tensor | None]:
        def record(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
            call = ModuleCall(module, args, kwargs, output)
            calls[name].append(call)
            return rewrite(call) if rewrite else None

        return record

    hooks = [
        module.register_forward_hook(recorder(name), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def attentions(model: Transformer) -> dict[tuple[Part, int], Attention]:
    """Every attention of a model by part and layer; layers count from 1."""
    encoder, decoder = model.encoder_stack(), model.decoder_stack()
    modules: dict[Part, list[Attention]] = {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "cross": [layer.cross_attention for layer in decoder],
    }
    return {(part, n): each for part in PARTS for n, each in enumerate(modules[part], 1)}


@torch.no_grad()
def capture(model: Seq2Seq, batch: Batch) -> dict[tuple[Part, int], AttentionCall]:
    """Every attention call of one forward pass by part and layer. Raises UserError."""
    modules = attentions(as_transformer(model))
    with recording(modules) as calls:
        model(batch.src, batch.tgt_in)
    turn: Counter[Attention] = Counter()  # a module shared by n layers is called n times
    captured = {}
    for name, module in modules.items():
        captured[name] = AttentionCall.of(calls[name][turn[module]])
        turn[module] += 1
    return captured


class HeadSplit(NamedTuple):
    """A projection on its way into heads.

    projected: (B, L, parts D), where the parts are some of query, key and value.
    parted: (B, L, parts, H, Dh), a view of projected.
    transposed: (parts, B, H, L, Dh), a view of projected.
    pieces: transposed, copied into contiguous memory.
    """

    projected: Tensor
    parted: Tensor
    transposed: Tensor
    pieces: Tensor


def split_heads(projected: Tensor, parts: int, n_heads: int) -> HeadSplit:
    """Split a projection (B, L, parts D) into heads."""
    rows, length, width = projected.shape
    parted = projected.view(rows, length, parts, n_heads, width // parts // n_heads)
    transposed = parted.permute(2, 0, 3, 1, 4)
    return HeadSplit(projected, parted, transposed, transposed.contiguous())
