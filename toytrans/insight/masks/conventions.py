"""The same mask in another library's words: polarity, shape, dtype and argument name.

Here True = may attend. What is converted is the mask given, not one made anew from ids: a vector
of keys, or a vector and a triangle, come out only where the given mask is exactly that; anything
else comes out whole. Where each rule is written down:

    torch-mha       torch.nn.MultiheadAttention, its documentation
    torch-sdpa      torch.nn.functional.scaled_dot_product_attention, its documentation
    hf              transformers, masking_utils.py: _preprocess_mask_arguments, eager_mask;
                    BART, Marian and their kin
    x-transformers  x_transformers.py: Attention.forward; attend.py: Attend
    sockeye         sockeye 3.1, sockeye/layers.py: DotAttentionCell.forward,
                    prepare_source_length_mask; sockeye/encoder.py: TransformerEncoder.forward;
                    sockeye/decoder.py: TransformerDecoder; sockeye/transformer.py:
                    AutoRegressiveMask
    t2t             tensor2tensor/layers/common_attention.py: attention_bias_ignore_padding,
                    attention_bias_lower_triangle, dot_product_attention; its models/transformer.py:
                    transformer_prepare_encoder, transformer_prepare_decoder

A query that may look at nothing gets zeros here. Elsewhere:

    torch-mha       NaN with need_weights=True and in its fast path (eval mode without gradients);
                    zeros otherwise
    torch-sdpa      zeros
    additive        NaN after a softmax of one's own
    hf              the mean of all values, pads and the future included, with eager attention;
                    with sdpa the same for a 4-D mask, zeros for a vector
    x-transformers  zeros, which with `mask` every pad query gets, whatever it may look at
    sockeye         zeros in training (torch's kernel); in inference, which writes -1e8 over closed
                    scores, the mean of all values
    t2t             the mean of all values: in float32 a score next to -1e9 is rounded away

Sockeye and tensor2tensor give the decoder the triangle alone: pads stand last, where no real query
sees them. For a mask that closes them too they are given the whole of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.model.masks import Masks, causal_mask


@dataclass(frozen=True)
class Converted:
    """One argument for one attention, ready to be passed."""

    attention: str
    """encoder_self, decoder_self or cross"""
    argument: str
    """its name in that library"""
    tensor: Tensor
    """in that library's polarity, shape and dtype"""
    says: str
    """its polarity in one short sentence"""


Argument = tuple[str, Tensor, str]
"""Name, tensor, polarity."""


def convert(
    masks: Masks, src: Tensor, tgt_in: Tensor, library: str, n_heads: int
) -> list[Converted]:
    """The masks of a batch, src (B, S) and tgt_in (B, T) ids, as `library` takes them.

    One argument or two for each attention, in the order of Masks. Raises UserError for a library
    that is not in LIBRARIES.
    """
    if library not in _WAYS:
        raise UserError(f"unknown library {library!r}: known are {', '.join(LIBRARIES)}")
    rows, width, height = len(src), src.shape[1], tgt_in.shape[1]
    whole = Masks(
        masks.encoder_self.expand(rows, 1, width, width),
        masks.decoder_self.expand(rows, 1, height, height),
        masks.cross.expand(rows, 1, height, width),
    )
    return [
        Converted(attention, *argument)
        for attention in Masks._fields
        for argument in _WAYS[library](attention, whole, n_heads)
    ]


