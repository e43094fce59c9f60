"""Every fault in three models over random shapes: `check` finds each, and passes the sound model.

toytrans' own model, torch.nn.Transformer with embeddings around it, and the latter in fp32 behind a
plain function; tests/zoo has those of other libraries. Beside the faults of `explain faults` there
is a leak of a thousandth: out[t] += 0.001 value[t + 1] in one decoder layer. ROUNDS in
the environment says how many shapes are drawn.
"""

import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from conftest import config_of
from torch import Tensor, nn
from torch.nn import functional as F
from zoo.parts import END, PAD, START, make_batch

import toytrans
from toytrans.checks.adapters.toytrans import of_model
from toytrans.config.faults import FAULTS
from toytrans.model.build import build_model
from toytrans.tokens import Vocabulary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),  # torch's fast path
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested"),
]

ROUNDS = int(os.environ.get("ROUNDS", "1"))
LEAK = "leak of a thousandth"
FAULTS = (*FAULTS, LEAK)
HIDDEN = {
    "toytrans": (),
    "nn.Transformer": ("no_norm",),  # which may be meant
    "fp32 function": ("no_residual", "no_norm", "no_feed_forward"),
}
"""What cannot be told of a model: a function's layers are not visible."""

Shape = dict[str, Any]


def draw_shape(number: int) -> Shape:
    """A random small shape: the keys of a model, and those of its check."""
    chance = random.Random(f"0 {number}")
    heads, width = chance.choice((2, 3, 4)), chance.choice((4, 6, 8))
    depth = chance.choice((1, 2, 3))
    model: dict[str, Any] = {"n_heads": heads, "d_model": heads * width}
    model |= {"n_encoder_layers": depth, "n_decoder_layers": depth}
    model["d_ff"] = chance.choice((16, 32, 48))
    vocabulary = chance.choice((12, 30, 60))
    model["norm"] = chance.choice(("pre", "post"))
    model["positions"] = chance.choice(("sinusoidal", "learned", "anchored"))
    length, seed = chance.choice((5, 7, 9)), chance.randrange(2**20)
    return {"model": model, "vocabulary": vocabulary, "length": length, "seed": seed}


def leak(attention: Any, given: Any, out: Any) -> Any:
    """A forward hook: out[t] += 0.001 value[t + 1]."""
    is_torchs = isinstance(attention, nn.MultiheadAttention)
    weight = attention.in_proj_weight if is_torchs else attention.in_proj.weight
    later = 0.001 * F.pad(F.linear(given[0], weight.chunk(3)[2])[:, 1:], (0, 0, 0, 1))
    return (out[0] + later, *out[1:]) if is_torchs else out + later


def told(fault: str | None) -> dict[str, Any]:
    """The batch and the loss that `check` is told, spoilt by a fault of theirs."""

    def batch(pairs: Any) -> tuple[Tensor, Tensor, Tensor]:
        src, tgt_in, labels = make_batch(pairs)
        if fault == "wrong_start":
            tgt_in = tgt_in.masked_fill(tgt_in == START, END)
        elif fault == "labels_not_shifted":
            labels = tgt_in
        elif fault == "pad_is_eos":
            labels = labels.masked_fill(labels == END, PAD)
        return src, tgt_in, labels

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        each = F.cross_entropy(logits.mT, labels, reduction="none")
        counts = torch.ones_like(labels) if fault == "loss_on_pads" else (labels != PAD)
        if fault == "batch_mean_of_means":
            return ((each * counts).sum(1) / counts.sum(1)).mean()
        return (each * counts).sum() / counts.sum()

    return {"batch": batch, "loss": loss, "start_id": START, "eos_id": END}


def check_ours(shape: Shape, fault: str | None) -> Any:
    """Fresh weights of a config."""
    count, seed = shape["vocabulary"] - 3, shape["seed"]
    planted = None if fault == LEAK else fault
    config = config_of(data={"symbols": count}, model=shape["model"], fault=planted, seed=seed)
    torch.manual_seed(seed)
    symbols = Vocabulary(tuple(map(str, range(count))))
    made: Any = build_model(config, symbols)
    if fault == LEAK:
        made.decoder_layers[-1].self_attention.register_forward_hook(leak)
    given = of_model(made, config, symbols, "ours")
    return toytrans.check(given, length=shape["length"], seed=shape["seed"])


# torch.nn.Transformer ------------------------------------------------------------------------


