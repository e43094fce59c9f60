"""Which query may attend to which key, why, and what that does to the softmax: tables of masks.

In toytrans True = may attend. For other libraries the given mask itself is converted, not a new one
made from ids. A vector of keys, or a vector and a triangle, is returned only if the mask is exactly
that. Any other mask is returned whole. Where each rule is documented, and what a query without a
visible key gets (in toytrans zeros):

    torch-mha       nn.MultiheadAttention: NaN with need_weights=True and in eval mode without
                    gradients, else zeros
    torch-sdpa      F.scaled_dot_product_attention: zeros
    additive        nn.Transformer.generate_square_subsequent_mask: NaN, which is noticed
    hf              transformers 5, masking_utils.py: eager_mask and others; BART, Marian: the mean
                    of all values; zeros for a vector with sdpa
    x-transformers  x_transformers.py: Attention; attend.py: Attend: zeros; with `mask` in every row
                    of a pad
    sockeye         sockeye 3.1, layers.py: DotAttentionCell; transformer.py: AutoRegressiveMask:
                    zeros in training, in inference the mean of all values (-1e8)
    t2t             tensor2tensor, common_attention.py: attention_bias_ignore_padding,
                    attention_bias_lower_triangle: the mean of all values (-1e9 in float32)
    joeynmt         JoeyNMT 2, batch.py: Batch; transformer_layers.py: MultiHeadedAttention: NaN
    annotated       the Annotated Transformer of 2022, Batch.make_std_mask, attention: the mean of
                    all values (-1e9)

Sockeye and tensor2tensor themselves give the decoder only the triangle: pads come last, where no
real query sees them. The decoders of JoeyNMT and x-transformers add the triangle themselves, and
x-transformers passes only context_mask to cross-attention: any other mask is right for their
attention alone.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from toytrans.config.schema import PadMask
from toytrans.errors import UserError
from toytrans.inspection.shown import ATTENTIONS, REASONS, InspectedBatch, Masks
from toytrans.inspection.table import (
    CLOSED,
    Table,
    count,
    label,
    mask_cells,
    number,
    numbers,
    shape_of,
)
from toytrans.model.attention import AttentionContext
from toytrans.model.masks import MaskMaker, causal_mask, padding_mask
from toytrans.tokens import PAD_ID

MARKS = f"1 = may attend, {CLOSED} = masked; queries down, keys across"


def tables(inspected: InspectedBatch) -> Iterator[Table]:
    """Tables 1 to 9: the batch, every mask of every pair, what masks do, and their polarity."""
    rows = range(len(inspected.batch.src))
    yield from (pair_table(inspected, row) for row in rows)
    for row in rows:
        yield source_pads(inspected, row)
        yield from _both_pad_masks(inspected, row)
        yield from decoder_self(inspected, row)
        yield cross(inspected, row)
        yield from (_reasons(inspected, row, name) for name in ATTENTIONS)
    yield _empty_rows(inspected)
    yield _softmax_row(inspected)
    note = (
        "Here 1 = True = may attend, as in scaled_dot_product_attention. Other libraries mean the "
        "opposite: --as LIBRARY prints these masks in a library's own convention."
    )
    yield Table("9", "Polarity", [], [], notes=(note,))


def notes_of_batch(inspected: InspectedBatch) -> tuple[str, str]:
    """Whether the targets are shifted, and which ids the masks are made from."""
    batch = inspected.batch
    following, labels = batch.tgt_in[:, 1:], batch.tgt_out[:, :-1]
    shift = "tgt_out is NOT tgt_in shifted by one place: a fault is in it."
    if torch.equal(following, labels.where(padding_mask(following), PAD_ID)):
        shift = "tgt_out is tgt_in shifted by one place: after reading tgt_in up to a place, the "
        shift += "decoder must predict the token below it."
    return shift, "The decoder's pad mask is made from tgt_in, the loss mask from tgt_out."


def pair_table(inspected: InspectedBatch, row: int) -> Table:
    """Table 1: tokens and ids of a pair, tgt_in above tgt_out, and the labels that count."""
    lines: list[tuple[str, list[str]]] = []
    real = []
    for name, ids in inspected.batch.named().items():
        lines += [(name, inspected.names(ids[row])), ("id", [str(i) for i in ids[row].tolist()])]
        real.append(f"{name} {int(padding_mask(ids[row]).sum())} of {ids.shape[1]}")
    lines += [("loss", cells) for cells in mask_cells(padding_mask(inspected.batch.tgt_out[[row]]))]
    width = max(len(cells) for _, cells in lines)
    return Table(
        "1",
        f"Batch, pair {row + 1}",
        [str(place) for place in range(width)],
        [(name, cells + [""] * (width - len(cells))) for name, cells in lines],
        shape=f"real places: {', '.join(real)}",
        legend=f"places across; loss: 1 = label counted, {CLOSED} = label ignored",
        notes=notes_of_batch(inspected) if row == len(inspected.batch.src) - 1 else (),
    )


def source_pads(inspected: InspectedBatch, row: int) -> Table:
    """Table 2: from the ids of the source to the broadcast mask."""
    mask, full = inspected.masks.encoder_self, inspected.full_mask("encoder_self")[row]
    note = f"{int((~full).sum())} of {full.numel()} cells masked"
    note += "; every query sees the same keys" if mask.shape[2] == 1 else ""
    ids = inspected.batch.src
    return _mask(inspected, "2", "Source pads", "encoder_self", row, mask, note, ids=ids)


def _both_pad_masks(inspected: InspectedBatch, row: int) -> Iterator[Table]:
    """Table 3: pads masked as keys, and as keys and queries, whichever the model uses."""
    src = inspected.batch.src
    pads = int((~padding_mask(src[row])).sum())
    effects = {
        "keys": f"Pad columns are masked. {count(pads, 'pad row')} still attend; no query reads "
        "them.",
        "keys_and_queries": f"Pad rows are masked too: {count(pads, 'row')} without a visible key.",
    }
    for setting in get_args(PadMask):
        used = " (this model's)" if setting == inspected.model.settings.pad_mask else ""
        effect = effects[setting] if pads else "This pair has no pads, so both are the same."
        notes = effect, f"model.pad_mask: {setting}{used}"
        name = f"Encoder self, {'keys only' if setting == 'keys' else label(setting)}"
        mask = MaskMaker(setting).encoder_self(src)
        yield _mask(inspected, "3", name, "encoder_self", row, mask, *notes, sees=True)


def decoder_self(inspected: InspectedBatch, row: int) -> Iterator[Table]:
    """Table 4: pads, the causal mask, and the mask that the model used."""
    tgt_in = inspected.batch.tgt_in
    right = MaskMaker(inspected.model.settings.pad_mask).decoder_self(tgt_in)[:, 0]
    combined = "masked where either is masked"
    if not torch.equal(inspected.full_mask("decoder_self"), right):
        combined = "NOT the two combined: a fault is in it"
    triangle, used = causal_mask(tgt_in.shape[1])[None, None], inspected.masks.decoder_self
    past = "a query sees itself and the keys before it"
    for title, mask, note in (
        ("pads", padding_mask(tgt_in)[:, None, None, :], "from tgt_in"),
        ("triangle", triangle, past),
        ("as used", used, combined),
    ):
        name = f"Decoder self, {title}"
        yield _mask(inspected, "4", name, "decoder_self", row, mask, note, sees=mask is used)


def cross(inspected: InspectedBatch, row: int) -> Table:
    """Table 5: target places down, source places across. Only source pads are masked."""
    full = inspected.full_mask("cross")
    src, tgt_in = inspected.batch.src, inspected.batch.tgt_in
    if torch.equal(full, padding_mask(src)[:, None].expand_as(full)):
        note = "Only source pads are masked, for every query alike. The loss ignores target pads."
    elif torch.equal(full, MaskMaker("keys_and_queries").cross(src, tgt_in)[:, 0]):
        note = "Source pads are masked as keys, and target pads as queries."
    else:
        note = "NOT the source's pads: a fault is in it."
    mask = inspected.masks.cross
    return _mask(inspected, "5", "Cross-attention", "cross", row, mask, note, ids=src)


def _reasons(inspected: InspectedBatch, row: int, name: str) -> Table:
    """Table 6: a letter in each masked cell, and how many there are of each."""
    grid = inspected.reasons(name)[row]
    queries, keys = inspected.tokens(name, row)
    letters = [letter for line in grid for letter in line]
    counts = {letter: letters.count(letter) for letter in REASONS if letter in letters}
    wrong = counts.get("!", 0)
    each = ", ".join(f"{letter} {n}" for letter, n in counts.items() if letter != "!")
    notes = [f"masked {sum(counts.values()) - wrong} of {len(letters)}{each and ': '}{each}"]
    if wrong:
        notes.append(f"{count(wrong, 'cell')} (!) visible, but a pad key or the future")
    shown = [letter for letter in REASONS if letter in "ptbq" or letter in counts]
    return Table(
        "6",
        f"Reasons, {label(name)}, pair {row + 1}",
        keys,
        list(zip(queries, grid, strict=True)),
        shape=f"{len(queries)} x {len(keys)}",
        legend="; ".join(f"{letter} = {REASONS[letter]}" for letter in shown),
        notes=tuple(notes),
        marks=True,
    )


def _mask(
    inspected: InspectedBatch,
    number: str,
    name: str,
    attention: str,
    row: int,
    mask: Tensor,
    *notes: str,
    ids: Tensor | None = None,
    sees: bool = False,
) -> Table:
    """One pair of a mask (B or 1, 1, Tq or 1, Tk).

    ids: what it is made from, for the shapes. sees: print how many keys each query sees.
    """
    queries, keys = inspected.tokens(attention, row)
    full = mask.expand(len(inspected.batch.src), 1, len(queries), -1)
    cells = mask_cells(full[row, 0])
    if sees:
        keys = [*keys, "| sees"]
        for line, seen in zip(cells, full[row, 0].sum(-1).tolist(), strict=True):
            line.append(f"| {seen:>4}")
    shapes: Sequence[Tensor] = [mask, full] if ids is None else [ids, mask, full]
    shape = shape_of(*(each.shape for each in shapes))
    rows = list(zip(queries, cells, strict=True))
    return Table(number, f"{name}, pair {row + 1}", keys, rows, shape, MARKS, notes, marks=True)


# What masks do to the numbers ----------------------------------------------------------------


def _empty_rows(inspected: InspectedBatch) -> Table:
    """Table 7: queries without a visible key, and what each policy makes of one: the last query of
    encoder self-attention in the pair with the most pads."""
    listed = []
    for name, title in ATTENTIONS.items():
        for row, closed in enumerate(~inspected.full_mask(name).any(-1)):
            if places := ", ".join(map(str, closed.nonzero()[:, 0].tolist())):
                listed.append(f"{title.lower()}, pair {row + 1}: places {places}")
    src, call = inspected.batch.src, inspected.calls["encoder_self"]
    row, query = int((~padding_mask(src)).sum(1).argmax()), src.shape[1] - 1
    mask = inspected.full_mask("encoder_self")[:, None].clone()  # (B, 1, S, S)
    mask[row, 0, query] = False
    positions, distances = call.context.positions, call.context.distances
    context = AttentionContext.of(mask, call.x.dtype, positions, distances)
    place = row, 0, query
    closed = call.intermediates(context)
    scores = call.unmasked().masked[place]  # (Tk,), finite
    lowest = closed.masked[place]
    uniform = lowest.softmax(-1)
    keys = inspected.names(src[row])
    on_pads = number(uniform[~padding_mask(src[row])].sum(), 3)
    return Table(
        "7",
        "Queries without a visible key",
        keys,
        [
            ("scores", numbers(scores)),
            ("-inf, softmax", numbers((scores - math.inf).softmax(-1), 3)),
            ("lowest, softmax", numbers(uniform, 3)),
            ("zeroed (here)", numbers(closed.weights[place], 3)),
        ],
        shape=f"were no key visible to query {keys[query]}, place {query}, of pair {row + 1}",
        legend=f"weights of that query over its keys; layer 1, head 1, {inspected.weights}",
        notes=(
            f"In this batch: {'; '.join(listed) or 'none'}.",
            f"-inf gives NaN. The lowest finite number ({number(lowest.min())}) gives the mean of "
            f"all values, {on_pads} of it over pads. Zeroing gives zeros.",
        ),
    )


def _softmax_row(inspected: InspectedBatch) -> Table:
    """Table 8: from the raw product to the weight of head 1, with the mask and without it, for a
    query of the decoder with a past, a future and pads if possible."""
    tgt_in, call = inspected.batch.tgt_in, inspected.calls["decoder_self"]
    width, real = tgt_in.shape[1], padding_mask(tgt_in)
    lengths = real.sum(1).tolist()
    # pads first, but a lone BOS has no future
    row = max(range(len(lengths)), key=lambda r: (lengths[r] > 1, width - lengths[r]))
    query = (lengths[row] - 1) // 2
    place, names = (row, 0, query), inspected.names(tgt_in[row])
    future = torch.arange(width) > query
    masked, unmasked = call.intermediates(), call.unmasked()
    steps = [("q k^T", masked.q[place] @ masked.k[row, 0].T), ("scaled", masked.scores[place])]
    if call.module.cap:
        steps.append(("capped", masked.capped[place]))
    if call.module.position_bias(call.context) is not None:
        steps.append(("+ bias", unmasked.masked[place]))
    steps.append(("+ mask", masked.masked[place]))
    rows = [(title, [*numbers(values), "|"]) for title, values in steps]
    for prefix, version in (("", masked), ("unmasked ", unmasked)):
        scores = version.masked[place]
        sums = {"exp": (scores - scores.max()).exp(), "weight": version.weights[place]}
        for title, values in sums.items():
            total = f"| {number(values.sum(), 3)}"
            rows.append((prefix + title, [*numbers(values, 3), total]))
    (allowed,) = mask_cells(inspected.full_mask("decoder_self")[row, [query]])
    leaks = []
    for how, each in (("Without", unmasked), ("With", masked)):
        weights = each.weights[place]
        pads, later = (number(weights[x].sum(), 3) for x in (~real[row], future & real[row]))
        leaks.append(f"{how} the mask {pads} of the weight is on pads and {later} on later tokens.")
    return Table(
        "8",
        f"Softmax of one row: decoder self-attention, pair {row + 1}, query {names[query]} "
        f"(place {query})",
        [*names, "| sum"],
        [("may attend", [*allowed, "|"]), *rows],
        shape=f"{shape_of(masked.weights.shape)}, one row; layer 1, head 1, {inspected.weights}",
        legend=f"scaled = q k^T x {number(call.module.scale, 3)} (heads are "
        f"{masked.q.shape[-1]} wide); exp of x - the largest x; weight = exp / sum",
        notes=(
            *leaks,
            "-1e9 does not fit into float16, whose lowest number is "
            f"{number(torch.finfo(torch.float16).min, 0)}: it becomes -inf there.",
        ),
    )


# Other libraries -----------------------------------------------------------------------------

LIBRARIES = (
    *("torch-mha", "torch-sdpa", "additive", "hf", "x-transformers"),
    *("sockeye", "t2t", "joeynmt", "annotated"),
)


class Converted(NamedTuple):
    """One argument for one attention of `Masks`, and what its values mean."""

    attention: str
    argument: str
    tensor: Tensor
    polarity: str


def convert(masks: Masks, library: str, n_heads: int) -> list[Converted]:
    """The masks of a batch as arguments of `library`: one or two for each attention, in order.

    Raises UserError for a library that is not in LIBRARIES.
    """
    if library not in LIBRARIES:
        raise UserError(f"unknown library {library!r}: known are {', '.join(LIBRARIES)}")
    source, target = masks.encoder_self.shape[-1], masks.decoder_self.shape[-1]
    shapes = ((source, source), (target, target), (target, source))
    whole = [mask.expand(-1, 1, *shape) for mask, shape in zip(masks, shapes, strict=True)]
    return [
        Converted(attention, *argument)
        for attention, mask in zip(Masks._fields, whole, strict=True)
        for argument in _arguments(library, attention, mask, n_heads)
    ]


def _arguments(
    library: str, attention: str, mask: Tensor, heads: int
) -> list[tuple[str, Tensor, str]]:
    """The name, the tensor and the polarity of each argument. mask: (B, 1, Tq, Tk)."""
    of_decoder = attention == "decoder_self"
    parts = _parts(mask, of_decoder)
    compact = parts[0][:, None, None] if len(parts) == 1 else mask.clone()  # (B, 1, Tq or 1, Tk)
    per_head = mask[:, 0].repeat_interleave(heads, 0)  # (B H, Tq, Tk): pair b, head h at b H + h
    match library:
        case "torch-mha":  # (B, Tk) and (T, T), or (B H, Tq, Tk)
            if not parts:
                return [("attn_mask", ~per_head, "True = blocked")]
            names = "key_padding_mask", "attn_mask"
            return [
                (name, ~part, "True = blocked") for name, part in zip(names, parts, strict=False)
            ]
        case "x-transformers":  # (B, Tk) and (T, T), or (B, 1, Tq, Tk)
            if not parts:
                return [("attn_mask", mask.clone(), "True = keep")]
            names = "context_mask" if attention == "cross" else "mask", "attn_mask"
            return [(name, part, "True = keep") for name, part in zip(names, parts, strict=False)]
        case "hf":  # (B, Tk) int64, and the decoder adds its triangle; or (B, 1, Tq, Tk), as it is
            name = "decoder_attention_mask" if of_decoder else "attention_mask"
            if len(parts) == 1 + of_decoder:
                return [(name, parts[0].long(), "1 = keep, 0 = blocked")]
            polarity = "added to scores: 0 = keep, lowest = blocked"
            return [(name, _bias(mask, torch.finfo(torch.float32).min), polarity)]
        case "torch-sdpa":
            return [("attn_mask", compact, "True = takes part")]
        case "additive":
            polarity = "added to scores: 0 = may attend, -inf = blocked"
            return [("mask", _bias(compact, -torch.inf), polarity)]
        case "sockeye":
            first = {"encoder_self": "att", "decoder_self": "target", "cross": "source"}
            return [(f"{first[attention]}_mask", ~per_head, "True = blocked")]
        case "t2t":
            name = "encoder_decoder" if attention == "cross" else attention
            polarity = "added to scores: 0 = may attend, -1e9 = blocked"
            return [(f"{name}_attention_bias", _bias(compact, -1e9), polarity)]
    # JoeyNMT and the Annotated Transformer: (B, 1, S), or (B, T, T), pads and triangle together
    name = ("trg_mask" if library == "joeynmt" else "tgt_mask") if of_decoder else "src_mask"
    return [(name, (mask.clone() if of_decoder else compact)[:, 0], "True = may attend")]


def _parts(mask: Tensor, of_decoder: bool) -> tuple[Tensor, ...]:
    """The keys (B, Tk) that every query of a mask (B, 1, Tq, Tk) sees, in a decoder perhaps with
    the triangle (T, T) that is laid over them; empty if the mask is not exactly that."""
    keys = mask[:, 0].any(1)
    if of_decoder:
        triangle = causal_mask(keys.shape[1], keys.device)
        if torch.equal(keys[:, None, None] & triangle, mask):
            return keys, triangle
    return (keys,) if bool((mask == keys[:, None, None]).all()) else ()


def _bias(mask: Tensor, blocked: float) -> Tensor:
    """0 where the mask is True, else `blocked`: float32."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, blocked)


