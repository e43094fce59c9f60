"""Compare every gradient of the manual backward pass with autograd's, in fp64.

Sizes are distinct primes, so that swapped axes cannot pass. Masks have pads and a query without a
visible key.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.config.names import Backward
from toytrans.config.schema import ModelConfig
from toytrans.model.attention import Attention, eager_attention
from toytrans.model.build import build
from toytrans.model.context import AttentionContext
from toytrans.model.manual_backward import functions
from toytrans.model.manual_backward.layers import cross_entropy
from toytrans.model.masks import MaskMaker
from toytrans.model.positions.rotary import apply_rotary
from toytrans.tokens import PAD_ID, Vocabulary

TOLERANCE = 1e-10

B, TQ, TK, H, DH = 2, 7, 5, 3, 11
"""Rows, queries, keys, heads and the width of one head."""

IN, OUT, V = 13, 17, 19
"""Widths into and out of a linear layer, and ids."""

OUTPUT = "(output)"


class Comparison(NamedTuple):
    """The largest difference between two gradients.

    of: the input whose gradient is compared, or OUTPUT for the output of the forward pass.
    relative: the difference divided by autograd's largest number.
    """

    operation: str
    of: str
    shape: tuple[int, ...]
    absolute: float
    relative: float

    @property
    def passed(self) -> bool:
        """Whether both differences are below TOLERANCE; NaN fails."""
        return self.absolute < TOLERANCE and self.relative < TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        return self._asdict() | {"shape": list(self.shape), "passed": self.passed}


Pair = tuple[Callable[..., Any], Callable[..., Any]]
"""An operation of `functions` and its backward function."""


class GradientCase(NamedTuple):
    """One operation on one set of numbers.

    pair: the manual forward and backward functions.
    theirs: the same operation in torch.
    inputs: the first arguments of both, by name; they have gradients.
    settings: the remaining arguments.
    """

    operation: str
    pair: Pair
    theirs: Callable[..., Tensor]
    inputs: dict[str, Tensor]
    settings: Sequence[Any] = ()


def compare(seeds: int, follow: Callable[[str], None] = lambda _: None) -> list[Comparison]:
    """Compare every operation; the worst result of seeds 0 .. seeds - 1.

    follow: called before each seed.
    """
    runs = []
    for seed in range(seeds):
        follow(f"seed {seed + 1} of {seeds}")
        runs.append(list(_compare_seed(seed)))
    return [_worst(same) for same in zip(*runs, strict=True)]


def compare_case(case: GradientCase, draw: torch.Generator) -> Iterator[Comparison]:
    """Compare the output, and each input's gradient for a random gradient of the output."""
    forward, backward = case.pair
    inputs = list(case.inputs.values())
    with torch.no_grad():
        output, needed = forward(*inputs, *case.settings)
        gradient = torch.randn(output.shape, dtype=output.dtype, generator=draw)
        ours = backward(gradient, needed)
    given = [each.detach().requires_grad_() for each in inputs]
    expected = case.theirs(*given, *case.settings)
    theirs = torch.autograd.grad(expected, given, gradient)
    names = (OUTPUT, *case.inputs)
    for name, one, other in zip(names, (output, *ours), (expected, *theirs), strict=True):
        assert one.shape == other.shape, (case.operation, name, one.shape, other.shape)
        shape = tuple(other.shape)
        yield Comparison(case.operation, name, shape, *difference(one, other.detach()))


