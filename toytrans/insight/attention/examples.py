"""Attention on numbers of its own: shapes, heads, two questions, and what the scale is for."""

import copy
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.config import ModelConfig
from toytrans.insight.attention.trace import (
    FEATURES,
    Sheet,
    distance,
    label,
    layout,
    matrix,
    memory_panels,
    tiny,
    trace,
)
from toytrans.insight.attention.trace_tables import entropy, leaks
from toytrans.insight.masks import mask_tables
from toytrans.insight.tables import CLOSED, Panel, View, fresh, number, numbers, shape_of
from toytrans.model.attention import Attention, Intermediates, attend_explicitly
from toytrans.model.masks import MaskMaker, causal_mask, padding_mask
from toytrans.model.sight import Sight
from toytrans.model.transformer import Transformer
from toytrans.tokens import EOS_ID, PAD_ID, Vocabulary

LENGTHS = (16, 5, 11, 2, 5, 5, 1, 20, 16, 14)
"""Of the ten lists of lesson 5; the longest is 20, and EOS makes 21."""


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _model(d_model: int, n_heads: int, vocabulary: Vocabulary) -> Transformer:
    config = ModelConfig(
        d_model=d_model,
        n_heads=n_heads,
        n_encoder_layers=1,
        n_decoder_layers=1,
        d_ff=d_model,
        positions="sinusoidal",
    )
    return fresh(lambda: Transformer(config, vocabulary), 0)


def _attend(qkv: Iterable[Tensor]) -> Intermediates:
    q, k, v = qkv
    return attend_explicitly(q, k, v, Sight())


# Ten ragged lists into eight heads -----------------------------------------------------------


def heads() -> Sheet:
    """Ten ragged lists of 1 to 99 become (10, 21), (10, 21, 512), (10, 8, 21, 64), and go back."""
    draw = _draw()
    lists = [torch.randint(1, 100, (length,), generator=draw).tolist() for length in LENGTHS]
    words = [" ".join(map(str, each)) for each in lists]
    vocabulary = Vocabulary(tuple(map(str, range(100))))
    batch, _ = mask_tables.batch_of_sequences(words, words, vocabulary)
    view = View(batch, vocabulary, _model(512, 8, vocabulary), "fresh weights")
    found = trace(view, "encoder", 1)
    names = list(found.tensors)
    path = names[: names.index("attention_output") + 1]
    tensors = {name: found.tensors[name] for name in path}
    shares = leaks(found, LENGTHS.index(min(LENGTHS))).tensors
    panels = [_lists(view), *memory_panels(tensors, 2, "from ids to heads and back")]
    panels.append(_leaks_of_lists(view, shares))
    return Sheet(panels, tensors | shares, {"example": "heads", "lengths": list(LENGTHS)})


def _lists(view: View) -> Panel:
    src = view.batch.src
    short = {PAD_ID: CLOSED, EOS_ID: "E"}
    cells = [[short.get(i) or view.vocabulary.name(i) for i in ids] for ids in src.tolist()]
    return Panel(
        "1",
        "Ten ragged lists, padded",
        [str(place) for place in range(src.shape[1])],
        [(f"list {row + 1}", line) for row, line in enumerate(cells)],
        shape=shape_of(src.shape),
        legend=f"symbols; E = <eos>, {CLOSED} = <pad>",
        notes=(
            f"Lengths {', '.join(map(str, LENGTHS))}. The longest has {max(LENGTHS)} symbols; a "
            f"source ends with <eos>, so {src.shape[1]} places. Ids 0, 1 and 2 are <pad>, <bos> "
            "and <eos>: the id of a symbol is its number + 3.",
        ),
    )


def _leaks_of_lists(view: View, shares: dict[str, Tensor]) -> Panel:
    """Shares (B, H, Tq) on pads as means over real queries and heads of each list."""
    real = padding_mask(view.batch.src)
    without, with_mask = (
        torch.stack([share[row][:, real[row]].mean() for row in range(len(real))])
        for share in shares.values()
    )
    values = torch.stack([(~real).double().mean(1).float(), without, with_mask], 1)
    total = [share.transpose(1, 2)[real].mean() for share in shares.values()]
    rows = [(f"list {row + 1}", numbers(line, 3)) for row, line in enumerate(values)]
    return Panel(
        "4",
        "Attention that leaks onto pads",
        ["pads", "leak, no mask", "leak, mask"],
        rows,
        legend="pads among a list's places; shares of the weights of its real queries that fall "
        "on them, means over queries and heads",
        notes=(
            f"Trap: pads left unmasked. Then {number(float(total[0]), 3)} of all attention falls "
            f"on pads; with the mask {number(float(total[1]), 3)}.",
        ),
    )


