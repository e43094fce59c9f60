"""Record what modules receive and return in one forward pass.

Attention is observed from outside by hooks. An `AttentionCall` then runs the same attention again
with its own code and weights. So tables show what a model computes, correct or not.
"""

import contextlib
import inspect
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


@contextlib.contextmanager
def recording(modules: Mapping[Any, nn.Module]) -> Iterator[dict[Any, list[ModuleCall]]]:
    """Record the calls of some modules by name, in the order in which they happen."""
    calls: dict[Any, list[ModuleCall]] = {name: [] for name in modules}

    def recorder(name: Any) -> Callable[..., None]:
        return lambda *call: calls[name].append(ModuleCall(*call))

    with contextlib.ExitStack() as hooks:
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_hook(recorder(name), with_kwargs=True))
        yield calls


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
    transformer = as_transformer(model)
    with recording(attentions(transformer)) as calls:
        model(batch.src, batch.tgt_in)
    shared = transformer.config.share_layers  # then one module is called once for each layer
    return {
        (part, layer): AttentionCall.of(each[layer - 1 if shared else 0])
        for (part, layer), each in calls.items()
    }


def distance(a: Tensor, b: Tensor | float) -> float:
    """The largest absolute difference, computed in fp64."""
    other = b.double() if isinstance(b, Tensor) else b
    return float((a.double() - other).abs().max())
