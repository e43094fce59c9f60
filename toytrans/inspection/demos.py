"""Demonstrations: attention without mask or scale, heads, projections, decoding by steps."""

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.inspection.panels import (
    CLOSED,
    distance,
    number,
    numbers,
    panel,
    shape_of,
    tiny,
)
from toytrans.inspection.record import AttentionCall
from toytrans.inspection.shown import InspectedBatch, batch_of_sequences, fresh
from toytrans.inspection.trace import Trace, layout, memory_tables, split_heads, trace
from toytrans.inspection.walkthrough import TINY
from toytrans.model.attention import AttentionContext, AttentionSteps, eager_attention
from toytrans.model.masks import causal_mask, padding_mask
from toytrans.model.transformer import Transformer
from toytrans.table import Table
from toytrans.tokens import EOS_ID, PAD_ID, Vocabulary


def _model(width: int, n_heads: int, vocabulary: Vocabulary) -> Transformer:
    config = TINY.model_copy(update={"d_model": width, "n_heads": n_heads, "d_ff": width})
    return fresh(lambda: Transformer(config, vocabulary), 0)


def _attend(qkv: Iterable[Tensor], scale: float | None = None) -> AttentionSteps:
    q, k, v = qkv
    return eager_attention(q, k, v, AttentionContext(), scale=scale)


def _entropy(weights: Tensor) -> Tensor:
    """The entropy over the last axis, in nats; 0 log 0 is 0."""
    terms: Tensor = torch.special.entr(weights)
    return terms.sum(-1)


# The scale -----------------------------------------------------------------------------------

WIDTHS = (4, 8, 16, 32, 64, 128, 256)
"""Widths of a head in the example."""


def scale() -> list[Table]:
    """Variance of the scores and entropy of the weights as heads grow, with and without the scale.

    256 random queries attend to 64 random keys, both of unit variance.
    """
    draw = torch.Generator().manual_seed(0)
    variance, entropy = torch.empty(2, len(WIDTHS)), torch.empty(2, len(WIDTHS))
    for column, width in enumerate(WIDTHS):
        q, k = (torch.randn(size, width, generator=draw) for size in (256, 64))
        for line, factor in enumerate((1.0, None)):
            steps = _attend((q, k, k), factor)
            variance[line, column] = steps.scores.var()
            entropy[line, column] = _entropy(steps.weights).mean()
    measured = {
        "variance without scale": variance[0],
        "variance with scale": variance[1],
        "entropy without scale": entropy[0],
        "entropy with scale": entropy[1],
    }
    even = math.log(64)
    rows = [(name, numbers(values)) for name, values in measured.items()]
    table = panel(
        "1",
        "With the scale 1 / root of d_head, and without",
        [str(width) for width in WIDTHS],
        [*rows, ("log of 64 keys", [number(even)] * len(WIDTHS))],
        legend="d_head across; variance of q k; entropy of the weights in nats, mean over rows",
        notes=(
            "Products of unit-variance queries and keys have variance d_head. Without the scale, "
            "softmax puts all weight on one key: entropy and gradient go to 0. With the scale, "
            "both stay constant for any width.",
        ),
    )
    plots = [
        _plot("Variance of the scores, log scale", variance.log2(), 8, 8, lambda y: f"{2**y:.0f}"),
        _plot("Entropy of the weights, nats", entropy, even, 12, lambda y: f"{y:.1f}"),
    ]
    return [table, *plots]


def _plot(
    title: str, lines: Tensor, top: float, height: int, tick: Callable[[float], str]
) -> Table:
    """Two lines (2, widths) over the widths, from 0 up to `top`. "*": both lines."""
    levels = (lines / top * height).round().clamp(0, height).tolist()
    marks = {(True, True): "*", (True, False): "x", (False, True): "o", (False, False): CLOSED}
    rows = []
    for level in range(height, -1, -1):
        cells = [marks[x == level, o == level] for x, o in zip(*levels, strict=True)]
        rows.append((tick(level / height * top), cells))
    columns = [str(width) for width in WIDTHS]
    legend = "x = without the scale, o = with it, * = both; d_head across"
    return panel("2", title, columns, rows, legend=legend, marks=True)


# Heads ---------------------------------------------------------------------------------------

LENGTHS = (16, 5, 11, 2, 5, 5, 1, 20, 16, 14)
"""Lengths of the ten lists. The longest has 20 symbols, and EOS makes 21."""