# Thirty queries, fifty keys ------------------------------------------------------------------

QUERIES, KEYS, DK, DV, SPLIT = 30, 50, 128, 256, 4


def sdpa() -> Sheet:
    """Scaled dot-product attention on its own, with and without an axis of heads."""
    draw = _draw()
    q, k, v, x = (
        torch.randn(2, length, width, generator=draw)
        for length, width in ((QUERIES, DK), (KEYS, DK), (KEYS, DV), (KEYS, DK))
    )
    flat, itself = _attend((q, k, v)), _attend((x, x, x))
    one = _attend(each[:, None] for each in (q, k, v))
    split = _attend(_split(each) for each in (q, k, v))
    tensors: dict[str, Tensor] = {}
    for name, found in (("", flat), ("one_head_", one), ("heads_", split), ("self_", itself)):
        parts = ("q", "k", "v", "scores", "weights", "context")
        tensors |= {name + part: getattr(found, part) for part in parts}
    sums = torch.cat([found.weights.sum(-1).flatten() for found in (flat, one, split, itself)])
    panels = [
        layout(
            "1",
            "The same code with and without an axis of heads",
            tensors,
            f"Values may be wider than keys ({DV} and {DK}): the context is as wide as the values. "
            f"As many values as keys, though: {_unequal(q, k, v)}",
            f"One head is none: with an axis of 1 the contexts differ by "
            f"{tiny(distance(one.context[:, 0], flat.context))}. Self-attention is the case where "
            f"queries, keys and values are one: q, k and v of self are the same memory.",
        ),
        matrix(
            "2",
            "Weights of the first pair, no axis of heads",
            flat.weights[0],
            [f"q{i + 1}" for i in range(QUERIES)],
            [f"k{j + 1}" for j in range(KEYS)],
            f"All {len(sums)} rows of weights above sum to 1 within {tiny(distance(sums, 1.0))}.",
            ends={"sum": flat.weights[0].sum(-1)},
        ),
        _wrong_root(split),
    ]
    return Sheet(panels, tensors, {"example": "sdpa"})


def _split(x: Tensor) -> Tensor:
    """(B, L, D) -> (B, H, L, Dh)."""
    return x.view(*x.shape[:2], SPLIT, -1).transpose(1, 2)


def _unequal(q: Tensor, k: Tensor, v: Tensor) -> str:
    try:
        _attend((q, k, v[:, 1:]))
    except RuntimeError as error:
        return f"with {KEYS - 1} values torch says {str(error).splitlines()[0]!r}."
    return f"with {KEYS - 1} values it works all the same."


def _wrong_root(split: Intermediates) -> Panel:
    """The scale of a head is the root of the head's width."""
    wrong = attend_explicitly(*split[:3], Sight(), scale=DK**-0.5)
    rows = [
        (
            name,
            [
                number(float(found.scores.var()), 3),
                number(float(entropy(found.weights).mean()), 3),
                number(float(found.weights.amax(-1).mean()), 3),
            ],
        )
        for name, found in (
            (f"root of {DK // SPLIT}, a head's width", split),
            (f"root of {DK}, the full width", wrong),
        )
    ]
    return Panel(
        "3",
        f"The scale of {SPLIT} heads {DK // SPLIT} wide",
        ["variance of scores", "entropy", "largest weight"],
        rows,
        legend="entropy in nats and largest weight: means over all rows",
        notes=(
            "Trap: the root of the full width on scores of a head. They come out too small, and "
            f"attention too even (log {KEYS} = {number(math.log(KEYS), 3)} is all even).",
        ),
    )


# One wide projection, or one per head? -------------------------------------------------------

Small = list[tuple[Tensor, Tensor]]
"""Weight (Dh, D) and bias (Dh) of a head's query, key and value."""


