"""Demonstrations: attention without mask or scale, heads, projections, decoding by steps."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.config.schema import ModelConfig
from toytrans.errors import UserError
from toytrans.inspection.masks import pair_table
from toytrans.inspection.record import AttentionCall, distance
from toytrans.inspection.shown import InspectedBatch, batch_of_sequences, fresh
from toytrans.inspection.table import (
    CLOSED,
    FEATURES,
    Table,
    label,
    matrix,
    more,
    number,
    numbers,
    shape_of,
    tiny,
)
from toytrans.inspection.trace import (
    Trace,
    TraceReport,
    layout,
    memory_tables,
    split_heads,
    trace,
)
from toytrans.model.attention import Attention, Intermediates, eager_attention
from toytrans.model.context import AttentionContext
from toytrans.model.masks import MaskMaker, causal_mask, padding_mask
from toytrans.model.transformer import Transformer
from toytrans.tokens import EOS_ID, PAD_ID, Vocabulary


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _model(d_model: int, n_heads: int, vocabulary: Vocabulary) -> Transformer:
    config = ModelConfig(
        d_model=d_model,
        n_heads=n_heads,
        n_encoder_layers=1,
        n_decoder_layers=1,
        d_ff=d_model,
        norm="pre",
    )
    return fresh(lambda: Transformer(config, vocabulary), 0)


def named(steps: Intermediates) -> dict[str, Tensor]:
    """Intermediates as tables and JSON name them, who call the outputs context."""
    tensors = steps._asdict()
    tensors["context"] = tensors.pop("outputs")
    return tensors


def _attend(qkv: Iterable[Tensor], scale: float | None = None) -> Intermediates:
    q, k, v = qkv
    return eager_attention(q, k, v, AttentionContext(), scale=scale)


# Without the mask ----------------------------------------------------------------------------


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
    start = replace(pair_table(inspected, row), notes=(f"Traced: {traced.title}.",))
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


# Without the scale ---------------------------------------------------------------------------

WIDTHS = (4, 8, 16, 32, 64, 128, 256)
"""Widths of a head in the example."""


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
    draw = _draw()
    variance, spread = torch.empty(2, len(WIDTHS)), torch.empty(2, len(WIDTHS))
    for column, width in enumerate(WIDTHS):
        q, k = (torch.randn(size, width, generator=draw) for size in (256, 64))
        for line, scale in enumerate((1.0, None)):
            steps = _attend((q, k, k), scale)
            variance[line, column] = steps.scores.var()
            spread[line, column] = entropy(steps.weights).mean()
    tensors = {"d_head": torch.tensor(WIDTHS)}
    for measure, lines in (("variance", variance), ("entropy", spread)):
        tensors |= {f"{measure}_without_scale": lines[0], f"{measure}_with_scale": lines[1]}
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


# Ten ragged lists into eight heads -----------------------------------------------------------

LENGTHS = (16, 5, 11, 2, 5, 5, 1, 20, 16, 14)
"""Lengths of the ten lists. The longest has 20 symbols, and EOS makes 21."""


def heads() -> TraceReport:
    """Ten ragged lists of numbers become heads, and the heads are merged again.

    Shapes: (10, 21) ids, (10, 21, 512) embedded, (10, 8, 21, 64) in heads.
    """
    draw = _draw()
    lists = [torch.randint(1, 100, (length,), generator=draw).tolist() for length in LENGTHS]
    sequences = [" ".join(map(str, each)) for each in lists]
    vocabulary = Vocabulary(tuple(map(str, range(100))))
    batch, _ = batch_of_sequences(sequences, sequences, vocabulary)
    model = _model(512, 8, vocabulary)
    traced = trace(InspectedBatch(batch, vocabulary, model, "fresh weights"), "encoder", 1)
    names = list(traced.tensors)
    path = names[: names.index("attention_output") + 1]
    tensors = {name: traced.tensors[name] for name in path}
    shares = leaks(traced, LENGTHS.index(min(LENGTHS))).tensors
    tables = [_lists(batch.src, vocabulary)]
    tables += memory_tables(tensors, 2, "from ids to heads and back")
    tables.append(_leaks_of_lists(batch.src, shares))
    return TraceReport(tables, tensors | shares, {"example": "heads", "lengths": list(LENGTHS)})


def _lists(src: Tensor, vocabulary: Vocabulary) -> Table:
    short = {PAD_ID: CLOSED, EOS_ID: "E"}
    cells = [[short.get(i) or vocabulary.name(i) for i in ids] for ids in src.tolist()]
    return Table(
        "1",
        "Ten ragged lists, padded",
        [str(place) for place in range(src.shape[1])],
        [(f"list {row + 1}", line) for row, line in enumerate(cells)],
        shape=shape_of(src.shape),
        legend=f"symbols; E = <eos>, {CLOSED} = <pad>",
        notes=(
            f"Lengths {', '.join(map(str, LENGTHS))}. The longest list has {max(LENGTHS)} symbols "
            f"and <eos>, so the batch has {src.shape[1]} places. Ids 0, 1 and 2 are <pad>, <bos> "
            "and <eos>: the id of a symbol is its number + 3.",
        ),
    )


def _leaks_of_lists(src: Tensor, shares: dict[str, Tensor]) -> Table:
    """Shares (B, H, Tq) on pads, as means over the real queries and heads of each list."""
    real = padding_mask(src)
    means = [
        torch.stack([share[row][:, real[row]].mean() for row in range(len(real))])
        for share in shares.values()
    ]
    values = torch.stack([(~real).double().mean(1).float(), *means], 1)
    without, with_mask = (
        number(float(share.transpose(1, 2)[real].mean()), 3) for share in shares.values()
    )
    rows = [(f"list {row + 1}", numbers(line, 3)) for row, line in enumerate(values)]
    return Table(
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


# Thirty queries, fifty keys ------------------------------------------------------------------

QUERIES, KEYS, DK, DV, SPLIT = 30, 50, 128, 256, 4


def sdpa() -> TraceReport:
    """Scaled dot-product attention of 30 queries and 50 keys, with and without heads."""
    draw = _draw()
    q, k, v, x = (
        torch.randn(2, length, width, generator=draw)
        for length, width in ((QUERIES, DK), (KEYS, DK), (KEYS, DV), (KEYS, DK))
    )
    versions = {
        "": _attend((q, k, v)),
        "one_head_": _attend(each[:, None] for each in (q, k, v)),
        "heads_": _attend(split_heads(each, 1, SPLIT)["transposed"][0] for each in (q, k, v)),
        "self_": _attend((x, x, x)),
    }
    tensors = {
        prefix + name: named(steps)[name]
        for prefix, steps in versions.items()
        for name in ("q", "k", "v", "scores", "weights", "context")
    }
    sums = torch.cat([steps.weights.sum(-1).flatten() for steps in versions.values()])
    flat = versions[""]
    error = tiny(distance(versions["one_head_"].outputs[:, 0], flat.outputs))
    tables = [
        layout(
            "1",
            "The same code with and without an axis of heads",
            tensors,
            f"Values may be wider than keys ({DV} and {DK}); the context is as wide as the values. "
            f"There must be as many values as keys: {_unequal(q, k, v)}",
            f"One head equals no head axis: the contexts differ by {error}. In self-attention, "
            "q, k and v are the same memory.",
        ),
        matrix(
            "2",
            "Weights of the first pair, no axis of heads",
            flat.weights[0],
            [f"q{i + 1}" for i in range(QUERIES)],
            [f"k{j + 1}" for j in range(KEYS)],
            f"All {len(sums)} rows of weights above sum to 1 within {tiny(distance(sums, 1.0))}.",
            summaries={"sum": flat.weights[0].sum(-1)},
        ),
        _wrong_root(versions["heads_"]),
    ]
    return TraceReport(tables, tensors, {"example": "sdpa"})


def _unequal(q: Tensor, k: Tensor, v: Tensor) -> str:
    try:
        _attend((q, k, v[:, 1:]))
    except RuntimeError as error:
        return f"with {KEYS - 1} values torch says {str(error).splitlines()[0]!r}."
    return f"with {KEYS - 1} values it works all the same."


def _wrong_root(split: Intermediates) -> Table:
    """The scale of a head is the root of the head's width."""
    wrong = _attend(split[:3], DK**-0.5)

    def statistics(steps: Intermediates) -> list[str]:
        means = steps.scores.var(), entropy(steps.weights).mean(), steps.weights.amax(-1).mean()
        return [number(float(value), 3) for value in means]

    return Table(
        "3",
        f"The scale of {SPLIT} heads {DK // SPLIT} wide",
        ["variance of scores", "entropy", "largest weight"],
        [
            (f"root of {DK // SPLIT}, a head's width", statistics(split)),
            (f"root of {DK}, the full width", statistics(wrong)),
        ],
        legend="entropy in nats and largest weight: means over all rows",
        notes=(
            "Trap: the root of the full width on scores of a head. The scores become too small, "
            f"and attention too even (log {KEYS} = {number(math.log(KEYS), 3)} is fully even).",
        ),
    )


