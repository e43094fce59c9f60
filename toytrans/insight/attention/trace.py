"""Every tensor inside one attention and the layer around it, and how tensors are shown.

All come from one pass of the model: hooks keep what its modules got and gave. In that pass the
attention that is looked at takes the road that shows every step, `Attention.inside`, and what
comes out of it goes on into the layer; so each number shown is one that the next was made from.
"""

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from toytrans.errors import UserError
from toytrans.insight.tables import ATTENTIONS, Panel, Pass, View, numbers, shape_of
from toytrans.model.attention import Attention, Inside
from toytrans.model.layers import DecoderLayer, EncoderLayer, Residual
from toytrans.model.transformer import Transformer

Part = Literal["encoder", "decoder", "cross"]
NAMES: dict[Part, str] = {"encoder": "encoder_self", "decoder": "decoder_self", "cross": "cross"}
SUBLAYERS: dict[Part, tuple[str, ...]] = {
    "encoder": ("attention", "feed_forward"),
    "decoder": ("attention", "cross", "feed_forward"),
    "cross": ("self", "attention", "feed_forward"),
}
"""What stands in a layer; the attention that is looked at is called just that."""

FEATURES, PLACES = 8, 12
"""Columns of features, and rows or columns of places, that are shown of a wide tensor."""


class Call(NamedTuple):
    """What a module got and gave; of an attention also what is inside, and its quick output."""

    given: Any
    output: Tensor
    inside: Inside | None = None
    quick: Tensor | None = None


@dataclass(frozen=True)
class Trace:
    """One layer of a model during one pass, and the attention looked at.

    tensors: all that was met, in its order. quick: the largest difference from what the attention
    gives on the road that training takes.
    """

    view: View
    part: Part
    layer: int
    tensors: dict[str, Tensor]
    one: Pass
    module: EncoderLayer | DecoderLayer
    quick: float

    @property
    def name(self) -> str:
        """One of ATTENTIONS."""
        return NAMES[self.part]

    @property
    def residuals(self) -> dict[str, Residual]:
        """Of the sub-layers, by their names."""
        return _residuals(self.module, self.part)

    @property
    def title(self) -> str:
        return f"{ATTENTIONS[self.name].lower()}, layer {self.layer}, {self.view.weights}"

    @property
    def pre(self) -> bool:
        return self.view.model.config.norm == "pre"


def trace(view: View, part: Part, layer: int) -> Trace:
    """Run the model on the batch and keep what one layer does. Raises UserError for a layer that
    there is not."""
    model = view.model
    module = _layer(model, part, layer)
    watched = _watched(model, part, module)
    attention = watched["attention"]
    assert isinstance(attention, Attention)
    with _recording(watched, attention) as calls, torch.no_grad():
        model(view.batch.src, view.batch.tgt_in)
    # layers that are shared run once for each place in the stack, and so do their parts
    turn = layer - 1 if model.config.share_layers else 0
    embedded = 0 if part == "encoder" else -1  # tables may be shared; the source comes first
    turns = {"embedding": embedded, "embedded": embedded, "memory": -1}
    met = {name: found[turns.get(name, turn)] for name, found in calls.items() if found}
    call = met["attention"]
    assert call.inside is not None
    if not bool(call.inside.steps.weights.isfinite().all()):
        raise UserError(
            f"{view.weights}: the attention weights of {part}, layer {layer}, are not finite; "
            "take a checkpoint from before training diverged"
        )
    tensors = dict(_tensors(view, part, met))
    assert call.quick is not None
    one = Pass(attention, call.given["x"], call.given["sight"], call.given.get("memory"))
    return Trace(view, part, layer, tensors, one, module, distance(call.output, call.quick))


def _residuals(layer: EncoderLayer | DecoderLayer, part: Part) -> dict[str, Residual]:
    return dict(zip(SUBLAYERS[part], cast(list[Residual], layer.residuals), strict=True))


def _layer(model: Transformer, part: Part, layer: int) -> EncoderLayer | DecoderLayer:
    side = "encoder" if part == "encoder" else "decoder"
    stack = model.encoder_stack() if side == "encoder" else model.decoder_stack()
    if not 1 <= layer <= len(stack):
        count = f"layers 1 to {len(stack)}" if len(stack) > 1 else "layer 1 alone"
        raise UserError(f"--layer {layer}: this {side} has {count}; name one of them")
    return stack[layer - 1]


