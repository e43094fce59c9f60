"""A folder for CTranslate2, written through its own specification of transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toytrans.exports import Rows, position_table, token_names
from toytrans.model.build import as_transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID
from toytrans.training.run import Run

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh"}

FARTHEST = 128
"""The distance at which the last bucket of `t5` begins."""


@torch.no_grad()
def write(run: Run, path: Path) -> None:
    """Write the model, in fp32, and its vocabulary."""
    from ctranslate2.specs import TransformerSpec, transformer_spec
    from ctranslate2.specs.common_spec import Activation

    model = as_transformer(run.model)
    config, positions = model.settings, model.settings.positions
    options: dict[str, Any] = {
        "pre_norm": config.norm == "pre",
        "activation": Activation[ACTIVATIONS[config.activation]],
        "relative_attention_bias": positions == "t5",
    }
    if positions == "rotary":
        options |= {"rotary_dim": config.d_model // config.n_heads, "rotary_interleave": False}
    stacks: dict[str, Any] = {"encoder": model.encoder_stack(), "decoder": model.decoder_stack()}
    encoder, decoder = (len(stack) for stack in stacks.values())
    spec = TransformerSpec(
        transformer_spec.TransformerEncoderSpec(encoder, config.n_heads, **options),
        transformer_spec.TransformerDecoderSpec(decoder, config.n_heads, **options),
    )
    spec.encoder.embeddings[0].weight = _array(model.src_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.tgt_embedding.weight)
    spec.decoder.projection.weight = _array(model.output.weight)
    for name, stack in stacks.items():
        side = getattr(spec, name)
        if positions not in ("t5", "rotary"):
            side.position_encodings.encodings = _array(position_table(model))
        if config.norm == "pre":
            _fill_norm(side.layer_norm, getattr(model, f"{name}_norm"))
        for theirs, layer in zip(side.layer, stack, strict=True):
            _fill_layer(theirs, layer)
            if positions == "t5":
                rows = layer.self_attention.bias_table.T  # (buckets, H), the past before the future
                rows = rows[: len(rows) // 2] if name == "decoder" else rows
                theirs.self_attention.relative_attention_bias = _array(rows)
                theirs.self_attention.relative_attention_max_distance = np.int32(FARTHEST)
    names = token_names(run.vocabulary)
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.unk_token = run.vocabulary.unknown or names[PAD_ID]  # it wants one
    spec.config.bos_token, spec.config.eos_token = names[BOS_ID], names[EOS_ID]
    spec.config.decoder_start_token, spec.config.add_source_eos = names[BOS_ID], True
    spec.config.layer_norm_epsilon = nn.LayerNorm(config.d_model).eps
    spec.validate()
    spec.optimize()
    path.mkdir(exist_ok=True)
    spec.save(str(path))


def _fill_layer(theirs: Any, layer: Any) -> None:
    """One layer's weights; self-attention has Q, K and V in one, cross-attention K and V."""
    width = layer.self_attention.out_proj.out_features
    attentions = [(theirs.self_attention, layer.self_attention, [3 * width])]
    if hasattr(layer, "cross_attention"):
        attentions.append((theirs.attention, layer.cross_attention, [width, 2 * width]))
    inner, outer = layer.feed_forward[0], layer.feed_forward[3]
    linears = [(theirs.ffn.linear_0, inner.weight, inner.bias)]
    linears.append((theirs.ffn.linear_1, outer.weight, outer.bias))
    for spec, ours, split in attentions:
        weights = (*ours.in_proj.weight.split(split), ours.out_proj.weight)
        biases = (*ours.in_proj.bias.split(split), ours.out_proj.bias)
        linears += zip(spec.linear, weights, biases, strict=True)
    for linear, weight, bias in linears:
        linear.weight, linear.bias = _array(weight), _array(bias)
    norms = (*(spec.layer_norm for spec, *_ in attentions), theirs.ffn.layer_norm)
    for norm, residual in zip(norms, layer.residuals, strict=True):
        _fill_norm(norm, residual.norm)


def _fill_norm(theirs: Any, norm: Any) -> None:
    theirs.gamma, theirs.beta = _array(norm.weight), _array(norm.bias)


def _array(values: Tensor) -> Any:
    return values.detach().float().contiguous().numpy()


def decode(path: Path, src: Rows, most: int) -> Rows:
    """Decode with `translate_batch`; the sources of a call are one batch."""
    import ctranslate2

    translator = ctranslate2.Translator(str(path), compute_type="float32", intra_threads=1)
    names = json.loads((path / "shared_vocabulary.json").read_text())
    ids = {name: number for number, name in enumerate(names)}
    answers = translator.translate_batch(
        [[names[i] for i in row if i != EOS_ID] for row in src],  # it adds EOS
        beam_size=1,
        max_batch_size=len(src),
        max_input_length=0,  # the default cuts sources after 1,024 tokens
        max_decoding_length=most,
        min_decoding_length=0,  # 1 would forbid an empty answer
        suppress_sequences=[[names[PAD_ID]], [names[BOS_ID]]],
        return_end_token=True,
    )
    return [[ids[name] for name in answer.hypotheses[0]] for answer in answers]