# One wide projection, or one per head? -------------------------------------------------------

HeadLinears = list[tuple[Tensor, Tensor]]
"""Weight (Dh, D) and bias (Dh,) of a head's query, key and value."""


def projections() -> TraceReport:
    """One projection for all heads equals small projections per head.

    The weights of the small projections are rows of the wide weight.
    """
    model = _model(8, 2, Vocabulary(())).double()
    module, draw = model.encoder_stack()[0].self_attention, _draw()
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=draw)
    with torch.no_grad():
        for linear in (module.in_proj, module.out_proj):  # biases start at zero, which hides them
            linear.bias.copy_(torch.randn(linear.bias.shape, generator=draw))
        wide = AttentionCall(module, x, AttentionContext()).intermediates()
        output = module(x, AttentionContext())
        small = [_linears(module, head) for head in range(module.n_heads)]
        parts = [[F.linear(x, *pair) for pair in pairs] for pairs in small]
        contexts = [_attend(qkv).outputs for qkv in parts]
        of_heads = dict(
            zip("qkv", (torch.stack(p, 1) for p in zip(*parts, strict=True)), strict=True)
        )
        of_heads["context"] = torch.stack(contexts, 1)
        of_heads["output"] = module.out_proj(torch.cat(contexts, -1))
        of_heads["output_as_a_sum"] = _sum_of_heads(module, contexts)
    of_wide = {name: named(wide)[name] for name in ("q", "k", "v", "context")}
    of_wide["output"] = output
    tensors = {"x": x, "in_proj_weight": module.in_proj.weight.detach()}
    tensors |= {f"wide_{name}": tensor for name, tensor in of_wide.items()}
    tensors |= {f"small_{name}": tensor for name, tensor in of_heads.items()}
    of_wide["output_as_a_sum"] = output
    differences = {name: distance(each, of_wide[name]) for name, each in of_heads.items()}
    tables = [*_rows_of_heads(module, wide.q, of_heads["q"])]
    tables.append(_compared(module, small, of_heads, differences))
    return TraceReport(tables, tensors, {"example": "projections", "differences": differences})


