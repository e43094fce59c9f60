"""Every fault in four models over random shapes: which check finds it, and does a sound model pass?

    python scripts/fault_matrix.py [--rounds 20] [--seed 0] [--json]

toytrans' own model, torch.nn.Transformer with embeddings around it, Hugging Face's BART, and
nn.Transformer in fp32 behind a plain function. Each round draws a shape and weights, checks the
sound model, and plants every fault of `toytrans explain faults` in it, as well as a leak of a thousandth
(out[t] += 0.001 value[t + 1] in one decoder layer). Exit code 1 if a fault is missed or a sound
model fails. Needs `transformers` (extra dev).
"""

import argparse
import json
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, get_args
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BartConfig, BartForConditionalGeneration

import toytrans
from toytrans.checks import Report, check_own
from toytrans.checks.adapters import TorchTransformer, padded
from toytrans.config.names import FaultName
from toytrans.config.schema import Config
from toytrans.errors import UserError
from toytrans.tokens import Vocabulary
from toytrans.training.faults import build_model

# nn.TransformerEncoder's remarks on its own fast path, which change nothing
warnings.filterwarnings("ignore", "enable_nested_tensor is True|The PyTorch API of nested tensors")

LEAK = "leak of a thousandth"
FAULTS = (*get_args(FaultName), LEAK)
PAD, START, END = 0, 1, 2

HIDDEN = {
    "no_residual": "layers are not visible from outside",
    "no_norm": "layers are not visible from outside",
    "no_feed_forward": "layers are not visible from outside",
}
"""What cannot be told of a plain function."""

IN_LAYERS = (*HIDDEN, "wrong_scale", "no_scale")

Shape = dict[str, Any]


def draw_shape(round_number: int, seed: int) -> Shape:
    """A random small shape."""
    chance = random.Random(f"{seed} {round_number}")
    heads = chance.choice((2, 3, 4))
    return {
        "heads": heads,
        "width": heads * chance.choice((4, 6, 8)),
        "layers": chance.choice((1, 2, 3)),
        "inner": chance.choice((16, 32, 48)),
        "vocabulary": chance.choice((12, 30, 60)),
        "norm": chance.choice(("pre", "post")),
        "positions": chance.choice(("sinusoidal", "learned", "anchored")),
        "length": chance.choice((5, 7, 9)),
        "seed": chance.randrange(2**20),
    }


# Our own -------------------------------------------------------------------------------------


def check_ours(shape: Shape, fault: str | None) -> Report:
    torch.manual_seed(shape["seed"])
    config = Config.model_validate(
        {
            "fault": None if fault == LEAK else fault,
            "data": {"task": "copy", "symbols": shape["vocabulary"] - 3},
            "model": {
                "d_model": shape["width"],
                "n_heads": shape["heads"],
                "n_encoder_layers": shape["layers"],
                "n_decoder_layers": shape["layers"],
                "d_ff": shape["inner"],
                "norm": shape["norm"],
                "positions": shape["positions"],
            },
        }
    )
    vocabulary = Vocabulary(tuple(str(k) for k in range(shape["vocabulary"] - 3)))
    model = build_model(config, vocabulary)
    if fault == LEAK:
        attention = model.decoder_layers[shape["seed"] % shape["layers"]].self_attention
        attention.forward = partial(leaking_ours, attention)
    return check_own(
        model, config, vocabulary, "toytrans", length=shape["length"], seed=shape["seed"]
    )


def leaking_ours(attention: Any, x: Tensor, sight: Any, memory: Any = None, cache: Any = None):
    out = type(attention).forward(attention, x, sight, memory, cache)
    _, _, value = attention.in_proj(x).chunk(3, -1)
    return leaked(out, value)


def leaked(out: Tensor, value: Tensor) -> Tensor:
    """out[t] += 0.001 value[t + 1]."""
    return out + 0.001 * F.pad(value[:, 1:], (0, 0, 0, 1))


# torch.nn.Transformer ------------------------------------------------------------------------


class Embedding(nn.Module):
    """Tokens and learned places."""

    def __init__(self, vocabulary: int, width: int, places: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(64, width) * float(places), requires_grad=places)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places[: ids.shape[1]]


