"""Attention without its mask and without its scale."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.insight.attention.trace import Trace, TraceReport
from toytrans.insight.masks.mask_tables import batch_tables
from toytrans.insight.tables import CLOSED, Table, label, matrix, number, numbers
from toytrans.model.attention import Intermediates, eager_attention
from toytrans.model.context import AttentionContext
from toytrans.model.masks import causal_mask, padding_mask

WIDTHS = (4, 8, 16, 32, 64, 128, 256)
"""Widths of a head in the example."""


def leaks(traced: Trace, row: int) -> TraceReport:
    """The share of each query's weights on pads, and in the decoder on the future.

    Each share is computed without the mask and with it.
    """
    inspected = traced.inspected
    queries, keys = inspected.ids(traced.name)
    pads = ~padding_mask(keys)[:, None, None]  # (B, 1, 1, Tk)
    targets = {"pads": pads}
    if traced.part == "decoder":
        targets["the future"] = ~causal_mask(keys.shape[1]) & ~pads
    versions = {
        "without the mask": traced.call.unmasked(),
        "with the mask": traced.call.intermediates(),
    }
    shares: dict[str, Tensor] = {}
    tables: list[Table] = []
    for step, (target, cells) in enumerate(targets.items(), start=2):
        for version, steps in versions.items():
            share = (steps.weights * cells).sum(-1)  # (B, H, Tq)
            shares[f"on {target} {version}".replace(" ", "_")] = share
            title = f"On {target}, {version}"
            tables.append(_leak(traced, share, row, title, cells, str(step)))
    start = replace(batch_tables(inspected)[row], notes=(f"Traced: {traced.title}.",))
    facts = traced.facts | {"queries": [inspected.names(ids) for ids in queries]}
    return TraceReport([start, *tables], shares, facts)


def _leak(traced: Trace, share: Tensor, row: int, name: str, cells: Tensor, step: str) -> Table:
    """Shares (B, H, Tq) of one pair: real queries down, heads across."""
    ids = traced.inspected.ids(traced.name)[0]
    real = padding_mask(ids)  # (B, Tq)
    values = share[row].T[real[row]]  # (queries, H)
    even = cells.expand(*share.shape, -1)[row, 0][real[row]].double().mean()
    mean, batch_mean = values.mean(), share.transpose(1, 2)[real].mean()
    return matrix(
        step,
        name,
        values,
        traced.inspected.names(ids[row][real[row]]),
        [f"head {h + 1}" for h in range(values.shape[1])],
        f"Mean {number(float(mean), 3)}; of every pair's real queries "
        f"{number(float(batch_mean), 3)}. Equal weights would give {number(float(even), 3)}.",
        summaries={"mean": values.mean(-1)},
        digits=3,
    )


def entropy(weights: Tensor) -> Tensor:
    """The entropy over the last axis, in nats; 0 log 0 is 0."""
    terms: Tensor = torch.special.entr(weights)
    return terms.sum(-1)


def sharpness(traced: Trace) -> TraceReport:
    """What the scale does to the traced attention: variance and entropy of each head.

    Both are measured over the keys that real queries see, with the model's scale and without one.
    """
    call, steps = traced.call, traced.call.intermediates()
    bare = eager_attention(
        *steps[:3], call.context, call.module.score_bias(call.context), call.module.cap, scale=1.0
    )
    real = padding_mask(traced.inspected.ids(traced.name)[0])[:, None, :, None]  # (B, 1, Tq, 1)
    mask = call.context.mask
    visible = (real if mask is None else mask & real).expand_as(steps.scores)
    rows = visible.any(-1)  # (B, H, Tq)
    heads = range(visible.shape[1])
    cells = int(visible[:, 0].sum())
    if cells < 2:
        raise UserError(
            f"{traced.title}: {cells} scores of real tokens have no variance; give longer sequences"
        )

    def mean(values: Tensor) -> Tensor:
        return torch.stack([values[:, h][rows[:, h]].mean() for h in heads])

    def variance(version: Intermediates) -> Tensor:
        return torch.stack([version.scores[:, h][visible[:, h]].var() for h in heads])

    tensors = {
        "variance_of_q_k": variance(bare),
        "variance_of_scores": variance(steps),
        "entropy_without_scale": mean(entropy(bare.weights)),
        "entropy_with_scale": mean(entropy(steps.weights)),
        "log_of_keys_seen": mean(visible.sum(-1).double().log()).float(),
    }
    table = matrix(
        "1",
        f"This model: {traced.title}",
        torch.stack(list(tensors.values())),
        [label(name) for name in tensors],
        [f"head {h + 1}" for h in heads],
        f"The scale is {number(call.module.scale, 4)}. Entropies are means over real queries, in "
        "nats. Equal weights have the log of the number of keys seen.",
    )
    return TraceReport([table], tensors, traced.facts)


def scales() -> TraceReport:
    """Variance of the scores and entropy of the weights as heads grow, with and without the scale.

    256 random queries attend to 64 random keys, both of unit variance.
    """
    draw = torch.Generator().manual_seed(0)
    variance, spread = torch.empty(2, len(WIDTHS)), torch.empty(2, len(WIDTHS))
    for column, width in enumerate(WIDTHS):
        q, k = (torch.randn(size, width, generator=draw) for size in (256, 64))
        for line, scale in enumerate((1.0, None)):
            steps = eager_attention(q, k, k, AttentionContext(), scale=scale)
            variance[line, column] = steps.scores.var()
            spread[line, column] = entropy(steps.weights).mean()
    names = "without_scale", "with_scale"
    tensors = {"d_head": torch.tensor(WIDTHS)}
    tensors |= {f"variance_{name}": x for name, x in zip(names, variance, strict=True)}
    tensors |= {f"entropy_{name}": x for name, x in zip(names, spread, strict=True)}
    even = math.log(64)
    rows = [(label(name), numbers(x)) for name, x in list(tensors.items())[1:]]
    table = Table(
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
        _plot("Entropy of the weights, nats", spread, even, 12, lambda y: f"{y:.1f}"),
    ]
    return TraceReport([table, *plots], tensors, {"example": "scales", "log_keys": even})


def _plot(
    title: str, lines: Tensor, top: float, height: int, tick: Callable[[float], str]
) -> Table:
    """Two lines (2, widths) over the widths, from 0 up to `top`. "*": both lines."""
    levels = (lines / top * height).round().clamp(0, height).tolist()
    rows = []
    for level in range(height, -1, -1):
        cells = []
        for without, with_scale in zip(*levels, strict=True):
            marks = (without == level) * "x" + (with_scale == level) * "o"
            cells.append("*" if marks == "xo" else marks or CLOSED)
        rows.append((tick(level / height * top), cells))
    columns = [str(width) for width in WIDTHS]
    legend = "x = without the scale, o = with it, * = both; d_head across"
    return Table("2", title, columns, rows, legend=legend, marks=True)
