"""Masks in the conventions of other libraries: polarity, shape, dtype and argument name.

In toytrans True = may attend. The given mask itself is converted, not a new one made from ids. A
vector of keys, or a vector and a triangle, is returned only if the mask is exactly that. Any other
mask is returned whole. The rule of each library is documented in:

    torch-mha       torch.nn.MultiheadAttention, its documentation
    torch-sdpa      torch.nn.functional.scaled_dot_product_attention, its documentation
    hf              transformers, masking_utils.py: _preprocess_mask_arguments, eager_mask;
                    BART, Marian and similar models
    x-transformers  x_transformers.py: Attention.forward; attend.py: Attend
    sockeye         sockeye 3.1, sockeye/layers.py: DotAttentionCell.forward,
                    prepare_source_length_mask; sockeye/encoder.py: TransformerEncoder.forward;
                    sockeye/decoder.py: TransformerDecoder; sockeye/transformer.py:
                    AutoRegressiveMask
    t2t             tensor2tensor/layers/common_attention.py: attention_bias_ignore_padding,
                    attention_bias_lower_triangle, dot_product_attention; its models/transformer.py:
                    transformer_prepare_encoder, transformer_prepare_decoder
    joeynmt         JoeyNMT 2, joeynmt/batch.py: Batch; joeynmt/decoders.py: TransformerDecoder;
                    joeynmt/transformer_layers.py: MultiHeadedAttention
    annotated       the Annotated Transformer of 2022: Batch.make_std_mask, MultiHeadedAttention,
                    attention

In toytrans a query without a visible key gets zeros. Elsewhere it gets:

    torch-mha       NaN with need_weights=True and in the fast path (eval mode without gradients);
                    zeros otherwise
    torch-sdpa      zeros
    additive        NaN after a plain softmax
    hf              the mean of all values, pads and the future included, with eager attention;
                    with sdpa the same for a 4-D mask, zeros for a vector
    x-transformers  zeros; with `mask` every pad query gets zeros, whatever it may attend to
    sockeye         zeros in training (torch's kernel); in inference, which writes -1e8 over masked
                    scores, the mean of all values
    t2t             the mean of all values: in float32 a score next to -1e9 is rounded away
    joeynmt         NaN: it writes -inf over masked scores
    annotated       the mean of all values: it writes -1e9 over masked scores

Sockeye and tensor2tensor give the decoder only the triangle: pads come last, where no real query
sees them. A mask that masks pads too is given to them whole. The decoders of JoeyNMT and
x-transformers add the triangle themselves, and x-transformers passes only context_mask to
cross-attention: any other mask is right for their attention alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.model.masks import Masks, causal_mask


@dataclass(frozen=True)
class Converted:
    """One argument for one attention, in a library's polarity, shape and dtype.

    attention: encoder_self, decoder_self or cross.
    argument: its name in that library.
    polarity: what its values mean.
    """

    attention: str
    argument: str
    tensor: Tensor
    polarity: str


Argument = tuple[str, Tensor, str]
"""Name, tensor, polarity."""


def convert(
    masks: Masks, src: Tensor, tgt_in: Tensor, library: str, n_heads: int
) -> list[Converted]:
    """The masks of a batch, src (B, S) and tgt_in (B, T) ids, as arguments of `library`.

    Each attention has one or two arguments, in the order of Masks. Raises UserError for a library
    that is not in LIBRARIES.
    """
    if library not in _CONVENTIONS:
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
        for argument in _CONVENTIONS[library](attention, whole, n_heads)
    ]


def _torch_mha(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """key_padding_mask (B, Tk) and attn_mask (T, T), or attn_mask (B H, Tq, Tk) alone."""
    mask, polarity = getattr(masks, attention), "True = blocked"
    parts = _parts(attention, mask)
    if parts is None:
        return [("attn_mask", ~_per_head(mask, heads), polarity)]
    names = "key_padding_mask", "attn_mask"
    return [(name, ~part, polarity) for name, part in zip(names, parts, strict=False)]


def _torch_sdpa(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """attn_mask (B, 1, Tq or 1, Tk)."""
    return [("attn_mask", _compact(getattr(masks, attention)), "True = takes part")]


def _additive(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """A float mask that is added to the scores: (B, 1, Tq or 1, Tk) float32.

    It holds -inf, as torch's own modules do (nn.Transformer.generate_square_subsequent_mask). -inf
    stays -inf in any dtype, and when two masks are added. A query without a visible key becomes
    NaN, which is noticed; with a finite number it would silently become a mean over pads.
    """
    bias = _bias(_compact(getattr(masks, attention)), -torch.inf)
    return [("mask", bias, "added to scores: 0 = may attend, -inf = blocked")]


def _hf(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """A vector of keys (B, Tk) int64, or a mask (B, 1, Tq, Tk). The decoder adds its triangle.

    A 4-D mask is used unchanged (transformers 5 or later). It holds numbers to add, because eager
    attention would add a bool mask too; blocked is the lowest finite number, as in the library.
    Models have one `attention_mask` for encoder and cross-attention. If the two differ, call the
    encoder first, then the model with encoder_outputs and the mask of cross-attention.
    """
    mask = getattr(masks, attention)
    name = "decoder_attention_mask" if attention == "decoder_self" else "attention_mask"
    parts, of_encoder, when = _parts(attention, mask), _keys(masks.encoder_self), ""
    if attention == "cross" and not (
        parts and of_encoder is not None and torch.equal(parts[0], of_encoder)
    ):
        when = "; in a call with encoder_outputs"
    if parts and len(parts) == 1 + (attention == "decoder_self"):
        return [(name, parts[0].long(), f"1 = keep, 0 = blocked{when}")]
    bias = _bias(mask, torch.finfo(torch.float32).min)
    return [(name, bias, f"added to scores: 0 = keep, lowest = blocked{when}")]


def _x_transformers(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """mask or context_mask (B, Tk) and attn_mask (T, T), or attn_mask (B, 1, Tq, Tk) alone."""
    mask = getattr(masks, attention)
    parts = _parts(attention, mask)
    if parts is None:
        return [("attn_mask", mask.clone(), "True = keep")]
    names = "context_mask" if attention == "cross" else "mask", "attn_mask"
    return [(name, part, "True = keep") for name, part in zip(names, parts, strict=False)]


def _sockeye(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """(B H, Tq, Tk) bool, batch and heads in one axis; a triangle without pads (T, T)."""
    mask = getattr(masks, attention)
    names = {"encoder_self": "att_mask", "decoder_self": "target_mask", "cross": "source_mask"}
    blocked = ~(mask[0, 0] if _is_bare(attention, mask) else _per_head(mask, heads))
    return [(names[attention], blocked, "True = blocked")]


def _t2t(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """(B, 1, Tq or 1, Tk) float32; a triangle without pads (1, 1, T, T)."""
    mask = getattr(masks, attention)
    name = "encoder_decoder" if attention == "cross" else attention
    bias = _bias(mask[:1] if _is_bare(attention, mask) else _compact(mask), -1e9)
    polarity = "added to scores: 0 = may attend, -1e9 = blocked"
    return [(f"{name}_attention_bias", bias, polarity)]


def _joeynmt(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """src_mask (B, 1, S) bool, trg_mask (B, T, T) bool, pads and triangle together."""
    return _of_sides(attention, masks, "trg_mask")


def _annotated(attention: str, masks: Masks, heads: int) -> list[Argument]:
    """src_mask (B, 1, S) bool, tgt_mask (B, T, T) bool, pads and triangle together."""
    return _of_sides(attention, masks, "tgt_mask")


def _of_sides(attention: str, masks: Masks, of_target: str) -> list[Argument]:
    mask = getattr(masks, attention)
    if attention == "decoder_self":
        return [(of_target, mask[:, 0].clone(), "True = may attend")]
    return [("src_mask", _compact(mask)[:, 0], "True = may attend")]


def _parts(attention: str, mask: Tensor) -> tuple[Tensor, ...] | None:
    """(B, 1, Tq, Tk) -> the keys (B, Tk) that every query sees, or in a decoder these and the
    triangle (T, T) that is laid over them. None if the mask is not exactly that."""
    if attention == "decoder_self":
        keys = mask[:, 0].any(1)
        triangle = causal_mask(keys.shape[1], keys.device)
        if torch.equal(keys[:, None, None] & triangle, mask):
            return keys, triangle
    keys_alone = _keys(mask)
    return None if keys_alone is None else (keys_alone,)


def _keys(mask: Tensor) -> Tensor | None:
    """(B, 1, Tq, Tk) -> (B, Tk) if all queries of a pair see the same keys, else None."""
    keys = mask[:, 0].any(1)
    return keys if bool((mask == keys[:, None, None]).all()) else None


def _is_bare(attention: str, mask: Tensor) -> bool:
    """Whether a mask is the decoder's triangle, without pads."""
    parts = _parts(attention, mask) or ()
    return len(parts) == 2 and bool(parts[0].all())


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


_CONVENTIONS: dict[str, Callable[[str, Masks, int], list[Argument]]] = {
    "torch-mha": _torch_mha,
    "torch-sdpa": _torch_sdpa,
    "additive": _additive,
    "hf": _hf,
    "x-transformers": _x_transformers,
    "sockeye": _sockeye,
    "t2t": _t2t,
    "joeynmt": _joeynmt,
    "annotated": _annotated,
}
LIBRARIES: tuple[str, ...] = tuple(_CONVENTIONS)
"""Names that `convert` knows."""