def difference(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """The largest absolute difference, and the same divided by the largest of theirs."""
    largest = (ours - theirs).abs().max()
    return float(largest), float(largest / theirs.abs().max())


def _compare_seed(seed: int) -> Iterator[Comparison]:
    draw = torch.Generator().manual_seed(seed)
    for case in (*layers(draw), *attentions(draw), *losses(draw)):
        yield from compare_case(case, draw)
    yield from _whole_model(seed)


def _worst(same: Sequence[Comparison]) -> Comparison:
    numbers = torch.tensor([[each.absolute, each.relative] for each in same], dtype=torch.float64)
    absolute, relative = numbers.amax(0).tolist()  # NaN, if there is one
    return same[0]._replace(absolute=absolute, relative=relative)


def layers(draw: torch.Generator) -> Iterator[GradientCase]:
    """Operations on each place alone."""
    numbers = _numbers(draw)
    x = {"x": numbers(B, TQ, IN)}
    dense = {"weight": numbers(OUT, IN), "bias": numbers(OUT)}
    yield GradientCase("linear", (functions.linear, functions.linear_backward), F.linear, x | dense)
    norm: Pair = functions.layer_norm, functions.layer_norm_backward
    scales = {"weight": numbers(IN), "bias": numbers(IN)}
    yield GradientCase("LayerNorm", norm, _torchs_norm, x | scales, (1e-5,))
    small = {"x": 1e-3 * x["x"]}  # so that epsilon, not the variance, decides
    yield GradientCase("LayerNorm, small x", norm, _torchs_norm, small | scales, (1e-5,))
    yield GradientCase("ReLU", (functions.relu, functions.relu_backward), F.relu, x)
    yield GradientCase("GELU", (functions.gelu, functions.gelu_backward), F.gelu, x)
    tanh: Pair = functions.gelu_tanh, functions.gelu_tanh_backward
    yield GradientCase("GELU, tanh form", tanh, partial(F.gelu, approximate="tanh"), x)
    yield GradientCase(
        "softmax", (functions.softmax, functions.softmax_backward), partial(F.softmax, dim=-1), x
    )
    angle = numbers(TQ, H)
    spun: Pair = functions.rotary, functions.rotary_backward
    pairs = {"x": numbers(B, TQ, 2 * H)}
    yield GradientCase("rotary", spun, apply_rotary, pairs, (angle.cos(), angle.sin()))
    table, ids = {"table": numbers(V, IN)}, torch.randint(V, (B, TQ), generator=draw)
    rows: Pair = functions.embedding, functions.embedding_backward
    yield GradientCase("embedding", rows, lambda table, ids: F.embedding(ids, table), table, (ids,))
    keep = (torch.rand(B, TQ, IN, generator=draw) < 0.7) / 0.7
    drop: Pair = functions.dropout, functions.dropout_backward
    yield GradientCase("dropout", drop, torch.mul, x, (keep,))


def attentions(draw: torch.Generator) -> Iterator[GradientCase]:
    """Attention, with pads and a query without a visible key."""
    numbers = _numbers(draw)
    src, tgt = ids_with_pads(TK, draw), ids_with_pads(TQ, draw)
    maker = MaskMaker("keys_and_queries")  # so pad queries see nothing
    cross = AttentionContext.of(maker.cross(src, tgt), None, torch.float64)
    assert cross.has_visible_key is not None
    pair: Pair = functions.attention, functions.attention_backward
    inputs = {"q": numbers(B, H, TQ, DH), "k": numbers(B, H, TK, DH), "v": numbers(B, H, TK, DH)}
    inputs["bias"] = numbers(1, H, TQ, TK)
    seen = cross.additive, cross.has_visible_key
    yield GradientCase("attention", pair, _torchs_attention, inputs, seen)
    keep = (torch.rand(B, H, TQ, TK, generator=draw) < 0.7) / 0.7
    yield GradientCase("capped, dropped out", pair, _step_by_step, inputs, (*seen, keep, 0.5, 2.0))


def losses(draw: torch.Generator) -> Iterator[GradientCase]:
    """Cross entropy of each place, ignoring pads."""
    pair: Pair = functions.cross_entropy, functions.cross_entropy_backward
    labels = ids_with_pads(TQ, draw).flatten()
    logits = {"logits": 3 * _numbers(draw)(B * TQ, V)}
    for name, smoothing in (("cross entropy", 0.0), ("cross entropy, smoothed", 0.1)):
        yield GradientCase(name, pair, _torchs_cross_entropy, logits, (labels, PAD_ID, smoothing))


def ids_with_pads(length: int, draw: torch.Generator) -> Tensor:
    """Ids (B, length): the first row full, the second with at least one pad."""
    ids = torch.randint(1, V, (B, length), generator=draw)
    real = int(torch.randint(1, length, (), generator=draw))
    ids[1, real:] = PAD_ID
    return ids


def _numbers(draw: torch.Generator) -> Callable[..., Tensor]:
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=draw)


