"""Masks in other libraries' words: those libraries, given them, compute what we compute."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import x_transformers
from conftest import VOCABULARY, masks_of, model_of
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.errors import UserError
from toytrans.exports.to_huggingface import converted
from toytrans.inspection.other_libraries import LIBRARIES, convert
from toytrans.inspection.shown import Masks
from toytrans.model.attention import Attention, AttentionContext
from toytrans.model.masks import MaskMaker
from toytrans.tokens import PAD_ID

HEADS = 3  # of model_of
ATTENTIONS = Masks._fields


BATCHES = [
    (
        torch.tensor([[5, 6, 7, 8, 9, 2], [2, 0, 0, 0, 0, 0], [4, 5, 2, 0, 0, 0]]),
        torch.tensor([[1, 8, 4, 0, 0], [1, 0, 0, 0, 0], [1, 5, 6, 7, 4]]),
    ),
    (
        torch.tensor([[5, 0, 6, 0, 2], [0, 0, 2, 0, 0], [3, 4, 5, 6, 2]]),
        torch.tensor([[1, 0, 5, 0], [1, 0, 0, 0], [1, 3, 0, 8]]),
    ),
]
"""src and tgt_in, with pads behind and between, and with a single token."""


def projected(attention: Attention, x: Tensor, memory: Tensor) -> list[Tensor]:
    """Queries of x and keys and values of memory, (B, H, L, Dh) each."""
    linears = zip(attention.in_proj.weight.chunk(3), attention.in_proj.bias.chunk(3), strict=True)
    return [
        F.linear(y, weight, bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for y, (weight, bias) in zip((x, memory, memory), linears, strict=True)
    ]


def merged(attention: Attention, context: Tensor) -> Tensor:
    return attention.out_proj(context.transpose(1, 2).flatten(2))


def with_torch_mha(
    attention: Attention, x: Tensor, memory: Tensor, need_weights: bool = False, **given: Tensor
) -> Tensor:
    theirs = nn.MultiheadAttention(x.shape[-1], HEADS, batch_first=True, dtype=x.dtype)
    ours = attention.state_dict()
    theirs.load_state_dict({name.replace("in_proj.", "in_proj_"): ours[name] for name in ours})
    return theirs(x, memory, memory, need_weights=need_weights, **given)[0]


def with_torch_sdpa(attention: Attention, x: Tensor, memory: Tensor, **given: Tensor) -> Tensor:
    context = F.scaled_dot_product_attention(*projected(attention, x, memory), **given)
    return merged(attention, context)


def with_x_transformers(
    attention: Attention, x: Tensor, memory: Tensor, flash: bool = True, **given: Tensor
) -> Tensor:
    """It has no biases, so those of `attention` must be zero; without flash its softmax is fp32."""
    assert not attention.in_proj.bias.any() and not attention.out_proj.bias.any()
    width = x.shape[-1]
    theirs = x_transformers.Attention(width, heads=HEADS, dim_head=width // HEADS, flash=flash)
    theirs.to(x.dtype)
    names = ("to_q.weight", "to_k.weight", "to_v.weight")
    weights = dict(zip(names, attention.in_proj.weight.chunk(3), strict=True))
    theirs.load_state_dict(weights | {"to_out.weight": attention.out_proj.weight})
    return theirs(x, context=None if memory is x else memory, **given)


def written(write: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Attention whose scores (B, H, Tq, Tk) and one mask become what softmax gets."""

    def attend(attention: Attention, x: Tensor, memory: Tensor, **given: Tensor) -> Tensor:
        (mask,), (q, k, v) = given.values(), projected(attention, x, memory)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return merged(attention, torch.softmax(write(scores, mask), -1) @ v)

    return attend


WAYS: dict[str, Any] = {
    "torch-mha": with_torch_mha,
    "torch-sdpa": with_torch_sdpa,
    "additive": written(torch.add),
    "x-transformers": with_x_transformers,
    # sockeye 3.1, layers.py: DotAttentionCell.forward, in inference
    "sockeye": written(lambda scores, mask: scores.masked_fill(mask.view_as(scores), -1e8)),
    # tensor2tensor, layers/common_attention.py: dot_product_attention
    "t2t": written(torch.add),
    # JoeyNMT 2, transformer_layers.py: MultiHeadedAttention
    "joeynmt": written(lambda scores, mask: scores.masked_fill(~mask[:, None], -torch.inf)),
    # the Annotated Transformer: attention
    "annotated": written(lambda scores, mask: scores.masked_fill(mask[:, None] == 0, -1e9)),
}


def attention_of(name: str, library: str) -> Attention:
    model = model_of(VOCABULARY, positions="none")
    found = {
        "encoder_self": model.encoder_layers[0].self_attention,
        "decoder_self": model.decoder_layers[0].self_attention,
        "cross": model.decoder_layers[0].cross_attention,
    }[name]
    if library == "x-transformers":
        nn.init.zeros_(found.in_proj.bias)
        nn.init.zeros_(found.out_proj.bias)
    return found


