"""The masks of a batch as arguments of other libraries.

The given mask itself is converted, not a new one made from ids; in toytrans True = may attend. A
vector of keys, or a vector and a triangle, is returned only if the mask is exactly
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

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.inspection.masks import pair_table
from toytrans.inspection.panels import number, panel, shape_of
from toytrans.inspection.shown import ATTENTIONS, InspectedBatch, Masks
from toytrans.model.masks import causal_mask
from toytrans.table import Table

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
            yield panel(
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
    yield panel("9", "Polarity", [], [], notes=tuple(notes))
