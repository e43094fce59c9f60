"""Hugging Face's models from tiny random configs, sound and spoilt."""

from functools import partial

import torch
import transformers as hf

from . import faulty, sound

hf.logging.set_verbosity_error()

SIZES = {"vocab_size": 30, "d_model": 16, "max_position_embeddings": 80}
for _side in ("encoder", "decoder"):
    SIZES |= {f"{_side}_layers": 1, f"{_side}_attention_heads": 2, f"{_side}_ffn_dim": 16}

ONE = {
    "vocab_size": 30,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Of models that are one stack."""

MOST = "pads future rows loss order labels sublayers"


def bart(model=hf.BartForConditionalGeneration, **more):
    return model(hf.BartConfig(**SIZES, **more))


def llama(model=hf.LlamaForCausalLM, **more):
    return model(hf.LlamaConfig(**ONE, **more))


sound(MOST)(bart)
sound("labels", name="bart whose pad is its end")(partial(bart, pad_token_id=2, eos_token_id=2))
sound("pads", says="2 pads before them")(llama)


@sound(MOST)
def marian():
    """Marian, whose start is its pad."""
    config = hf.MarianConfig(**SIZES, pad_token_id=29, decoder_start_token_id=29)
    return hf.MarianMTModel(config)


@sound(MOST)
def t5():
    """T5: relative bias, RMSNorm, no scale."""
    sizes = {"vocab_size": 30, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2}
    config = hf.T5Config(**sizes, num_heads=2, decoder_start_token_id=0)
    return hf.T5ForConditionalGeneration(config)


@sound(MOST, start_id=1, eos_id=2)
def two_berts():
    halves = hf.BertConfig(**ONE), hf.BertConfig(**ONE | {"vocab_size": 25})
    return hf.EncoderDecoderModel(hf.EncoderDecoderConfig.from_encoder_decoder_configs(*halves))


@sound(says="does not apply: future")
def bert():
    return hf.BertForMaskedLM(hf.BertConfig(**ONE))


@sound("steps")
def gpt2():
    return hf.GPT2LMHeadModel(hf.GPT2Config(**ONE))


@sound("steps", is_quick=True, only="steps")
def mamba():
    """Its generate hands on no mask behind the first step."""
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    return hf.MambaForCausalLM(hf.MambaConfig(**sizes, pad_token_id=0))


@sound("reach", is_quick=True, only="reach")
def mistral():
    """A window of four places, as its config says."""
    sizes = ONE | {"num_key_value_heads": 1, "sliding_window": 4}
    return hf.MistralForCausalLM(hf.MistralConfig(**sizes))


@sound("pads")
def bloom():
    """Bloom: ALiBi counted from the attention mask, no position_ids."""
    sizes = {"vocab_size": 30, "hidden_size": 16, "n_layer": 2, "n_head": 2}
    return hf.BloomForCausalLM(hf.BloomConfig(**sizes, pad_token_id=0))


@faulty("steps", cause="steps.positions_differ")
def camembert_that_counts_places_otherwise():
    """CamemBERT's places begin behind the pad id, and position_ids do not."""
    return hf.CamembertForCausalLM(hf.CamembertConfig(**ONE, is_decoder=True))


@faulty("future")
def llama_that_is_not_causal():
    """Llama with is_causal = False in its attention, and no mask made for it."""
    model = llama(attn_implementation="eager")
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    model.config.is_causal = False
    return model


@faulty()
def llama_whose_cache_is_off_by_one():
    """Llama decodes with rotary places one too large as soon as it has a cache."""

    class Off(hf.LlamaForCausalLM):
        def forward(self, input_ids=None, position_ids=None, **named):
            kept = named.get("cache", named.get("past_key_values"))  # its name by version
            if kept is not None and kept.get_seq_length() > 0:
                places = kept.get_seq_length() + 1 + torch.arange(input_ids.shape[1])
                position_ids = places[None].expand(len(input_ids), -1)
            return super().forward(input_ids=input_ids, position_ids=position_ids, **named)

    return llama(Off)


def _without_mask(model):
    """The model whose attention mask is dropped."""

    class Ignoring(model):
        def forward(self, input_ids=None, attention_mask=None, **named):
            return super().forward(input_ids=input_ids, **named)

    return Ignoring


@faulty("pads", cause="pads.seen_before_ids")
def llama_that_ignores_its_mask():
    return llama(_without_mask(hf.LlamaForCausalLM))


@faulty("pads rows")
def bart_that_reads_source_pads():
    return bart(_without_mask(hf.BartForConditionalGeneration))


@faulty("loss", cause="loss.pads_scored")
def bart_whose_loss_counts_pads():
    class Summing(hf.BartForConditionalGeneration):
        def forward(self, *args, labels=None, **named):
            found = super().forward(*args, labels=labels, **named)
            if labels is not None:
                found.loss = found.loss * labels.ne(-100).sum() / labels.numel()
            return found

    return bart(Summing)