class Broken(TorchTransformer):
    """nn.Transformer handed masks that a fault has spoilt."""

    fault: str | None = None

    def masks(self, src: Tensor, tgt_in: Tensor) -> dict[str, Tensor]:
        masks = super().masks(src, tgt_in)
        if self.fault == "no_causal":
            del masks["tgt_mask"]
        elif self.fault == "triangle_off_by_one":
            masks["tgt_mask"] = masks["tgt_mask"].triu(2)
        elif self.fault == "pad_visible":
            return {"tgt_mask": masks["tgt_mask"]}
        elif self.fault == "mask_flipped":
            return {name: ~mask for name, mask in masks.items()}
        return masks


def torch_model(shape: Shape, fault: str | None) -> Broken:
    torch.manual_seed(shape["seed"])
    width, vocabulary = shape["width"], shape["vocabulary"]
    sizes = (width, shape["heads"], shape["layers"], shape["layers"], shape["inner"])
    transformer = nn.Transformer(*sizes, batch_first=True, norm_first=shape["norm"] == "pre")
    source, target = (Embedding(vocabulary, width, fault != "no_position") for _ in range(2))
    model = Broken(transformer, source, target, nn.Linear(width, vocabulary), PAD)
    model.fault = fault
    if fault in IN_LAYERS:  # torch's shortcuts go past the methods that are broken
        transformer.encoder.use_nested_tensor = False
    for layer in (*transformer.encoder.layers, *transformer.decoder.layers):
        break_torch_layer(layer, fault)
    if fault == "no_norm":
        without_norms(model)
    if fault == LEAK:
        chosen = transformer.decoder.layers[shape["seed"] % shape["layers"]].self_attn
        chosen.forward = partial(leaking_torch, chosen)
    return model.eval()


def break_torch_layer(layer: Any, fault: str | None) -> None:
    """Plant a fault of the layers."""
    if fault not in IN_LAYERS:
        return
    layer.activation_relu_or_gelu = 0
    attentions = [
        layer.self_attn,
        *([layer.multihead_attn] if hasattr(layer, "multihead_attn") else []),
    ]
    for attention in attentions:
        wanted = {"wrong_scale": attention.embed_dim**-0.5, "no_scale": 1.0}.get(fault)
        if wanted is not None:
            attention.forward = partial(scaled_torch, attention, wanted)
    if fault == "no_residual":
        layer.forward = partial(without_residual, layer)
    if fault == "no_feed_forward":
        layer._ff_block = torch.zeros_like


def without_residual(layer: Any, x: Tensor, memory: Tensor | None = None, **masks: Any) -> Tensor:
    """The sub-layers of an encoder or a decoder layer one after another, x not added."""
    if memory is None:
        given = (masks["src_mask"], masks["src_key_padding_mask"])
    else:
        given = (masks["tgt_mask"], masks["tgt_key_padding_mask"])
        across = (memory, masks["memory_mask"], masks["memory_key_padding_mask"])
    blocks = [lambda y: layer._sa_block(y, *given)]
    if memory is not None:
        blocks.append(lambda y: layer._mha_block(y, *across))
    norms = (layer.norm1, layer.norm2, *([layer.norm3] if memory is not None else []))
    for block, norm in zip((*blocks, layer._ff_block), norms, strict=True):
        x = block(norm(x)) if layer.norm_first else norm(block(x))
    return x


def scaled_torch(attention: Any, scale: float, *given: Tensor, **named: Any) -> Any:
    """The attention with another scale of its scores."""
    fused = partial(F.scaled_dot_product_attention, scale=scale)
    with mock.patch.object(F, "scaled_dot_product_attention", fused):
        return type(attention).forward(attention, *given, **named)


def leaking_torch(attention: Any, query: Tensor, *others: Any, **named: Any) -> Any:
    out, weights = type(attention).forward(attention, query, *others, **named)
    value = F.linear(query, attention.in_proj_weight.chunk(3)[2])
    return leaked(out, value), weights


def without_norms(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, nn.Identity())


def given_to_torch(fault: str | None) -> dict[str, Any]:
    """What `check` is told of nn.Transformer, spoilt by a fault of batch or loss."""
    pad = PAD
    end = PAD if fault == "pad_is_eos" else END

    def batch(pairs: Any) -> tuple[Tensor, Tensor, Tensor]:
        start = END if fault == "wrong_start" else START
        src = padded([s + [end] for s, _ in pairs], pad)
        tgt_in = padded([[start, *t] for _, t in pairs], pad)
        tgt_out = padded([t + [end] for _, t in pairs], pad)
        return src, tgt_in, tgt_in if fault == "labels_not_shifted" else tgt_out

    return {"batch": batch, "loss": broken_loss(fault, pad), "eos_id": end, "start_id": START}