class Torch(nn.Module):
    """nn.Transformer handed masks that a fault has spoilt. True = may not attend."""

    def __init__(self, shape: Shape, fault: str | None) -> None:
        super().__init__()
        vocabulary, keys = shape["vocabulary"], shape["model"]
        names = ("d_model", "n_heads", "n_encoder_layers", "n_decoder_layers", "d_ff")
        width, *sizes = (keys[name] for name in names)
        is_pre = keys["norm"] == "pre"
        self.fault = fault
        self.inner = nn.Transformer(width, *sizes, batch_first=True, norm_first=is_pre)
        self.source, self.target = (nn.Embedding(vocabulary, width) for _ in "st")
        is_placed = fault != "no_position"
        self.places = nn.Parameter(torch.randn(64, width) * float(is_placed), is_placed)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        length = tgt_in.shape[1]
        above = {"no_causal": length, "triangle_off_by_one": 2}.get(self.fault or "", 1)
        masks = {"tgt_mask": torch.ones(length, length, dtype=torch.bool).triu(above)}
        if self.fault != "pad_visible":
            masks |= {"src_key_padding_mask": src == PAD, "memory_key_padding_mask": src == PAD}
            masks["tgt_key_padding_mask"] = tgt_in == PAD
        if self.fault == "mask_flipped":
            masks = {name: ~mask for name, mask in masks.items()}
        x = self.source(src) + self.places[: src.shape[1]]
        y = self.target(tgt_in) + self.places[:length]
        return self.out(self.inner(x, y, **masks))


def torch_model(shape: Shape, fault: str | None) -> Torch:
    torch.manual_seed(shape["seed"])
    model = Torch(shape, fault)
    if fault in ("no_residual", "no_feed_forward", "wrong_scale", "no_scale"):
        model.inner.encoder.use_nested_tensor = False  # this shortcut goes past what is broken
        for layer in (*model.inner.encoder.layers, *model.inner.decoder.layers):
            break_torch_layer(layer, fault)
    if fault == LEAK:
        model.inner.decoder.layers[-1].self_attn.register_forward_hook(leak)
    return model.eval()


def break_torch_layer(layer: Any, fault: str) -> None:
    layer.activation_relu_or_gelu = 0
    if fault == "no_residual":
        layer.forward = partial(without_residual, layer)
    elif fault == "no_feed_forward":
        layer._ff_block = torch.zeros_like
    else:
        for attention in layer.modules():
            if isinstance(attention, nn.MultiheadAttention):
                scale = attention.embed_dim**-0.5 if fault == "wrong_scale" else 1.0
                attention.forward = partial(scaled, attention, scale)


def scaled(attention: Any, scale: float, *given: Tensor, **named: Any) -> Any:
    """The attention with another scale of its scores."""
    fused = partial(F.scaled_dot_product_attention, scale=scale)
    with mock.patch.object(F, "scaled_dot_product_attention", fused):
        return type(attention).forward(attention, *given, **named)


def without_residual(layer: Any, x: Tensor, memory: Tensor | None = None, **masks: Any) -> Tensor:
    """The sub-layers of a layer one after another, x not added."""
    side = "src" if memory is None else "tgt"
    own = (masks[f"{side}_mask"], masks[f"{side}_key_padding_mask"])
    blocks = [(layer.norm1, lambda y: layer._sa_block(y, *own))]
    if memory is not None:
        across = (memory, masks["memory_mask"], masks["memory_key_padding_mask"])
        blocks.append((layer.norm2, lambda y: layer._mha_block(y, *across)))
    blocks.append((layer.norm2 if memory is None else layer.norm3, layer._ff_block))
    for norm, block in blocks:
        x = block(norm(x)) if layer.norm_first else norm(block(x))
    return x


def check_torch(shape: Shape, fault: str | None, *, bare: bool = False) -> Any:
    """bare: in fp32 behind a function, so that nothing but its answers is at hand."""
    model = torch_model(shape, fault)
    return toytrans.check(
        (lambda src, tgt_in: model(src, tgt_in)) if bare else model,
        pad_id=PAD,
        vocabulary_size=shape["vocabulary"],
        length=shape["length"],
        seed=shape["seed"],
        **told(fault),
    )


MODELS: dict[str, Callable[[Shape, str | None], Any]] = {
    "toytrans": check_ours,
    "nn.Transformer": check_torch,
    "fp32 function": partial(check_torch, bare=True),
}


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("name", MODELS)
def test_every_fault_is_found_and_a_sound_model_passes(name: str, number: int) -> None:
    """A model that answers NaN in every row is refused, which finds the fault as well."""
    shape = draw_shape(number)
    report = MODELS[name](shape, None)
    assert report, f"a sound model fails: {shape}\n{report}"
    missed = []
    for fault in (fault for fault in FAULTS if fault not in HIDDEN[name]):
        try:
            if MODELS[name](shape, fault).verdict != "FAIL":
                missed.append(fault)
        except toytrans.UserError as refusal:
            assert "NaN in every row" in str(refusal), refusal
    assert missed == [], shape


def test_a_leak_of_a_thousandth_stands_above_rounding() -> None:
    shape = draw_shape(3) | {"length": 7}
    for bare in (False, True):
        sound, leaking = (check_torch(shape, fault, bare=bare) for fault in (None, LEAK))
        healthy, broken = sound["future"], leaking["future"]
        assert sound.passed and healthy.difference <= healthy.tolerance / 10
        assert broken.difference > 10 * broken.tolerance
