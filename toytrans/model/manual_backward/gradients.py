"""Compare every gradient of the manual backward pass with autograd's, in fp64, and train on both.

`compare` asks each operation alone, and a whole model once. Sizes are distinct primes, so that
swapped axes cannot pass; masks have pads and a query without a visible key. `train_twice` trains
one model on autograd's gradients and its twin on the derived ones.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.config.schema import ModelSettings
from toytrans.model.attention import AttentionContext
from toytrans.model.manual_backward import functions
from toytrans.model.manual_backward.layers import cross_entropy, use_manual_backward
from toytrans.model.masks import MaskMaker
from toytrans.model.positions.rotary import apply_rotary
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID, Vocabulary

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


class Case(NamedTuple):
    """One operation on one set of numbers.

    name: of its function in `functions`.
    theirs: the same operation in torch.
    inputs: the first arguments of both, by name; they have gradients.
    settings: the remaining arguments.
    """

    title: str
    name: str
    theirs: Callable[..., Tensor]
    inputs: dict[str, Tensor]
    settings: tuple[Any, ...] = ()

    def ours(self) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
        """The output, and what makes its gradient those of the inputs."""
        output, saved = getattr(functions, self.name)(*self.inputs.values(), *self.settings)
        backward = getattr(functions, f"{self.name}_backward")
        return output, lambda gradient: backward(gradient, saved)


def compare(seeds: int, follow: Callable[[str], None] = lambda _: None) -> list[Comparison]:
    """Compare every operation; the worst result of seeds 0 .. seeds - 1.

    follow: called before each seed.
    """
    runs = []
    for seed in range(seeds):
        follow(f"seed {seed + 1} of {seeds}")
        draw = torch.Generator().manual_seed(seed)
        found = [each for case in list(cases(draw)) for each in _compare_case(case, draw)]
        runs.append([*found, *_compare_model(seed)])
    return [_worst(list(same)) for same in zip(*runs, strict=True)]


def difference(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """The largest absolute difference, and the same divided by the largest of theirs."""
    largest = (ours - theirs).abs().max()
    return float(largest), float(largest / theirs.abs().max())


def _worst(same: list[Comparison]) -> Comparison:
    numbers = torch.tensor([each[-2:] for each in same], dtype=torch.float64)
    absolute, relative = numbers.amax(0).tolist()  # NaN, if there is one
    return same[0]._replace(absolute=absolute, relative=relative)


@torch.no_grad()
def _compare_case(case: Case, draw: torch.Generator) -> list[Comparison]:
    """Compare the output, and each input's gradient for a random gradient of the output."""
    output, backward = case.ours()
    gradient = torch.randn(output.shape, dtype=output.dtype, generator=draw)
    given = [each.detach().requires_grad_() for each in case.inputs.values()]
    with torch.enable_grad():
        expected = case.theirs(*given, *case.settings)
    pairs = {OUTPUT: (output, expected)}
    theirs = torch.autograd.grad(expected, given, gradient)
    pairs |= dict(zip(case.inputs, zip(backward(gradient), theirs, strict=True), strict=True))
    found = []
    for name, (one, other) in pairs.items():
        assert one.shape == other.shape, (case.title, name, one.shape, other.shape)
        found.append(Comparison(case.title, name, tuple(one.shape), *difference(one, other)))
    return found


def cases(draw: torch.Generator) -> Iterator[Case]:
    """Every operation of `functions`."""
    numbers = partial(torch.randn, dtype=torch.float64, generator=draw)
    x = {"x": numbers(B, TQ, IN)}
    yield Case("linear", "linear", F.linear, x | {"weight": numbers(OUT, IN), "bias": numbers(OUT)})
    scales = {"weight": numbers(IN), "bias": numbers(IN)}
    yield Case("LayerNorm", "layer_norm", _torchs_norm, x | scales, (1e-5,))
    small = {"x": 1e-3 * x["x"]}  # so that epsilon, not the variance, decides
    yield Case("LayerNorm, small x", "layer_norm", _torchs_norm, small | scales, (1e-5,))
    yield Case("ReLU", "relu", F.relu, x)
    yield Case("GELU", "gelu", F.gelu, x)
    yield Case("GELU, tanh form", "gelu_tanh", partial(F.gelu, approximate="tanh"), x)
    yield Case("softmax", "softmax", partial(F.softmax, dim=-1), x)
    angle = numbers(TQ, H)
    spun = {"x": numbers(B, TQ, 2 * H)}
    yield Case("rotary", "rotary", apply_rotary, spun, (angle.cos(), angle.sin()))
    table, ids = {"table": numbers(V, IN)}, torch.randint(V, (B, TQ), generator=draw)
    yield Case("embedding", "embedding", lambda table, ids: F.embedding(ids, table), table, (ids,))
    yield Case("dropout", "dropout", torch.mul, x, (_keep((B, TQ, IN), draw),))

    src, tgt = ids_with_pads(TK, draw), ids_with_pads(TQ, draw)
    maker = MaskMaker("keys_and_queries")  # so pad queries see nothing
    cross = AttentionContext.of(maker.cross(src, tgt), torch.float64)
    seen = cross.mask_bias, cross.has_visible_key
    assert cross.has_visible_key is not None
    heads = {"q": numbers(B, H, TQ, DH), "k": numbers(B, H, TK, DH), "v": numbers(B, H, TK, DH)}
    heads["bias"] = numbers(1, H, TQ, TK)
    yield Case("attention", "attention", _torchs_attention, heads, seen)
    settings = (*seen, _keep((B, H, TQ, TK), draw), 0.5, 2.0)
    yield Case("capped, dropped out", "attention", _step_by_step, heads, settings)

    labels = ids_with_pads(TQ, draw).flatten()
    logits = {"logits": 3 * numbers(B * TQ, V)}
    for title, smoothing in (("cross entropy", 0.0), ("cross entropy, smoothed", 0.1)):
        given = (labels, PAD_ID, smoothing)
        yield Case(title, "cross_entropy", _torchs_cross_entropy, logits, given)


