"""What does `toytrans check` say of the models of transformers and x-transformers?

    python scripts/survey.py [NAME ...] [--seconds 120] [--processes 2] > results/survey.md

Builds every text family that generates from a tiny random config: encoder-decoders, decoders, and
decoders of the BERT kind behind a BERT encoder; and x-transformers with each of its options. Each
is checked in a process of its own, with a time limit. NAME: only those that begin so.
Prints a page of Markdown. Exit code 1 if a model fails.
"""

import argparse
import contextlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SIZES = {
    32: "hidden_size d_model n_embd dim embedding_size embedding_dim word_embed_proj_dim emb_dim",
    2: "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers "
    "num_decoder_layers num_encoder_layers decoder_num_hidden_layers num_key_value_heads "
    "num_kv_heads n_head_kv num_experts_per_tok moe_topk moe_top_k moe_k top_k_experts",
    4: "num_attention_heads n_head num_heads n_heads encoder_attention_heads "
    "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads "
    "num_experts num_local_experts n_routed_experts moe_num_experts linear_num_key_heads "
    "linear_num_value_heads linear_num_heads mamba_n_heads mamba_num_heads index_n_heads",
    8: "head_dim d_kv kv_channels d_head head_size v_head_dim qk_nope_head_dim qk_rope_head_dim "
    "global_head_dim swa_head_dim swa_v_head_dim linear_key_head_dim linear_head_dim "
    "linear_value_head_dim mamba_head_dim mamba_d_head index_head_dim rotary_dim mamba_d_state "
    "ssm_state_size state_size mamba_chunk_size chunk_size",
    16: "q_lora_rank kv_lora_rank o_lora_rank",
    48: "intermediate_size d_ff encoder_ffn_dim decoder_ffn_dim ffn_dim n_inner ffn_hidden_size "
    "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size dff dim_ff",
    64: "vocab_size src_vocab_size tgt_vocab_size decoder_vocab_size",
    128: "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length "
    "max_encoder_position_embeddings max_decoder_position_embeddings context_length",
    1: "n_shared_experts n_group topk_group first_k_dense_replace mamba_n_groups n_groups",
    0: "pad_token_id",
}
SMALL = {name: size for size, names in SIZES.items() for name in names.split()}
SMALL |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
"""What a config's numbers become where it has them."""