def _linears(module: Attention, head: int) -> HeadLinears:
    """The rows of the wide projection that belong to one head."""
    d_model = module.in_proj.in_features
    width = d_model // module.n_heads
    starts = [part * d_model + head * width for part in range(3)]
    weight, bias = module.in_proj.weight, module.in_proj.bias
    return [(weight[s : s + width].clone(), bias[s : s + width].clone()) for s in starts]


def _sum_of_heads(module: Attention, contexts: list[Tensor]) -> Tensor:
    """Each head's context times its own columns of the output weight, summed."""
    parts = module.out_proj.weight.split(contexts[0].shape[-1], 1)
    products = [F.linear(c, w) for c, w in zip(contexts, parts, strict=True)]
    return torch.stack(products).sum(0) + module.out_proj.bias


def _rows_of_heads(module: Attention, wide: Tensor, small: Tensor) -> Iterator[Table]:
    width = small.shape[-1]
    owners = [f"{part}, head {h + 1}" for part in "qkv" for h in range(module.n_heads)]
    rows = [f"{i * width}..{(i + 1) * width - 1}" for i in range(len(owners))]
    yield Table(
        "1",
        "The rows of the wide weight, and the head that each belongs to",
        owners,
        [("rows", rows)],
        shape=shape_of(module.in_proj.weight.shape),
        legend=f"a small projection is {width} of its rows",
    )
    places = [f"place {i}" for i in range(small.shape[2])]
    for head in range(module.n_heads):
        for source, q in (("from the wide projection", wide), ("from a small one", small)):
            yield matrix("2", f"q of head {head + 1} {source}", q[0, head], places, digits=4)