def _torch_mha(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """key_padding_mask (B, Tk) and attn_mask (T, T), or attn_mask (B H, Tq, Tk) alone."""
    mask, says = getattr(masks, attention), "True = blocked"
    keys = _keys_under_triangle(mask)
    if attention == "decoder_self" and keys is not None:
        triangle = causal_mask(keys.shape[1], keys.device)
        return [("key_padding_mask", ~keys, says), ("attn_mask", ~triangle, says)]
    keys = _keys(mask)
    if keys is not None:
        return [("key_padding_mask", ~keys, says)]
    return [("attn_mask", ~_per_head(mask, heads), says)]


def _torch_sdpa(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """attn_mask (B, 1, Tq or 1, Tk)."""
    return [("attn_mask", _compact(getattr(masks, attention)), "True = takes part")]


def _additive(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """What attention written by hand adds to its scores: (B, 1, Tq or 1, Tk) float32.

    -inf, as torch's own modules have it (nn.Transformer.generate_square_subsequent_mask): it stays
    -inf in any dtype and when two masks are added, while float32's lowest finite number changes
    into it on the way to half precision. A row that sees nothing becomes NaN, which is seen at
    once; with the finite number it would silently be a mean over pads.
    """
    bias = _bias(_compact(getattr(masks, attention)), -torch.inf)
    return [("mask", bias, "added to scores: 0 = may attend, -inf = blocked")]


def _hf(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """A vector of keys (B, Tk) int64, the decoder adding its triangle itself; or (B, 1, Tq, Tk).

    A 4-D mask is used as it is (transformers 5 or later). It holds numbers to add, for eager
    attention would add a bool mask too; the lowest finite one, as in the library's own. Model
    calls have one `attention_mask` for the encoder and for cross-attention: where the two differ,
    the encoder is called by itself and the model then with its encoder_outputs and the mask of
    cross-attention.
    """
    mask, says = getattr(masks, attention), ""
    if attention == "decoder_self":
        argument, keys = "decoder_attention_mask", _keys_under_triangle(mask)
    else:
        argument, keys = "attention_mask", _keys(mask)
        if attention == "cross" and not _same(keys, _keys(masks.encoder_self)):
            says = "; in a call with encoder_outputs"
    if keys is not None:
        return [(argument, keys.long(), f"1 = keep, 0 = blocked{says}")]
    bias = _bias(mask, torch.finfo(torch.float32).min)
    return [(argument, bias, f"added to scores: 0 = keep, lowest = blocked{says}")]


def _x_transformers(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """mask or context_mask (B, Tk) and attn_mask (T, T), or attn_mask (B, 1, Tq, Tk) alone.

    Decoder adds the triangle itself, which an attn_mask of it does not change, and passes only
    context_mask to cross-attention; the module Attention takes all of them.
    """
    mask, says = getattr(masks, attention), "True = keep"
    keys = _keys_under_triangle(mask)
    if attention == "decoder_self" and keys is not None:
        triangle = causal_mask(keys.shape[1], keys.device)
        return [("mask", keys, says), ("attn_mask", triangle, says)]
    keys = _keys(mask)
    if attention == "decoder_self" and (mask & ~causal_mask(mask.shape[-1], mask.device)).any():
        says += "; for Attention, as Decoder would close the future"
    if keys is not None:
        return [("context_mask" if attention == "cross" else "mask", keys, says)]
    if attention == "cross":
        says += "; for Attention, as Decoder has context_mask alone"
    return [("attn_mask", mask.clone(), says)]


def _sockeye(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """(B H, Tq, Tk) bool, batch and heads in one axis; a triangle without pads (T, T)."""
    mask = getattr(masks, attention)
    names = {"encoder_self": "att_mask", "decoder_self": "target_mask", "cross": "source_mask"}
    bare = attention == "decoder_self" and _is_triangle(mask)
    blocked = ~(mask[0, 0] if bare else _per_head(mask, heads))
    return [(names[attention], blocked, "True = blocked")]


def _t2t(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """(B, 1, Tq or 1, Tk) float32; a triangle without pads (1, 1, T, T)."""
    mask = getattr(masks, attention)
    name = "encoder_decoder" if attention == "cross" else attention
    bare = attention == "decoder_self" and _is_triangle(mask)
    bias = _bias(mask[:1] if bare else _compact(mask), -1e9)
    says = "added to scores: 0 = may attend, -1e9 = blocked"
    return [(f"{name}_attention_bias", bias, says)]


def _keys(mask: Tensor) -> Tensor | None:
    """(B, 1, Tq, Tk) -> (B, Tk) if all queries of a pair see the same keys, else None."""
    keys = mask[:, 0].any(1)
    return keys if bool((mask == keys[:, None, None]).all()) else None


def _keys_under_triangle(mask: Tensor) -> Tensor | None:
    """(B, 1, T, T) -> (B, T) if query t sees those of the pair's keys up to t, else None."""
    queries, width = mask.shape[2:]
    if queries != width:
        return None
    keys = mask[:, 0].any(1)
    both = keys[:, None, None] & causal_mask(width, mask.device)
    return keys if torch.equal(both, mask) else None


def _is_triangle(mask: Tensor) -> bool:
    keys = _keys_under_triangle(mask)
    return keys is not None and bool(keys.all())


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


def _compact(mask: Tensor) -> Tensor:
    """(B, 1, Tq, Tk) -> (B, 1, 1, Tk) if all queries of a pair see the same keys."""
    keys = _keys(mask)
    return mask.clone() if keys is None else keys[:, None, None]


def _per_head(mask: Tensor, heads: int) -> Tensor:
    """(B, 1, Tq, Tk) -> (B H, Tq, Tk): pair b and head h at b H + h."""
    return mask[:, 0].repeat_interleave(heads, 0)


def _bias(mask: Tensor, blocked: float) -> Tensor:
    """0 where the mask is True, else `blocked`: float32."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, blocked)


_WAYS: dict[str, Callable[[str, Masks, int], list[Argument]]] = {
    "torch-mha": _torch_mha,
    "torch-sdpa": _torch_sdpa,
    "additive": _additive,
    "hf": _hf,
    "x-transformers": _x_transformers,
    "sockeye": _sockeye,
    "t2t": _t2t,
}
LIBRARIES: tuple[str, ...] = tuple(_WAYS)
"""Names that `convert` knows."""