def projections() -> Sheet:
    """The same attention with one projection for all, and with a small one per head and part whose
    weights are cut from the wide one's."""
    model = _model(8, 2, Vocabulary(())).double()
    module, draw = model.encoder_stack()[0].self_attention, _draw()
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=draw)
    with torch.no_grad():
        for linear in (module.in_proj, module.out_proj):  # biases start at zero, which hides them
            linear.bias.copy_(torch.randn(linear.bias.shape, generator=draw))
        wide = module.inside(x, Sight())
        small = [_small(module, head) for head in range(module.n_heads)]
        parts = [[F.linear(x, *pair) for pair in pairs] for pairs in small]
        contexts = [_attend(qkv).context for qkv in parts]
        output = module.out_proj(torch.cat(contexts, -1))
        added = _sum_of_heads(module, contexts)
    q, k, v = (torch.stack(each, 1) for each in zip(*parts, strict=True))  # (B, H, L, Dh)
    ours = {"q": q, "k": k, "v": v, "context": torch.stack(contexts, 1), "output": output}
    theirs = {name: getattr(wide.steps, name) for name in list(ours)[:-1]}
    theirs["output"] = wide.output
    ours["output_as_a_sum"], theirs["output_as_a_sum"] = added, wide.output
    tensors = {"x": x, "in_proj_weight": module.in_proj.weight.detach()}
    tensors |= {f"wide_{name}": tensor for name, tensor in list(theirs.items())[:-1]}
    tensors |= {f"small_{name}": tensor for name, tensor in ours.items()}
    panels = [*_cut(module, wide.steps.q, q), _apart(module, small, ours, theirs)]
    differences = {name: distance(tensor, theirs[name]) for name, tensor in ours.items()}
    return Sheet(panels, tensors, {"example": "projections", "differences": differences})


def _small(module: Attention, head: int) -> Small:
    """The rows of the wide projection that belong to one head."""
    d_model = module.in_proj.in_features
    width = d_model // module.n_heads
    starts = [part * d_model + head * width for part in range(3)]
    both = module.in_proj.weight, module.in_proj.bias
    return [(both[0][s : s + width].clone(), both[1][s : s + width].clone()) for s in starts]


def _sum_of_heads(module: Attention, contexts: list[Tensor]) -> Tensor:
    """Each head's context through its own columns of the output's weight, added up."""
    parts = module.out_proj.weight.split(contexts[0].shape[-1], 1)
    products = [F.linear(c, w) for c, w in zip(contexts, parts, strict=True)]
    return torch.stack(products).sum(0) + module.out_proj.bias


def _cut(module: Attention, wide: Tensor, small: Tensor) -> Iterator[Panel]:
    width = small.shape[-1]
    owners = [f"{part}, head {h + 1}" for part in "qkv" for h in range(module.n_heads)]
    rows = [f"{i * width}..{(i + 1) * width - 1}" for i in range(len(owners))]
    yield Panel(
        "1",
        "The rows of the wide weight, and the head that each belongs to",
        owners,
        [("rows", rows)],
        shape=shape_of(module.in_proj.weight.shape),
        legend=f"a small projection is {width} rows of it",
    )
    places = [f"place {i}" for i in range(small.shape[2])]
    for head in range(module.n_heads):
        for words, q in (("from the wide one, cut", wide), ("from a small one", small)):
            name = f"q of head {head + 1} {words}"
            yield matrix("2", name, q[0, head], places, digits=4)


def _apart(
    module: Attention, small: list[Small], ours: dict[str, Tensor], theirs: dict[str, Tensor]
) -> Panel:
    rows = [
        (
            label(name),
            [
                " ".join(map(str, tensor.shape)),
                number(float(tensor.abs().max()), 4),
                tiny(distance(tensor, theirs[name])),
            ],
        )
        for name, tensor in ours.items()
    ]
    counts = (
        sum(x.numel() for pairs in small for pair in pairs for x in pair),
        sum(x.numel() for x in module.in_proj.parameters()),
    )
    return Panel(
        "3",
        "Small projections beside the wide one",
        ["shape", "largest number", "largest difference"],
        rows,
        legend="two rows of five places, in fp64",
        notes=(
            f"The same thing: {counts[0]} numbers in small projections, {counts[1]} in the wide "
            "one, which is one product in place of many. The output may as well be a sum over "
            "heads, each through its own columns of the output's weight.",
        ),
    )


# One masked pass, or step by step? -----------------------------------------------------------