def _compared(
    module: Attention,
    small: list[HeadLinears],
    of_heads: dict[str, Tensor],
    differences: dict[str, float],
) -> Table:
    rows = []
    for name, tensor in of_heads.items():
        largest = number(float(tensor.abs().max()), 4)
        cells = [" ".join(map(str, tensor.shape)), largest, tiny(differences[name])]
        rows.append((label(name), cells))
    in_small = sum(x.numel() for pairs in small for pair in pairs for x in pair)
    in_wide = sum(x.numel() for x in module.in_proj.parameters())
    return Table(
        "3",
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


# One masked pass, or step by step? -----------------------------------------------------------


def decoding(inspected: InspectedBatch, row: int) -> TraceReport:
    """Logits of one parallel pass with the causal mask, and of decoding token by token, in fp64."""
    model = copy.deepcopy(inspected.model).double()
    without = copy.deepcopy(model)
    without.masks = _with_the_future(model.masks)
    src, tgt_in, _ = inspected.batch
    with torch.no_grad():
        parallel, no_triangle = model(src, tgt_in), without(src, tgt_in)
        state = model.start_decoding(src, tgt_in.shape[1])
        steps = [state.next_logits(tokens[:, None])[:, 0] for tokens in tgt_in.T]
    stepwise = torch.stack(steps, 1)  # (B, T, V)
    real = padding_mask(tgt_in)
    differences = {
        "step_by_step": (parallel - stepwise).abs().amax(-1),  # (B, T)
        "without_the_triangle": (no_triangle - stepwise).abs().amax(-1),
    }
    worst = {name: float(each[real].max()) for name, each in differences.items()}
    tables = [
        *_logits(inspected, row, {"one pass": parallel, "steps": stepwise}, differences),
        Table("3", "One masked pass is every step at once", [], [], notes=_verdict(worst, real)),
    ]
    tensors = {"parallel": parallel, "stepwise": stepwise, "without_the_triangle": no_triangle}
    facts = {"example": "decoding", "weights": inspected.weights, "differences": worst}
    return TraceReport(tables, inspected.batch.named() | tensors, facts)


def _with_the_future(masks: MaskMaker) -> MaskMaker:
    """The model's own masks, except that the decoder sees the future."""
    opened, decoder_mask = copy.copy(masks), masks.decoder_self

    def decoder_self(tgt_in: Tensor) -> Tensor:
        future = ~causal_mask(tgt_in.shape[1], tgt_in.device)
        real = padding_mask(tgt_in)[:, None, None, :]
        return decoder_mask(tgt_in) | (future & real)

    opened.decoder_self = decoder_self  # type: ignore[method-assign]
    return opened


def _logits(
    inspected: InspectedBatch, row: int, logits: dict[str, Tensor], differences: dict[str, Tensor]
) -> Iterator[Table]:
    """The likeliest token at each place of one pair, and the differences of its logits."""
    tgt_in = inspected.batch.tgt_in[row]
    real = int(padding_mask(tgt_in).sum())
    shown = min(real, FEATURES)
    columns = [f"{t}: {name}" for t, name in enumerate(inspected.names(tgt_in[:shown]))]
    rows = []
    for name, each in logits.items():
        best = each[row, :shown].max(-1)
        rows += [
            (f"{name}: likeliest", inspected.names(best.indices)),
            ("logit", numbers(best.values, 5)),
        ]
    yield Table(
        "1",
        f"Pair {row + 1}: what comes after each token read, {inspected.weights}",
        columns,
        rows,
        shape=shape_of(logits["steps"].shape) + more(real - shown, "place"),
        legend="token read across, with its place; likeliest token and its logit below",
    )
    yield Table(
        "2",
        "One pass compared with the steps: largest difference of any logit",
        columns,
        [
            (label(name), [tiny(x) for x in each[row, :shown].tolist()])
            for name, each in differences.items()
        ],
        shape=f"{real} real places" + more(real - shown, "place"),
    )


def _verdict(worst: dict[str, float], real: Tensor) -> tuple[str, ...]:
    same = "Row t of the pass is step t of decoding, to rounding"
    if worst["step_by_step"] > 1e-9:
        same = "Row t of the pass is NOT step t of decoding: a fault is in it"
    return (
        f"{same}: at most {tiny(worst['step_by_step'])} over {int(real.sum())} real places of "
        f"{len(real)} pairs, in fp64. So training may compute all places at once, and decoding "
        "may go step by step.",
        "Without the causal mask, rows see the future: they differ by up to "
        f"{tiny(worst['without_the_triangle'])}.",
    )