def broken_loss(fault: str | None, pad: int) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
        ignored = -1 if fault == "loss_on_pads" else pad
        each = F.cross_entropy(logits.mT, tgt_out, ignore_index=ignored, reduction="none")
        real = tgt_out != ignored
        if fault == "batch_mean_of_means":
            return (each.sum(1) / real.sum(1)).mean()
        return each.sum() / real.sum()

    return loss


def check_torch(shape: Shape, fault: str | None) -> Report:
    return toytrans.check(
        torch_model(shape, fault),
        pad_id=PAD,
        vocabulary_size=shape["vocabulary"],
        length=shape["length"],
        seed=shape["seed"],
        **given_to_torch(fault),
    )


def check_function(shape: Shape, fault: str | None) -> Report:
    """The same model in fp32 behind a function: nothing but its answers is at hand."""
    model = torch_model(shape, fault)
    return toytrans.check(
        lambda src, tgt_in: model(src, tgt_in),
        pad_id=PAD,
        vocabulary_size=shape["vocabulary"],
        length=shape["length"],
        seed=shape["seed"],
        **given_to_torch(fault),
    )


# Hugging Face's BART -------------------------------------------------------------------------


def bart(shape: Shape, fault: str | None) -> BartForConditionalGeneration:
    torch.manual_seed(shape["seed"])
    sides = ("encoder", "decoder")
    config = BartConfig(
        vocab_size=shape["vocabulary"],
        d_model=shape["width"],
        max_position_embeddings=64,
        init_std=0.3,
        **{f"{side}_layers": shape["layers"] for side in sides},
        **{f"{side}_attention_heads": shape["heads"] for side in sides},
        **{f"{side}_ffn_dim": shape["inner"] for side in sides},
    )
    model = BartForConditionalGeneration(config).eval()
    if fault in ("no_causal", "triangle_off_by_one", "pad_visible", "mask_flipped"):
        model.forward = partial(broken_masks, fault, model)
    elif fault == "wrong_start":
        model.generation_config.decoder_start_token_id = config.bos_token_id
    elif fault == "no_position":
        for part in (model.model.encoder, model.model.decoder):
            part.embed_positions.weight.data.zero_()
    elif fault == "no_norm":
        without_norms(model)
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        break_bart_layer(layer, fault)
    if fault == LEAK:
        layer = model.model.decoder.layers[shape["seed"] % shape["layers"]]
        layer.self_attn = LeakingBart(layer.self_attn)
    return model


def broken_masks(fault: str, model: Any, **given: Any) -> Any:
    """The model called with other masks; it takes the decoder's as numbers to add, (B, 1, T, T)."""
    source, target = given["attention_mask"].bool(), given["decoder_attention_mask"].bool()
    length = target.shape[1]
    causal = torch.ones(length, length).tril(int(fault == "triangle_off_by_one")).bool()
    if fault == "no_causal":
        causal = torch.ones_like(causal)
    allowed = causal & target[:, None, None]
    if fault == "pad_visible":
        source, allowed = torch.ones_like(source), (causal & torch.ones_like(target)[:, None, None])
    elif fault == "mask_flipped":
        source, allowed = ~source, ~allowed
    dtype = model.dtype
    added = torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
    given |= {"attention_mask": source.long(), "decoder_attention_mask": added}
    return type(model).forward(model, **given)


def break_bart_layer(layer: Any, fault: str | None) -> None:
    names = [name for name in ("self_attn", "encoder_attn") if hasattr(layer, name)]
    for name in names:
        attention = getattr(layer, name)
        scales = {"wrong_scale": attention.embed_dim**-0.5, "no_scale": 1.0}
        attention.scaling = scales.get(fault, attention.scaling)
        if fault == "no_residual":
            setattr(layer, name, WithoutInput(attention))
    if fault == "no_residual":
        layer.fc1 = Remembering(layer.fc1)
        layer.fc2 = Subtracting(layer.fc2, layer.fc1)
    elif fault == "no_feed_forward":
        layer.fc2 = Zeros(layer.fc2.out_features)


class WithoutInput(nn.Module):
    """An attention less its input, so that the residual connection around it adds nothing."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
        out, *rest = self.inner(hidden_states, *others, **named)
        return out - hidden_states, *rest


class LeakingBart(WithoutInput):
    """An attention that leaks the next value."""

    def forward(self, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
        out, *rest = self.inner(hidden_states, *others, **named)
        return leaked(out, self.inner.v_proj(hidden_states)), *rest


class Remembering(WithoutInput):
    """A linear layer that keeps its input."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return self.inner(x)