def decoding(view: View, row: int) -> Sheet:
    """Logits of one parallel pass under the triangle, and of decoding token by token, in fp64."""
    model = copy.deepcopy(view.model).double()
    without = copy.deepcopy(model)
    without.masks = _with_the_future(model.masks)
    src, tgt_in, _ = view.batch
    with torch.no_grad():
        parallel, no_triangle = model(src, tgt_in), without(src, tgt_in)
        state = model.start(src, tgt_in.shape[1])
        steps = [model.next_logits(tokens[:, None], state)[:, 0] for tokens in tgt_in.T]
    stepwise = torch.stack(steps, 1)  # (B, T, V)
    real = padding_mask(tgt_in)
    apart = {
        "step_by_step": (parallel - stepwise).abs().amax(-1),  # (B, T)
        "without_the_triangle": (no_triangle - stepwise).abs().amax(-1),
    }
    worst = {name: float(each[real].max()) for name, each in apart.items()}
    panels = [
        _both(view, row, parallel, stepwise),
        _differences(view, row, apart),
        Panel("3", "One masked pass is every step at once", [], [], notes=_verdict(worst, real)),
    ]
    tensors = {"parallel": parallel, "stepwise": stepwise, "without_the_triangle": no_triangle}
    facts = {"example": "decoding", "weights": view.weights, "differences": worst}
    return Sheet(panels, view.batch.named() | tensors, facts)


def _with_the_future(masks: MaskMaker) -> MaskMaker:
    """The model's own masks, but for the future, which is open to the decoder."""
    whole, seen = copy.copy(masks), masks.decoder_self

    def decoder_self(tgt_in: Tensor, queries: range | None = None) -> Tensor:
        length = tgt_in.shape[1]
        future = ~causal_mask(length, tgt_in.device, queries)
        real = padding_mask(tgt_in)[:, None, None, :]
        return seen(tgt_in, queries) | (future & real)

    whole.decoder_self = decoder_self  # type: ignore[method-assign]
    return whole


def _both(view: View, row: int, parallel: Tensor, stepwise: Tensor) -> Panel:
    """The likeliest token of each place, and its logit."""
    real = int(padding_mask(view.batch.tgt_in[row]).sum())
    columns = [f"{t}: {name}" for t, name in enumerate(view.names(view.batch.tgt_in[row, :real]))]
    rows = []
    for name, logits in (("one pass", parallel), ("steps", stepwise)):
        best = logits[row, :real].max(-1)
        rows += [
            (f"{name}: likeliest", view.names(best.indices)),
            ("logit", numbers(best.values, 5)),
        ]
    return Panel(
        "1",
        f"Pair {row + 1}: what comes after each token read, {view.weights}",
        columns[:FEATURES],
        [(name, cells[:FEATURES]) for name, cells in rows],
        shape=shape_of(parallel.shape) + _more(real - FEATURES, "place"),
        legend="token read across, with its place; likeliest token and its logit below",
    )


def _differences(view: View, row: int, apart: dict[str, Tensor]) -> Panel:
    real = int(padding_mask(view.batch.tgt_in[row]).sum())
    columns = [f"{t}: {name}" for t, name in enumerate(view.names(view.batch.tgt_in[row, :real]))]
    rows = [
        (name, [tiny(value) for value in each[row, : min(real, FEATURES)].tolist()])
        for name, each in (
            ("under the triangle", apart["step_by_step"]),
            ("without the triangle", apart["without_the_triangle"]),
        )
    ]
    return Panel(
        "2",
        "The pass beside the steps: largest difference of any logit",
        columns[:FEATURES],
        rows,
        shape=f"{len(columns)} real places{_more(real - FEATURES, 'place')}",
    )


def _verdict(worst: dict[str, float], real: Tensor) -> tuple[str, ...]:
    off = worst["step_by_step"]
    same = "Row t of the pass is step t of decoding, to rounding"
    if off > 1e-9:
        same = "Row t of the pass is NOT step t of decoding: a fault is in it"
    return (
        f"{same}: {tiny(off)} at most over {int(real.sum())} real places of {len(real)} pairs, in "
        "fp64. That is why training may read all places at once, and decoding may go step by step.",
        f"Take the triangle away, and rows know what comes: {tiny(worst['without_the_triangle'])}.",
    )


def _more(count: int, thing: str) -> str:
    return f", {count} more {thing}{'' if count == 1 else 's'}" if count > 0 else ""