LATENT = {"num_key_value_heads": 4}
HYBRID = {"num_hidden_layers": 8}  # of which every fourth or eighth looks back by attention
MIXED = ["linear_attention", "full_attention"]
GEMMA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
GEMMA |= {"num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 64}
GEMMA |= {"max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1}
LAYERWISE = {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8}
SPECIAL: dict[str, dict[str, Any]] = {
    "led": {"attention_window": [4, 4], "max_encoder_position_embeddings": 130},
    "pegasus_x": {"block_size": 4, "num_global_tokens": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "fsmt": {"langs": ["en", "de"], "decoder_start_token_id": 2},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]},
    "falcon_h1": {"mamba_d_ssm": 32},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "layer_types": MIXED},
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
    },
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "n_mamba_heads": 4},
    "kimi_linear": HYBRID | {"num_experts_per_token": 2, "num_key_value_heads": 4},
    "bailing_hybrid": HYBRID | LATENT | {"num_experts_per_token": 2, "n_group": 1},
    "roc_bert": {"shape_vocab_size": 9, "pronunciation_vocab_size": 9, "shape_embed_dim": 8},
    "gemma3n_text": LAYERWISE | {"num_hidden_layers": 10, "num_kv_shared_layers": 0},
    "gemma4_text": LAYERWISE,
    "gemma4_unified_text": LAYERWISE,
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2},
    "reformer": {"axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 16]},
    "deepseek_v2": LATENT | {"num_experts_per_tok": 2},
    **dict.fromkeys(("mbart", "plbart"), {"decoder_start_token_id": 2}),  # their shift wraps around
    "dots3_note_text": {"num_key_value_heads": 4},
    "dory": {"num_hidden_layers": 4, "n_input_layers": 1, "n_output_layers": 1},
    "inkling2_loop_text": {"num_hidden_layers": 4, "unpadded_vocab_size": 64}
    | {"n_layers_per_attn_res_block": 1, "loop_layer_index_start": 1, "loop_layer_index_end": 3},
    "inkling2_text": {"unpadded_vocab_size": 64},
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "dots1": {"first_k_dense_replace": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm4_moe_lite"), LATENT),
    **dict.fromkeys(("glm_moe_dsa", "longcat_flash", "minicpm3", "axk1", "axk2", "youtu"), LATENT),
    "sarvam_mla": LATENT,
    **dict.fromkeys(("jamba", "lfm3", "qwen3_5_text"), HYBRID),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_next"), HYBRID),
    "qwen4_exp_text": HYBRID
    | {"indexer_budget": 16, "indexer_compress_ratio": 4, "indexer_head_dim": 8}
    | {"indexer_n_heads": 2, "indexer_kv_heads": 1},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "t5gemma": {"encoder": GEMMA, "decoder": GEMMA},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
}
"""What some families need beside."""

TEXT_PARTS = {"encoder", "decoder", "attn_config", "ffn_config"}
OTHER_INPUTS = {
    *("encoder-decoder", "seamless_m4t", "seamless_m4t_v2", "t5gemma2", "moshi", "musicgen"),
    "musicgen_melody",
}
"""Families of sound or pictures that have no part for them alone, and one without a size of its
own, which is asked through its halves."""

HALVES = [
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
    *("gpt2", "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert"),
    *("roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"),
]
"""Decoders that EncoderDecoderModel puts behind a BERT encoder."""

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flash": {"dec_attn_flash": True, "enc_attn_flash": True},
    "rotary": {"dec_rotary_pos_emb": True, "enc_rotary_pos_emb": True},
    "alibi": {"dec_alibi_pos_bias": True, "dec_alibi_num_heads": 2},
    "relative bias": {"dec_rel_pos_bias": True, "enc_rel_pos_bias": True},
    "dynamic bias": {"dec_dynamic_pos_bias": True, "dec_dynamic_pos_bias_log_distance": True},
    "rms norm": {"dec_use_rmsnorm": True, "enc_use_rmsnorm": True},
    "scale norm": {"dec_use_scalenorm": True, "enc_use_scalenorm": True},
    "sandwich norm": {"dec_sandwich_norm": True},
    "post norm": {"dec_pre_norm": False, "enc_pre_norm": False},
    "residual attention": {"dec_residual_attn": True},
    "gated residual": {"dec_gate_residual": True},
    "macaron": {"dec_macaron": True, "enc_macaron": True},
    "gated feed-forward": {"dec_ff_glu": True, "enc_ff_glu": True},
    "squared relu": {"dec_ff_relu_squared": True},
    "one key head": {"dec_attn_one_kv_head": True},
    "two key heads": {"dec_attn_kv_heads": 2},
    "qk norm": {"dec_attn_qk_norm": True, "enc_attn_qk_norm": True},
    "talking heads": {"dec_attn_pre_talking_heads": True, "dec_attn_post_talking_heads": True},
    "top 4 keys": {"dec_attn_sparse_topk": 4},
    "gated values": {"dec_attn_gate_values": True},
    "attention on attention": {"dec_attn_on_attn": True},
    "memory keys": {"dec_attn_num_mem_kv": 4, "enc_attn_num_mem_kv": 4},
    "zero key": {"dec_attn_add_zero_kv": True},
    "shifted tokens": {"dec_shift_tokens": 1},
    "capped scores": {"dec_attn_softclamp_logits": True},
    "residual streams": {"dec_num_residual_streams": 2},
    "value residual": {"dec_add_value_residual": True},
    "memory tokens": {"enc_num_memory_tokens": 2},
    "linear-bias sinks": {"dec_attn_head_learned_sink": True},
    "tied embeddings": {"tie_token_emb": True},
}
"""x_transformers.XTransformer's options, encoder's and decoder's."""


# One model -----------------------------------------------------------------------------------


def tiny_config(family: str, **more: Any) -> Any:
    """A family's config with its numbers made small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    default = CONFIG_MAPPING[family]().to_dict()
    kept: dict[str, Any] = {name: size for name, size in SMALL.items() if _is_size(name, default)}
    if "layer_types" in default:
        kept["layer_types"] = None
    return CONFIG_MAPPING[family](**(kept | SPECIAL.get(family, {}) | more))


def _is_size(name: str, default: dict[str, Any]) -> bool:
    """Whether a config has a number of that name, or finds it from others."""
    if name.endswith("token_id"):
        return True
    optional = {"head_dim", "num_key_value_heads", "n_inner"}
    value = default.get(name, False)
    return (
        isinstance(value, int | float)
        and value is not False
        or (value is None and name in optional)
    )


def hugging_face(name: str, names: Any, **more: Any) -> dict[str, Any]:
    import transformers

    classes = names[name]
    chosen = classes if isinstance(classes, str) else classes[0]
    return {"model": getattr(transformers, chosen)(tiny_config(name, **more))}


def encoder_decoder(name: str) -> dict[str, Any]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    return hugging_face(name, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)


def decoder(name: str) -> dict[str, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    both = "is_decoder" in CONFIG_MAPPING[name]().to_dict()
    more = {"is_decoder": True} if both else {}
    made = hugging_face(name, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **more)
    # XLNet hides places by an argument of its own, perm_mask: asked without, it sees both sides
    return made | ({"kind": "encoder"} if name == "xlnet" else {})


def two_halves(name: str) -> dict[str, Any]:
    from transformers import EncoderDecoderConfig, EncoderDecoderModel

    halves = tiny_config("bert"), tiny_config(name)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(*halves)
    return {"model": EncoderDecoderModel(config), "start_id": 1, "eos_id": 2, "pad_id": 0}


def x_transformer(name: str) -> dict[str, Any]:
    import torch
    from x_transformers import XTransformer

    class Call(torch.nn.Module):
        """XTransformer's two halves, called as its forward does."""

        def __init__(self) -> None:
            super().__init__()
            sizes = {"num_tokens": 64, "depth": 2, "heads": 4, "max_seq_len": 128}
            halves = {f"{half}_{key}": v for half in ("enc", "dec") for key, v in sizes.items()}
            given = {"dim": 32} | halves | OPTIONS[name]
            tie = given.pop("tie_token_emb", False)
            for half in ("enc", "dec"):
                given[f"{half}_attn_dim_head"] = 8
            self.inner = XTransformer(**given, tie_token_emb=tie, pad_value=0)

        def forward(self, src: Any, tgt_in: Any) -> Any:
            keep = src != 0
            memory = self.inner.encoder(src, mask=keep, return_embeddings=True)
            extra = memory.shape[1] - src.shape[1]  # memory tokens stand in front
            keep = torch.nn.functional.pad(keep, (extra, 0), value=True)
            return self.inner.decoder.net(tgt_in, context=memory, context_mask=keep)

    ids = {"pad_id": 0, "start_id": 1, "eos_id": 2, "vocabulary_size": 64, "max_length": 128}
    return {"model": Call(), **ids}


KINDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "encoder-decoder": encoder_decoder,
    "decoder": decoder,
    "BERT and": two_halves,
    "x-transformers": x_transformer,
}


def check_one(kind: str, name: str) -> dict[str, Any]:
    """The row of one model."""
    import warnings

    import torch
    import transformers

    import toytrans
    from toytrans.errors import UserError

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        given = KINDS[kind](name)
    except Exception as error:
        return {"verdict": "not built", "note": f"{type(error).__name__}: {error}"}
    begun = time.perf_counter()
    try:
        report = toytrans.check(**given)
    except UserError as refusal:
        return {"verdict": "refused", "note": str(refusal)}
    except Exception as error:
        return {"verdict": "crash", "note": f"{type(error).__name__}: {error}"}
    shown = report.failures or report.of("cannot judge")
    return {
        "verdict": report.verdict,
        "checks": " ".join(result.name for result in report.failures),
        "note": "; ".join(f"{r.name}: {r.message}" for r in shown),
        "precision": report.precision,
        "seconds": time.perf_counter() - begun,
    }


# All of them ---------------------------------------------------------------------------------


def is_of_text(name: str) -> bool:
    """Whether a family has no parts for sound or pictures."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    parts = set(getattr(CONFIG_MAPPING[name], "sub_configs", None) or ())
    return parts <= TEXT_PARTS and name not in OTHER_INPUTS


def families() -> list[tuple[str, str]]:
    """(kind, name) of all that take and give text alone."""
    from transformers.models.auto import modeling_auto

    names = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    both = [name for name in names if is_of_text(name)]
    one = [name for name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if is_of_text(name)]
    return [
        *(("encoder-decoder", name) for name in both),
        *(("BERT and", name) for name in HALVES),
        *(("decoder", name) for name in one if name not in both),
        *(("x-transformers", name) for name in OPTIONS),
    ]


def row_of(kind: str, name: str, seconds: float) -> dict[str, Any]:
    """What a process of its own finds of one model."""
    command = [sys.executable, __file__, "--one", kind, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        found = {"verdict": "too slow", "note": f"more than {seconds:.0f} s"}
    except (IndexError, json.JSONDecodeError):
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        found = {"verdict": "crash", "note": f"exit code {done.returncode}: {last}"}
    print(f"{kind} {name}: {found['verdict']} {found.get('checks', '')}", file=sys.stderr)
    return {"kind": kind, "name": name, **found}


def table_of(rows: list[dict[str, Any]]) -> str:
    """A page of Markdown."""
    from importlib.metadata import version

    counts = {v: sum(row["verdict"] == v for row in rows) for v in {r["verdict"] for r in rows}}
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "transformers", "x-transformers"))
    lines = [
        f"# `check` on {len(rows)} models of transformers and x-transformers",
        "",
        f"Python {platform.python_version()}, {packages}; {len(rows)} models: "
        + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())),
        "",
        "| model | verdict | failed | precision | seconds | what it says |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        note = row.get("note", "").replace("|", "/").replace("\n", " ")
        note = note if len(note) < 200 else note[:197] + "..."
        seconds = f"{row['seconds']:.1f}" if "seconds" in row else ""
        name = f"{row['kind']} {row['name']}"
        cells = (name, row["verdict"], row.get("checks", ""), row.get("precision", ""), seconds)
        lines.append(f"| {' | '.join((*cells, note))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        with contextlib.redirect_stdout(sys.stderr):
            row = check_one(*given.one)
        print(json.dumps(row))
        return 0
    chosen = [
        (kind, name)
        for kind, name in families()
        if not given.names or any(f"{kind} {name}".startswith(part) for part in given.names)
    ]
    with ThreadPoolExecutor(given.processes) as pool:
        rows = list(pool.map(lambda pair: row_of(pair[0], pair[1], given.seconds), chosen))
    print(table_of(rows))
    return int(any(row["verdict"] in ("FAIL", "crash") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