class Subtracting(WithoutInput):
    """A linear layer less what another one was given."""

    def __init__(self, inner: nn.Module, other: Remembering) -> None:
        super().__init__(inner)
        self.others = [other]  # not a sub-module

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) - self.others[0].seen


class Zeros(nn.Module):
    """Zeros of another width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-1], self.width)


def check_bart(shape: Shape, fault: str | None) -> Report:
    model = bart(shape, fault)
    pad, end = 1, 2  # as BART has them; decoding starts with the end symbol
    ignored = -100

    def batch(pairs: Any) -> tuple[Tensor, Tensor, Tensor]:
        src = padded([s + [end] for s, _ in pairs], pad)
        labels = padded([t + [end] for _, t in pairs], ignored)
        tgt_in = model.prepare_decoder_input_ids_from_labels(labels=labels)
        if fault == "labels_not_shifted":
            labels = tgt_in.masked_fill(tgt_in == pad, ignored)
        elif fault == "pad_is_eos":
            labels = labels.masked_fill(labels == end, ignored)
        elif fault == "loss_on_pads":
            labels = labels.masked_fill(labels == ignored, pad)
        return src, tgt_in, labels

    given: dict[str, Any] = {}
    if fault in ("labels_not_shifted", "pad_is_eos", "loss_on_pads"):
        given["batch"] = batch
    if fault in ("loss_on_pads", "batch_mean_of_means"):
        given["loss"] = broken_loss(fault, ignored)
    return toytrans.check(model, length=shape["length"], seed=shape["seed"], **given)


# The matrix ----------------------------------------------------------------------------------

MODELS: dict[str, Callable[[Shape, str | None], Report]] = {
    "toytrans": check_ours,
    "nn.Transformer": check_torch,
    "HF BART": check_bart,
    "fp32 function": check_function,
}


def checks_failing(
    check: Callable[[Shape, str | None], Report], shape: Shape, fault: str | None
) -> str:
    """The checks that fail; NaN where the model is refused for answering so."""
    try:
        return " ".join(result.name for result in check(shape, fault).failures)
    except UserError as refusal:
        if "NaN in every row" in str(refusal):
            return "NaN"
        raise


def run(rounds: int, seed: int) -> dict[str, Any]:
    """fault (None = sound) -> model -> Counter of what was found."""
    found = {fault: {model: Counter() for model in MODELS} for fault in (None, *FAULTS)}
    for number in range(rounds):
        shape = draw_shape(number, seed)
        for fault in found:
            for model, check in MODELS.items():
                if model == "fp32 function" and fault in HIDDEN:
                    continue
                found[fault][model][checks_failing(check, shape, fault)] += 1
        print(f"round {number + 1} of {rounds}: {shape}", file=sys.stderr)
    return found


def cell(fault: str | None, model: str, counts: Counter, rounds: int) -> str:
    """What one fault came to in one model."""
    if not counts:
        return f"does not apply: {HIDDEN[fault]}"
    caught = rounds - counts[""]
    every = [set(names.split()) for names in counts if names]
    always = sorted(set.intersection(*every)) if every else []
    if fault is None:
        return "passes" if not caught else f"FALSE ALARM {caught}: {dict(counts)}"
    by = " ".join(always) or " or ".join(sorted(filter(None, counts)))
    return f"{caught}/{rounds} by {by}" if caught == rounds else f"MISSED {rounds - caught}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one document on standard output")
    given = parser.parse_args()
    found = run(given.rounds, given.seed)
    cells = {
        fault or "none": {m: cell(fault, m, counts, given.rounds) for m, counts in row.items()}
        for fault, row in found.items()
    }
    if given.json:
        print(json.dumps({"rounds": given.rounds, "seed": given.seed, "matrix": cells}))
    else:
        table = Table("fault", *MODELS, title=f"found by, of {given.rounds} random shapes")
        for fault, row in cells.items():
            table.add_row(fault, *row.values())
        Console(width=150).print(table)
    wrong = [text for row in cells.values() for text in row.values() if text.isupper()]
    words = " ".join(text for row in cells.values() for text in row.values())
    return int(bool(wrong) or "MISSED" in words or "FALSE ALARM" in words)


if __name__ == "__main__":
    sys.exit(main())
