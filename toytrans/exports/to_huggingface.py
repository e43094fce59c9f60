"""A folder for Hugging Face's transformers, which generates from it without any code of ours.

pre-norm: Blenderbot, whose table of learned positions gets ours.
post-norm with sinusoidal positions: Marian. It makes its table itself, all sines before all
    cosines, so the width of the model is put into that order.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toytrans.data.pairs import TARGET_SLACK, pad_rows
from toytrans.exports import Rows, position_table, token_names
from toytrans.model.build import as_transformer
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID
from toytrans.training.run import Run

SPECIALS = {
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "decoder_start_token_id": BOS_ID,
}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


def write(run: Run, path: Path) -> None:
    """Write model, generation settings and tokenizer.

    `generate` stops where decoding here would, for the longest source of training or test.
    """
    import transformers

    theirs = converted(as_transformer(run.model))
    longest = max(run.facts.train_length[1], (run.settings.data.test_length or (0, 0))[1])
    settings = theirs.generation_config
    limit = run.facts.target_growth * longest + TARGET_SLACK
    settings.max_new_tokens = min(limit, settings.max_new_tokens)
    transformers.utils.logging.disable_progress_bar()  # it flashes up for milliseconds
    theirs.save_pretrained(path)
    _tokenizer(token_names(run.vocabulary), run.vocabulary.unknown).save_pretrained(path)
    settings_file = path / "tokenizer_config.json"
    about = json.loads(settings_file.read_text())
    about["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that 4 and 5 both know
    settings_file.write_text(json.dumps(about, indent=2) + "\n")


@torch.no_grad()
def converted(model: Transformer) -> Any:
    """A model of transformers in fp32 and eval mode."""
    import transformers

    config, table = model.settings, position_table(model)
    width, ties = config.d_model, config.tie_embeddings
    settings: dict[str, Any] = {
        "vocab_size": len(model.output.weight),
        "d_model": width,
        "max_position_embeddings": len(table),
        "activation_function": ACTIVATIONS[config.activation],
        "scale_embedding": True,
        "tie_word_embeddings": ties,
        "forced_eos_token_id": None,
        **SPECIALS,
    }
    settings |= dict.fromkeys(
        ("dropout", "attention_dropout", "activation_dropout"), config.dropout
    )
    stacks: dict[str, Any] = {"encoder": model.encoder_stack(), "decoder": model.decoder_stack()}
    for side, stack in stacks.items():
        sizes = {"layers": len(stack), "attention_heads": config.n_heads, "ffn_dim": config.d_ff}
        settings |= {f"{side}_{name}": size for name, size in sizes.items()}
    weights = {
        "lm_head.weight": model.output.weight,
        "model.encoder.embed_tokens.weight": model.src_embedding.weight,
        "model.decoder.embed_tokens.weight": model.tgt_embedding.weight,
    }
    for side, stack in stacks.items():
        for number, layer in enumerate(stack):
            for name, values in _layer(layer).items():
                weights[f"model.{side}.layers.{number}.{name}"] = values
        for name, values in getattr(model, f"{side}_norm").state_dict().items():  # of pre-norm
            weights[f"model.{side}.layer_norm.{name}"] = values
    if config.norm == "pre":
        settings["encoder_no_repeat_ngram_size"] = 0
        theirs: Any = transformers.BlenderbotForConditionalGeneration(
            transformers.BlenderbotConfig(**settings)
        )
        order = torch.arange(width)
    else:
        settings["share_encoder_decoder_embeddings"] = ties
        theirs = transformers.MarianMTModel(transformers.MarianConfig(**settings))
        order = torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))
    if ties or config.norm == "pre":  # Blenderbot always has it
        weights["model.shared.weight"] = model.src_embedding.weight
    weights = {name: _in_order(name, values.float(), order) for name, values in weights.items()}
    for side in stacks:
        name = f"model.{side}.embed_positions.weight"
        weights[name] = table if config.norm == "pre" else theirs.get_parameter(name)
    weights["final_logits_bias"] = theirs.final_logits_bias  # zero
    theirs.load_state_dict(weights)  # strict: nothing is left over on either side
    theirs.generation_config = transformers.GenerationConfig(
        suppress_tokens=[PAD_ID, BOS_ID],
        max_new_tokens=len(table) - 1,
        length_penalty=config.length_penalty,
        **SPECIALS,
    )
    return theirs.eval()


def _layer(layer: Any) -> dict[str, Tensor]:
    """One layer's weights; our Q, K and V are rows of one projection."""
    modules = {"self_attn": layer.self_attention}
    if hasattr(layer, "cross_attention"):
        modules["encoder_attn"] = layer.cross_attention
    norms = [f"{name}_layer_norm" for name in (*modules, "final")]
    modules |= {"fc1": layer.feed_forward[0], "fc2": layer.feed_forward[3]}
    modules |= zip(norms, (part.norm for part in layer.residuals), strict=True)
    weights = {}
    for name, module in modules.items():
        for key, values in module.state_dict().items():
            parts = zip("qkv", values.chunk(3), strict=True) if "in_proj" in key else [("", values)]
            for letter, part in parts:
                weights[f"{name}.{key.replace('in_', f'{letter}_')}"] = part
    return weights


def _in_order(name: str, values: Tensor, order: Tensor) -> Tensor:
    """A weight whose axis of the model's width, if it has one, is in another order."""
    if any(part in name for part in ("out_proj", "fc2", "norm")):
        return values[order]
    reads = ("embed_tokens", "shared", "lm_head", "fc1.weight", "_proj.weight")
    return values[:, order] if any(part in name for part in reads) else values


def _tokenizer(names: list[str], unknown: str) -> Any:
    """Splits at blanks, ends every sequence with EOS, and pads on the right.

    unknown: the symbol as which others are read; empty = the tokenizer raises for another one.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {name: i for i, name in enumerate(names)}
    made: Any = Tokenizer(models.WordLevel(ids, unknown))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pad, bos, eos = names[:3]
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", special_tokens=[(eos, EOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unknown or None,
        padding_side="right",  # pads on the left would move every place
        model_input_names=["input_ids", "attention_mask"],
    )


@torch.inference_mode()
def decode(path: Path, src: Rows, most: int) -> Rows:
    """Decode with `generate`; the sources of a call are one padded batch."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(path, local_files_only=True)
    ids, _ = pad_rows(src)
    mask = (ids != PAD_ID).long()
    tokens = model.generate(
        ids, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=most
    )
    return tokens[:, 1:].tolist()