def _torchs_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, epsilon)


def _torchs_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, additive: Tensor, has_visible_key: Tensor
) -> Tensor:
    """Torch's attention; queries without a visible key then become zero."""
    outputs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias + additive)
    return outputs.where(has_visible_key, 0)


def _step_by_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    additive: Tensor,
    has_visible_key: Tensor,
    keep: Tensor,
    scale: float,
    cap: float,
) -> Tensor:
    """The steps one by one, since torch's attention has no cap."""
    scores = cap * torch.tanh(torch.einsum("bhqd,bhkd->bhqk", q, k) * scale / cap)
    weights = F.softmax(scores + bias + additive, -1).where(has_visible_key, 0) * keep
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def _torchs_cross_entropy(logits: Tensor, labels: Tensor, ignored: int, smoothing: float) -> Tensor:
    return F.cross_entropy(
        logits, labels, ignore_index=ignored, reduction="none", label_smoothing=smoothing
    )


def _whole_model(seed: int) -> Iterator[Comparison]:
    """Loss and gradients of a small transformer, manually and by autograd."""
    draw = torch.Generator().manual_seed(seed)
    src, tgt_in, tgt_out = (ids_with_pads(length, draw) for length in (TK, TQ, TQ))
    results = []
    losses: dict[Backward, Callable[..., Tensor]] = {
        "by_hand": cross_entropy,
        "autograd": F.cross_entropy,
    }
    for backward, cross_entropy_of in losses.items():
        config = ModelConfig(
            d_model=H * DH,
            n_heads=H,
            n_encoder_layers=1,
            d_ff=37,
            positions="anchored",
            norm="pre",
            backward=backward,
        )
        model = build(config, Vocabulary(tuple(map(str, range(V - 3))))).double()
        if backward == "autograd":
            _leave_to_autograd(model)
        _shake(model, torch.Generator().manual_seed(seed))
        logits, labels = model(src, tgt_in).flatten(0, 1), tgt_out.flatten()
        settings = {"ignore_index": PAD_ID, "reduction": "sum", "label_smoothing": 0.1}
        loss = cross_entropy_of(logits, labels, **settings)
        results.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    (loss, ours), (expected, theirs) = results
    yield Comparison("whole model", OUTPUT, (), *difference(loss.detach(), expected.detach()))
    pairs = [difference(*pair) for pair in zip(ours, theirs, strict=True)]
    absolute, relative = torch.tensor(pairs, dtype=torch.float64).amax(0).tolist()
    total = sum(gradient.numel() for gradient in theirs)
    yield Comparison("whole model", f"{len(theirs)} parameters", (total,), absolute, relative)


def _leave_to_autograd(model: nn.Module) -> None:
    """Also the attention that the CPU backend differentiates manually."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.__class__ = _Explicit


class _Explicit(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        bias = self.score_bias(context)
        return eager_attention(q, k, v, context, bias, self.cap, scale=self.scale).outputs


@torch.no_grad()
def _shake(model: nn.Module, draw: torch.Generator) -> None:
    """Make weights normal, and move norms and biases away from 1 and 0."""
    for parameter in model.parameters():
        spread = parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.1
        base = parameter if parameter.dim() == 1 else torch.zeros_like(parameter)
        noise = torch.randn(parameter.shape, dtype=parameter.dtype, generator=draw)
        parameter.copy_(base + spread * noise)