def converted(inspected: InspectedBatch, library: str) -> Iterator[Table]:
    """The batch, and its masks as another library's arguments, with the shapes of the batch."""
    rows = range(len(inspected.batch.src))
    yield from (pair_table(inspected, row) for row in rows)
    given = convert(inspected.masks, library, inspected.model.settings.n_heads)
    for row in rows:
        for attention, argument, tensor, polarity in given:
            # a triangle (T, T) belongs to every pair
            shared = argument == "attn_mask" and tensor.dim() == 2
            table = tensor if shared else tensor.chunk(len(rows))[row]
            notes = [f"{polarity}."]
            if table.dim() == 3 and len(table) > 1:
                notes.append(f"Shown: the first of {len(table)} heads, all the same.")
            while table.dim() > 2:  # heads, or an axis of 1
                table = table[0]
            queries, keys = inspected.tokens(attention, row)
            names = queries if len(table) == len(queries) else ["all"] * len(table)
            short = number if table.is_floating_point() else lambda value: str(value)[0]
            cells = [[short(value) for value in line] for line in table.tolist()]
            yield Table(
                library,
                f"{ATTENTIONS[attention]}: {argument}, pair {row + 1}",
                keys,
                list(zip(names, cells, strict=True)),
                shape=f"{shape_of(tensor.shape)}, {str(tensor.dtype).removeprefix('torch.')}",
                legend="T = True, F = False" if table.dtype == torch.bool else "",
                notes=tuple(notes),
            )
    notes = ["Below each mask stands its polarity. Without --as, 1 = True = may attend."]
    if library == "hf" and not torch.equal(given[0].tensor, given[-1].tensor):
        notes.append(
            "attention_mask is two masks here: run the encoder with the first. The call of the "
            "model then takes encoder_outputs, and the last."
        )
    yield Table("9", "Polarity", [], [], notes=tuple(notes))