def both(
    name: str, masks: Masks, src: Tensor, tgt_in: Tensor, library: str
) -> tuple[Tensor, Tensor]:
    """Our output and theirs, (B, Tq, D) each, of one attention over random x."""
    attention = attention_of(name, library)
    x = torch.randn(*(src if name == "encoder_self" else tgt_in).shape, 24).double()
    memory = torch.randn(*src.shape, 24).double() if name == "cross" else x
    arguments = convert(masks, library, HEADS)
    assert [*dict.fromkeys(each.attention for each in arguments)] == [*ATTENTIONS]
    given = {each.argument: each.tensor for each in arguments if each.attention == name}
    keys_values = attention.project_kv(memory) if name == "cross" else None
    ours = attention(x, AttentionContext.of(getattr(masks, name), x.dtype), keys_values)
    return ours, WAYS[library](attention, x, memory, **given)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("library", WAYS)
def test_with_our_weights_a_library_computes_our_attention(library, batch):
    """By our masks at real places; by any mask at all, whose queries see one key at least, at all.

    The latter is drawn by chance, pads included.
    """
    src, tgt_in = batch
    rows, width, height = len(src), src.shape[1], tgt_in.shape[1]
    shapes = ((width, width), (height, height), (height, width))
    drawn = Masks(*(torch.rand(rows, 1, *shape) < 0.4 for shape in shapes))
    for mask in drawn:
        mask[..., 0] |= ~mask.any(-1)
    assert (~masks_of(MaskMaker(), src, tgt_in).decoder_self & drawn.decoder_self).any()
    assert {*WAYS, "hf"} == set(LIBRARIES), "every library is tried"
    for name in ATTENTIONS:
        real = (src if name == "encoder_self" else tgt_in) != PAD_ID
        for masks, where in (
            (masks_of(MaskMaker("keys"), src, tgt_in), real),
            (masks_of(MaskMaker("keys_and_queries"), src, tgt_in), real),
            (drawn, torch.ones_like(real)),
        ):
            ours, theirs = both(name, masks, src, tgt_in, library)
            assert ours[where].abs().max() > 0.01
            assert torch.allclose(ours[where], theirs[where], rtol=0, atol=1e-12), name


def test_an_unknown_library_is_refused():
    src = torch.tensor([[4, 2]])
    with pytest.raises(UserError, match="'fairseq': known are torch-mha, .*annotated$"):
        convert(masks_of(MaskMaker(), src, src), "fairseq", 2)


@pytest.mark.parametrize(
    "library, options, left",
    [
        ("torch-mha", {}, "zeros"),
        ("torch-mha", {"need_weights": True}, "nan"),
        ("torch-sdpa", {}, "zeros"),
        ("additive", {}, "nan"),
        ("x-transformers", {}, "zeros"),
        ("x-transformers", {"flash": False}, "zeros"),
        ("sockeye", {}, "mean"),
        ("t2t", {}, "mean"),
        ("joeynmt", {}, "nan"),
        ("annotated", {}, "mean"),
    ],
)
def test_what_a_query_gets_that_sees_nothing(library, options, left):
    """In fp32, of one pair whose source is two pads."""
    src, tgt_in = torch.tensor([[0, 0], [4, 2]]), torch.tensor([[1, 4, 5], [1, 4, 5]])
    masks = masks_of(MaskMaker(), src, tgt_in)
    assert not masks.cross[0].any()
    attention = attention_of("cross", library).float()
    x, memory = torch.randn(2, 3, 24), torch.randn(2, 2, 24)
    arguments = convert(masks, library, HEADS)
    given = {each.argument: each.tensor for each in arguments if each.attention == "cross"}
    output = WAYS[library](attention, x, memory, **given, **options)[0]
    _, _, v = projected(attention, x, memory)
    mean = merged(attention, v.mean(2, keepdim=True).expand(-1, -1, 3, -1))[0]
    zeros = attention.out_proj.bias.expand(3, -1)
    expected = {"zeros": zeros, "mean": mean, "nan": torch.full((3, 24), torch.nan)}[left]
    assert torch.allclose(output, expected, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
def test_marian_computes_our_logits(pad_mask, implementation, batch):
    """Where queries are masked too, cross-attention has its own mask beside encoder_outputs."""
    src, tgt_in = batch
    model = model_of(VOCABULARY, positions="sinusoidal", norm="post", pad_mask=pad_mask).float()
    marian = converted(model)
    marian.set_attn_implementation(implementation)
    encoder, decoder, cross = convert(masks_of(MaskMaker(pad_mask), src, tgt_in), "hf", HEADS)
    given = {each.argument: each.tensor for each in (decoder, cross)}
    if pad_mask == "keys_and_queries":
        memory = marian.get_encoder()(src, attention_mask=encoder.tensor)
        given["encoder_outputs"] = memory
    theirs = marian(src, decoder_input_ids=tgt_in, use_cache=False, **given).logits
    unmasked = marian(src, decoder_input_ids=tgt_in).logits
    ours, real = model(src, tgt_in), tgt_in != PAD_ID
    assert torch.allclose(ours[real], theirs[real], rtol=0, atol=2e-6)
    assert not torch.allclose(ours[real], unmasked[real], atol=1e-3), "the masks matter"