def heads() -> list[Table]:
    """Ten ragged lists of numbers become heads, and the heads are merged again.

    Shapes: (10, 21) ids, (10, 21, 512) embedded, (10, 8, 21, 64) in heads.
    """
    draw = torch.Generator().manual_seed(0)
    lists = [torch.randint(1, 100, (length,), generator=draw).tolist() for length in LENGTHS]
    sequences = [" ".join(map(str, each)) for each in lists]
    vocabulary = Vocabulary(tuple(map(str, range(100))))
    batch, _ = batch_of_sequences(sequences, sequences, vocabulary)
    model = _model(512, 8, vocabulary)
    traced = trace(InspectedBatch(batch, vocabulary, model, "fresh weights"), "encoder", 1)
    names = list(traced.tensors)
    path = names[: names.index("attention_output") + 1]
    tensors = {name: traced.tensors[name] for name in path if name != "unmasked_weights"}
    short = {PAD_ID: CLOSED, EOS_ID: "E"}
    cells = [[short.get(i) or vocabulary.name(i) for i in ids] for ids in batch.src.tolist()]
    table = panel(
        "1",
        "Ten ragged lists, padded",
        [str(place) for place in range(batch.src.shape[1])],
        [(f"list {row + 1}", line) for row, line in enumerate(cells)],
        shape=shape_of(batch.src.shape),
        legend=f"symbols; E = <eos>, {CLOSED} = <pad>",
        notes=(
            f"Lengths {', '.join(map(str, LENGTHS))}. The longest list has {max(LENGTHS)} symbols "
            f"and <eos>, so the batch has {batch.src.shape[1]} places. Ids 0, 1 and 2 are <pad>, "
            "<bos> and <eos>: the id of a symbol is its number + 3.",
        ),
    )
    memory = memory_tables(tensors, "from ids to heads and back")
    return [table, *memory, _leaks_of_lists(traced)]


def _leaks_of_lists(traced: Trace) -> Table:
    """The share of attention on pads, mean over the real queries and heads of each list."""
    real = padding_mask(traced.inspected.batch.src)
    weights = traced.tensors["unmasked_weights"], traced.tensors["weights"]
    shares = [(each * ~real[:, None, None]).sum(-1) for each in weights]  # (B, H, S)
    rows = []
    for row, places in enumerate(real):
        means = [(~places).double().mean(), *(share[row][:, places].mean() for share in shares)]
        rows.append((f"list {row + 1}", [number(mean, 3) for mean in means]))
    without, with_mask = (number(share.transpose(1, 2)[real].mean(), 3) for share in shares)
    return panel(
        "4",
        "Attention that leaks onto pads",
        ["pads", "leak, no mask", "leak, mask"],
        rows,
        legend="pads: their share of a list's places; leak: the share of the weights of real "
        "queries that falls on pads, mean over queries and heads",
        notes=(
            f"Trap: pads left unmasked. Then {without} of all attention falls on pads; with the "
            f"mask {with_mask}.",
        ),
    )


QUERIES, KEYS, DK, DV, SPLIT = 30, 50, 128, 256, 4


def sdpa() -> list[Table]:
    """Scaled dot-product attention of 30 queries and 50 keys, with and without heads."""
    draw = torch.Generator().manual_seed(0)
    q, k, v, x = (
        torch.randn(2, length, width, generator=draw)
        for length, width in ((QUERIES, DK), (KEYS, DK), (KEYS, DV), (KEYS, DK))
    )
    flat, one = _attend((q, k, v)), _attend(each[:, None] for each in (q, k, v))
    split = _attend(split_heads(each, 1, SPLIT)["transposed"][0] for each in (q, k, v))
    tensors = {}
    versions = {"": flat, "one_head_": one, "heads_": split, "self_": _attend((x, x, x))}
    for prefix, steps in versions.items():
        for name in ("q", "k", "v", "scores", "weights", "outputs"):
            shown = "context" if name == "outputs" else name
            tensors[f"{prefix}{shown}"] = getattr(steps, name)
    try:
        _attend((q, k, v[:, 1:]))
        said = "nothing"
    except RuntimeError as mismatch:
        said = repr(str(mismatch).splitlines()[0])
    memory = layout(
        "1",
        "The same code with and without an axis of heads",
        tensors,
        f"Values may be wider than keys ({DV} and {DK}); the context is as wide as the values. "
        f"There must be as many values as keys: with {KEYS - 1} values torch says {said}.",
        f"One head equals no head axis: the contexts differ by "
        f"{tiny(distance(one.outputs[:, 0], flat.outputs))}. In self-attention, q, k and v are "
        "the same memory.",
    )
    rows = []
    for name, scaled in (
        (f"root of {DK // SPLIT}, a head's width", split),
        (f"root of {DK}, the full width", _attend(split[:3], DK**-0.5)),
    ):
        means = _entropy(scaled.weights).mean(), scaled.weights.amax(-1).mean()
        rows.append((name, [number(value, 3) for value in (scaled.scores.var(), *means)]))
    roots = panel(
        "2",
        f"The scale of {SPLIT} heads {DK // SPLIT} wide",
        ["variance of scores", "entropy", "largest weight"],
        rows,
        legend="entropy in nats and largest weight: means over all rows",
        notes=(
            "Trap: the root of the full width on scores of a head. The scores become too small, "
            f"and attention too even (log {KEYS} = {number(math.log(KEYS), 3)} is fully even).",
        ),
    )
    return [memory, roots]


