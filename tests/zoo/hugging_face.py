"""Hugging Face's models from tiny random configs, sound and spoilt."""

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


@sound(checks=MOST)
def bart():
    """BART."""
    return hf.BartForConditionalGeneration(hf.BartConfig(**SIZES))


@sound(checks=MOST)
def marian():
    """Marian, whose start is its pad."""
    config = hf.MarianConfig(**SIZES, pad_token_id=29, decoder_start_token_id=29)
    return hf.MarianMTModel(config)


def _t5(config=hf.T5Config, model=hf.T5ForConditionalGeneration, **more):
    sizes = {"vocab_size": 30, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2}
    return model(config(**sizes, num_heads=2, decoder_start_token_id=0, **more))


@sound(checks=MOST)
def t5():
    """T5: relative bias, RMSNorm, no scale."""
    return _t5()


@sound(start_id=1, eos_id=2, checks=MOST)
def two_berts():
    """BERT and BERT as encoder and decoder."""
    halves = hf.BertConfig(**ONE), hf.BertConfig(**ONE | {"vocab_size": 25})
    return hf.EncoderDecoderModel(hf.EncoderDecoderConfig.from_encoder_decoder_configs(*halves))


@faulty("future")
def llama_that_is_not_causal():
    """Llama with is_causal = False in its attention, and no mask made for it."""
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**ONE, attn_implementation="eager"))
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    model.config.is_causal = False
    return model


@sound(checks="pads")
def bloom():
    """Bloom: ALiBi counted from the attention mask, no position_ids."""
    sizes = {"vocab_size": 30, "hidden_size": 16, "n_layer": 2, "n_head": 2}
    return hf.BloomForCausalLM(hf.BloomConfig(**sizes, pad_token_id=0))


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

    return Off(hf.LlamaConfig(**ONE))


@faulty("pads rows")
def bart_that_reads_source_pads():
    """BART whose decoder is not passed the source's pads."""

    class Reading(hf.BartForConditionalGeneration):
        def forward(self, input_ids=None, attention_mask=None, **named):
            return super().forward(input_ids=input_ids, **named)

    return Reading(hf.BartConfig(**SIZES))


@faulty("loss", says="the model's own loss")
def bart_whose_loss_counts_pads():
    """BART's loss, divided by all places."""

    class Summing(hf.BartForConditionalGeneration):
        def forward(self, *args, labels=None, **named):
            found = super().forward(*args, labels=labels, **named)
            if labels is not None:
                found.loss = found.loss * labels.ne(-100).sum() / labels.numel()
            return found

    return Summing(hf.BartConfig(**SIZES))


@sound(checks="pads", says="2 pads before them")
def llama():
    """Llama, whose pads may stand before the ids, with position_ids."""
    return hf.LlamaForCausalLM(hf.LlamaConfig(**ONE))


@faulty("pads", says="attention_mask is 0")
def llama_that_ignores_its_mask():
    """Llama that is not passed its attention mask."""

    class Ignoring(hf.LlamaForCausalLM):
        def forward(self, input_ids=None, attention_mask=None, **named):
            return super().forward(input_ids=input_ids, **named)

    return Ignoring(hf.LlamaConfig(**ONE))


@sound(checks="labels")
def bart_whose_pad_is_its_end():
    """Pad and end share an id, and labels of -100 tell them apart."""
    return hf.BartForConditionalGeneration(hf.BartConfig(**SIZES, pad_token_id=2, eos_token_id=2))


@sound(checks="steps")
def gpt2():
    """GPT-2."""
    return hf.GPT2LMHeadModel(hf.GPT2Config(**ONE))


@sound(says="does not apply: future")
def bert():
    """BERT, an encoder."""
    return hf.BertForMaskedLM(hf.BertConfig(**ONE))


@faulty("steps", says="without position_ids both agree")
def camembert_that_counts_places_otherwise():
    """CamemBERT's places begin behind the pad id, and position_ids do not."""
    return hf.CamembertForCausalLM(hf.CamembertConfig(**ONE, is_decoder=True))