def _watched(
    model: Transformer, part: Part, layer: EncoderLayer | DecoderLayer
) -> dict[str, nn.Module]:
    """The modules whose calls are kept."""
    found: dict[str, nn.Module] = {
        "embedding": model.src_embedding if part == "encoder" else model.tgt_embedding,
        "embedded": model.drop,
        "memory": model.encoder_norm,
        "layer": layer,
        "attention": layer.self_attention,
        "feed_forward": layer.feed_forward,
    }
    if isinstance(layer, DecoderLayer):
        if part == "cross":
            found |= {"self": layer.self_attention, "attention": layer.cross_attention}
        else:
            found["cross"] = layer.cross_attention
    for name, residual in _residuals(layer, part).items():
        found |= {f"{name}_residual": residual, f"{name}_norm": residual.norm}
    return found | {f"feed_forward_{k}": x for k, x in layer.feed_forward.named_children()}


@contextlib.contextmanager
def _recording(
    modules: dict[str, nn.Module], attention: Attention
) -> Iterator[dict[str, list[Call]]]:
    """Keep what these modules get and give; one attention shows all its steps."""
    calls: dict[str, list[Call]] = {name: [] for name in modules}

    def keep(name: str, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Any:
        if module is not attention:
            calls[name].append(Call(args, output))
            return None
        given = inspect.signature(Attention.forward).bind(module, *args, **kwargs).arguments
        inside = attention.inside(given["x"], given["sight"], given.get("memory"))
        calls[name].append(Call(given, inside.output, inside, output))
        return inside.output

    def hooked(name: str, module: nn.Module) -> Any:
        return module.register_forward_hook(lambda *met: keep(name, *met), with_kwargs=True)

    hooks = [hooked(name, module) for name, module in modules.items()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(view: View, part: Part, met: dict[str, Call]) -> Iterator[tuple[str, Tensor]]:
    """From the ids to what the layer gives."""
    pre = view.model.config.norm == "pre"
    ids, key_ids = view.ids(NAMES[part])
    yield "ids", ids
    yield "embedding", met["embedding"].output
    yield "embedded", met["embedded"].output
    yield "layer_input", met["layer"].given[0]
    for name in SUBLAYERS[part]:
        norm = met[f"{name}_norm"]
        if pre:
            yield f"{name}_normed", norm.output
        if name == "attention":
            if part == "cross":
                yield "memory_ids", key_ids
                yield "memory", met["memory"].output
            yield from _inside(met["attention"], met["memory"].output)
        elif name == "feed_forward" and "feed_forward_1" in met:
            yield "feed_forward_hidden", met["feed_forward_0"].output
            yield "feed_forward_active", met["feed_forward_1"].output
        yield f"{name}_output", met[name].output
        yield f"{name}_sum", met[f"{name}_residual"].output if pre else norm.given[0]
        if not pre:
            yield f"{name}_normed", norm.output
    yield "layer_output", met["layer"].output


def _inside(call: Call, memory: Tensor) -> Iterator[tuple[str, Tensor]]:
    """One attention, from the projection to its heads side by side."""
    assert call.inside is not None
    given, steps = call.given, call.inside.steps
    module, sight = given["self"], given["sight"]
    yield from call.inside.heads._asdict().items()
    if given.get("memory") is not None:
        with torch.no_grad():
            heads = module.heads(memory, 1, 3)
        k, v = heads.pieces.unbind()
        assert torch.equal(k, steps.k) and torch.equal(v, steps.v)
        yield from ((f"memory_{name}", tensor) for name, tensor in heads._asdict().items())
        steps = steps._replace(k=k, v=v)
    for name, tensor in steps._asdict().items():
        if name == "masked":  # what was added
            added = {"bias": module.bias(sight), "mask": sight.mask}
            yield from ((each, x.detach()) for each, x in added.items() if x is not None)
        yield name, tensor
    yield "context_transposed", steps.context.transpose(1, 2)
    yield "merged", call.inside.merged


# How tensors are shown -----------------------------------------------------------------------


@dataclass(frozen=True)
class Sheet:
    """What was found: panels to read, the tensors by name, and further facts as plain data."""

    panels: list[Panel]
    tensors: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict)

    def and_then(self, other: "Sheet") -> "Sheet":
        """Both."""
        tensors, facts = self.tensors | other.tensors, self.facts | other.facts
        return Sheet([*self.panels, *other.panels], tensors, facts)

    def document(self) -> dict[str, Any]:
        """Plain values: the facts, then every tensor in full."""
        return self.facts | {
            "tensors": [
                {
                    "name": name,
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": list(tensor.shape),
                    "strides": list(tensor.stride()),
                    "contiguous": tensor.is_contiguous(),
                    "values": tensor.tolist(),
                }
                for name, tensor in self.tensors.items()
            ]
        }


def label(name: str) -> str:
    """The name of a tensor as words."""
    return name.replace("_", " ")


def layout(number: str, name: str, tensors: dict[str, Tensor], *notes: str) -> Panel:
    """How each tensor lies in memory, and which of those before it has the same memory."""
    owners: dict[int, str] = {}
    rows = []
    for key, tensor in tensors.items():
        owner = owners.setdefault(tensor.untyped_storage().data_ptr(), key)
        cells = [
            " ".join(map(str, tensor.shape)),
            " ".join(map(str, tensor.stride())),
            "yes" if tensor.is_contiguous() else "no",
            "its own" if owner == key else label(owner),
        ]
        rows.append((label(key), cells))
    return Panel(
        number,
        name,
        ["shape", "strides", "contiguous", "memory"],
        rows,
        legend="strides: how many numbers on in memory the next one along each axis lies",
        notes=notes,
    )


def memory_panels(tensors: dict[str, Tensor], step: int, title: str) -> Iterator[Panel]:
    """How the tensors lie in memory, and what transposing does to a view."""
    yield layout(str(step), f"In memory: {title}", tensors)
    before, after = tensors["transposed"], tensors["context_transposed"]
    *outer, length, width = before.shape
    yield Panel(
        str(step + 1),
        "Into heads and back",
        [],
        [],
        notes=(
            "To transpose changes strides, not memory: transposed is projected in another order, "
            "context transposed is context in another order.",
            attempt("transposed", before, *outer, length * width),
            _copied("pieces", tensors["pieces"], before, "; q is its first part, turned if rotary"),
            attempt("context_transposed", after, *tensors["merged"].shape),
            _copied("merged", tensors["merged"], after, ": contiguous() and view, or flatten"),
        ),
    )


def _copied(name: str, tensor: Tensor, source: Tensor, how: str) -> str:
    """Whether a tensor is a copy of what it was made from, or the same memory."""
    if tensor.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
        return f"Here {name} is the same memory, since one head or part leaves nothing to reorder."
    return f"So {name} is a copy in one piece{how}."


def matrix(
    number: str,
    name: str,
    values: Tensor,
    rows: list[str],
    columns: list[str] | None = None,
    *notes: str,
    ends: dict[str, Tensor] | None = None,
    digits: int = 2,
    first: int = 0,
) -> Panel:
    """Numbers (rows, columns); what is too much is left out and counted.

    columns: their names, or None for features, of which some from `first` on are shown. ends:
    further numbers of each whole row, which stand behind a bar.
    """
    height, width = values.shape
    shown = FEATURES if columns is None else PLACES
    columns = columns or [f"d{k + 1}" for k in range(width)]
    window = slice(first, first + shown)
    cells = [numbers(line, digits) for line in values[:PLACES, window]]
    bars: list[str] = []
    for end, each in (ends or {}).items():
        texts = [end, *numbers(each[:PLACES], digits)]
        wide = max(map(len, texts))
        for line, text in zip((bars, *cells), texts, strict=True):
            line.append(f"| {text:>{wide}}")
    left_out = [
        f"{count} more {thing}{'' if count == 1 else 's'}"
        for count, thing in ((height - len(cells), "row"), (width - len(columns[window]), "column"))
        if count
    ]
    return Panel(
        number,
        name,
        [*columns[window], *bars],
        list(zip(rows[:PLACES], cells, strict=True)),
        shape=", ".join([shape_of(values.shape), *left_out]),
        notes=notes,
    )


def attempt(words: str, tensor: Tensor, *shape: int) -> str:
    """Take a view, and say what came of it: torch's own words where it fails."""
    call = f"{words}.view{shape_of(shape)}"
    try:
        tensor.view(*shape)
    except RuntimeError as error:
        return f"{call} fails: {str(error).splitlines()[0]}"
    return f"{call} works: at these sizes nothing has to move."


def distance(a: Tensor, b: Tensor | float) -> float:
    """The largest difference between two tensors, computed in fp64."""
    other = b.double() if isinstance(b, Tensor) else b
    return float((a.double() - other).abs().max())


def rounding(difference: float, size: float, dtype: torch.dtype) -> str:
    """What a difference between numbers as large as `size` is: none, rounding, or real."""
    if difference == 0:
        return "exact"
    # sums of a few hundred products lose a few dozen times the smallest step
    return "rounding" if difference <= 100 * torch.finfo(dtype).eps * max(size, 1) else "NOT EQUAL"


def tiny(value: float) -> str:
    """A difference as text; "0" is a true zero."""
    return f"{value:.1e}" if value else "0"