@torch.no_grad()
def projections() -> list[Table]:
    """One projection for all heads equals small projections per head.

    The weights of the small projections are rows of the wide weight.
    """
    model = _model(8, 2, Vocabulary(())).double()
    module, draw = model.encoder_stack()[0].self_attention, torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=draw)
    for linear in (module.in_proj, module.out_proj):  # biases start at zero, which hides them
        linear.bias.copy_(torch.randn(linear.bias.shape, generator=draw))
    steps = AttentionCall(module, x, AttentionContext()).intermediates()
    output = module(x, AttentionContext())
    wide = {"q": steps.q, "k": steps.k, "v": steps.v, "context": steps.outputs, "output": output}
    width = 8 // module.n_heads
    weights = module.in_proj.weight.view(3, module.n_heads, width, 8)
    biases = module.in_proj.bias.view(3, module.n_heads, width)
    small = [
        [F.linear(x, weights[part, h], biases[part, h]) for part in range(3)]
        for h in range(module.n_heads)
    ]
    contexts = [_attend(qkv).outputs for qkv in small]
    columns = zip(contexts, module.out_proj.weight.split(width, 1), strict=True)
    products = torch.stack([F.linear(*each) for each in columns])
    of_heads = {name: torch.stack([qkv[i] for qkv in small], 1) for i, name in enumerate("qkv")}
    of_heads |= {
        "context": torch.stack(contexts, 1),
        "output": module.out_proj(torch.cat(contexts, -1)),
        "output as a sum": products.sum(0) + module.out_proj.bias,
    }
    rows = []
    for name, each in of_heads.items():
        sizes = " ".join(map(str, each.shape)), number(each.abs().max(), 4)
        rows.append((name, [*sizes, tiny(distance(each, wide.get(name, output)))]))
    in_small = weights.numel() + biases.numel()
    in_wide = sum(each.numel() for each in module.in_proj.parameters())
    table = panel(
        "1",
        "Small projections compared with the wide one",
        ["shape", "largest number", "largest difference"],
        rows,
        legend="two rows of five places, in fp64",
        notes=(
            f"Both are the same: {in_small} numbers in small projections, {in_wide} in the wide "
            "one, which needs one product instead of many. The output is also a sum over heads, "
            "each times its own columns of the output weight.",
        ),
    )
    return [table]


# Decoding ------------------------------------------------------------------------------------


def decoding(inspected: InspectedBatch, row: int) -> list[Table]:
    """Logits of one parallel pass with the causal mask, and of decoding token by token, in fp64."""
    model = copy.deepcopy(inspected.model).double()
    src, tgt_in = inspected.batch.src, inspected.batch.tgt_in
    real = padding_mask(tgt_in)
    with torch.no_grad():
        parallel = model(src, tgt_in)
        state = model.start_decoding(src, tgt_in.shape[1])
        steps = [state.next_logits(tokens) for tokens in tgt_in.T]
        # the model's own mask, but the decoder sees the future
        future = ~causal_mask(tgt_in.shape[1]) & real[:, None, None]
        opened = model.masks.decoder_self(tgt_in) | future
        model.masks.decoder_self = lambda tgt_in: opened  # type: ignore[method-assign]
        no_triangle = model(src, tgt_in)
    stepwise = torch.stack(steps, 1)  # (B, T, V)
    apart = (parallel - stepwise).abs().amax(-1)  # (B, T)
    opened_apart = (no_triangle - stepwise).abs().amax(-1)
    places, worst = int(real[row].sum()), float(apart[real].max())
    rows = {"step by step": apart, "without the triangle": opened_apart}
    same = "Row t of the pass is step t of decoding, to rounding"
    if worst > 1e-9:
        same = "Row t of the pass is NOT step t of decoding: a fault is in it"
    table = panel(
        "1",
        "One pass compared with the steps: largest difference of any logit",
        [f"{t}: {name}" for t, name in enumerate(inspected.names(tgt_in[row, :places]))],
        [(name, list(map(tiny, each[row, :places]))) for name, each in rows.items()],
        shape=f"{places} real places",
        notes=(
            f"{same}: at most {tiny(worst)} over {int(real.sum())} real places of {len(real)} "
            "pairs, in fp64. So training may compute all places at once, and decoding may go step "
            "by step.",
            "Without the causal mask, rows see the future: they differ by up to "
            f"{tiny(opened_apart[real].max())}.",
        ),
    )
    return [table]