def ids_with_pads(length: int, draw: torch.Generator) -> Tensor:
    """Ids (B, length): the first row full, the second with at least one pad."""
    ids = torch.randint(1, V, (B, length), generator=draw)
    real = int(torch.randint(1, length, (), generator=draw))
    ids[1, real:] = PAD_ID
    return ids


def _keep(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=draw) < 0.7) / 0.7


def _torchs_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, epsilon)


def _torchs_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask_bias: Tensor, has_visible_key: Tensor
) -> Tensor:
    """Torch's attention; queries without a visible key then become zero."""
    outputs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias + mask_bias)
    return outputs.where(has_visible_key, 0)


def _step_by_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask_bias: Tensor,
    has_visible_key: Tensor,
    keep: Tensor,
    scale: float,
    cap: float,
) -> Tensor:
    """The steps one by one, since torch's attention has no cap."""
    scores = cap * torch.tanh(torch.einsum("bhqd,bhkd->bhqk", q, k) * scale / cap)
    weights = F.softmax(scores + bias + mask_bias, -1).where(has_visible_key, 0) * keep
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def _torchs_cross_entropy(logits: Tensor, labels: Tensor, ignored: int, smoothing: float) -> Tensor:
    return F.cross_entropy(
        logits, labels, ignore_index=ignored, reduction="none", label_smoothing=smoothing
    )


ANCHORED = {
    "positions": "anchored",
    "cross_positions": "anchored",
    "source_bos": True,
    "score_cap": 1.0,
    "norm": "pre",
}
"""A model that has every operation: a bias, a cap, norms before the sub-layers."""


def _compare_model(seed: int) -> list[Comparison]:
    """Loss and gradients of a small transformer, manually and by autograd."""
    draw = torch.Generator().manual_seed(seed)
    src, tgt_in, tgt_out = (ids_with_pads(length, draw) for length in (TK, TQ, TQ))
    sizes = {"d_model": H * DH, "n_heads": H, "n_encoder_layers": 1, "d_ff": 37}
    config = ModelSettings.model_validate(sizes | ANCHORED)
    results = []
    for loss_of in (cross_entropy, F.cross_entropy):
        model = Transformer(config, Vocabulary(tuple(map(str, range(V - 3))))).double()
        if loss_of is cross_entropy:
            use_manual_backward(model)
        _shake(model, torch.Generator().manual_seed(seed))
        logits, labels = model(src, tgt_in).flatten(0, 1), tgt_out.flatten()
        loss = loss_of(logits, labels, ignore_index=PAD_ID, reduction="sum", label_smoothing=0.1)
        results.append((loss.detach(), torch.autograd.grad(loss, list(model.parameters()))))
    (loss, ours), (expected, theirs) = results
    pairs = [difference(*pair) for pair in zip(ours, theirs, strict=True)]
    parameters = f"{len(theirs)} parameters", (sum(each.numel() for each in theirs),)
    return [
        Comparison("whole model", OUTPUT, (), *difference(loss, expected)),
        _worst([Comparison("whole model", *parameters, *pair) for pair in pairs]),
    ]


class TrainedTwice(NamedTuple):
    """The loss in nats per token of each step, by either way to a gradient."""

    autograd: list[float]
    by_hand: list[float]

    @property
    def difference(self) -> float:
        """The largest difference of any step; NaN if a loss is."""
        ours, theirs = (torch.tensor(each, dtype=torch.float64) for each in self)
        return float((ours - theirs).abs().max())


def train_twice(steps: int) -> TrainedTwice:
    """Train a small transformer to reverse, from the same weights on the same batches."""
    sizes = {"d_model": 24, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 48}
    config = ModelSettings.model_validate(sizes | ANCHORED)
    losses = []
    for loss_of in (F.cross_entropy, cross_entropy):
        draw = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Transformer(config, Vocabulary(tuple(map(str, range(V - 3))))).double()
        if loss_of is cross_entropy:
            use_manual_backward(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
        curve = []
        for _ in range(steps):
            src, tgt_in, tgt_out = _reversing_batch(draw)
            logits = model(src, tgt_in)  # (32, 8, V)
            loss = loss_of(logits.flatten(0, 1), tgt_out.flatten(), ignore_index=PAD_ID)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(float(loss.detach()))
        losses.append(curve)
    return TrainedTwice(*losses)


def _reversing_batch(draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """32 sources of 1 to 7 symbols with BOS and EOS (32, 9), and the targets' input and labels
    (32, 8) each."""
    src, tgt = [], []
    for length in torch.randint(1, 8, (32,), generator=draw).tolist():
        symbols = torch.randint(FIRST_SYMBOL_ID, V, (length,), generator=draw).tolist()
        pads = [PAD_ID] * (7 - length)
        src.append([BOS_ID, *symbols, EOS_ID, *pads])
        tgt.append([BOS_ID, *reversed(symbols), EOS_ID, *pads])
    targets = torch.tensor(tgt)
    return torch.tensor(src), targets[:, :-1], targets[:, 1:]


@torch.no_grad()
def _shake(model: nn.Module, draw: torch.Generator) -> None:
    """Make weights normal, and move norms and biases away from 1 and 0."""
    for parameter in model.parameters():
        spread = parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.1
        base = parameter if parameter.dim() == 1 else torch.zeros_like(parameter)
        noise = torch.randn(parameter.shape, dtype=parameter.dtype, generator=draw)
        parameter.copy_(base + spread * noise)
