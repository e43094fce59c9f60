"""Names that JoeyNMT, fairseq, Hugging Face, torch and the Annotated Transformer give to keys."""

_ALIKE = {
    "model.n_encoder_layers": "encoder.num_layers encoder_layers num_encoder_layers enc_layers",
    "model.n_decoder_layers": "decoder.num_layers decoder_layers num_decoder_layers dec_layers",
    "model.n_encoder_layers and model.n_decoder_layers": "n_layers num_layers layers "
    "num_hidden_layers n_layer",
    "model.d_model": "hidden_size embedding_dim embed_dim emb_dim encoder_embed_dim "
    "decoder_embed_dim n_embd model_dim",
    "model.n_heads": "num_heads nhead n_head encoder_attention_heads "
    "decoder_attention_heads num_attention_heads attention_heads",
    "model.d_ff": "ff_size dim_feedforward encoder_ffn_embed_dim decoder_ffn_embed_dim "
    "encoder_ffn_dim decoder_ffn_dim ffn_dim intermediate_size d_inner",
    "model.dropout": "attention_dropout activation_dropout hidden_dropout hidden_dropout_prob "
    "attention_probs_dropout_prob dropout_rate",
    "model.tie_embeddings": "tied_embeddings tied_softmax share_all_embeddings "
    "share_decoder_input_output_embed tie_word_embeddings",
    "model.norm": "layer_norm encoder_normalize_before decoder_normalize_before norm_first",
    "model.activation": "activation_fn activation_function hidden_act",
    "model.max_positions": "max_position_embeddings max_source_positions max_target_positions",
    "train.lr": "learning_rate",
    "train.schedule": "scheduling lr_scheduler lr_scheduler_type",
    "train.warmup_steps": "warmup warmup_updates learning_rate_warmup num_warmup_steps "
    "warmup_ratio",
    "train.max_steps, in optimiser steps": "epochs epoch max_epoch max_epochs num_epochs "
    "num_train_epochs updates max_update max_updates",
    "train.accumulate": "batch_multiplier update_freq gradient_accumulation_steps",
    "train.clip_norm": "clip_grad_norm clip_grad_val max_grad_norm",
    "train.label_smoothing": "label_smoothing_factor smoothing",
    "train.eval_every": "validation_freq eval_steps validate_interval_updates "
    "checkpoint_every checkpoint_interval save_every save_interval save_steps",
    "train.keep_checkpoints": "keep_last_ckpts keep_best_ckpts save_total_limit keep_last_epochs",
    "train.patience": "early_stopping_patience",
    "train.log_every": "logging_freq logging_steps log_interval",
    "train.precision": "fp16 bf16 mixed_precision amp",
    "data.batch_tokens, in padded tokens": "batch_size batch_type max_tokens eval_batch_size "
    "eval_batch_type per_device_train_batch_size",
    "data.symbols": "vocab_size src_vocab tgt_vocab",
    "data.train_length": "max_sent_length src.max_length trg.max_length",
    "data.files.train": "data.train",
    "data.files.valid": "data.dev",
    "data.files.test": "data.test",
    "seed": "random_seed",
    "device": "use_cuda no_cuda use_gpu",
    "the option --beam of eval": "beam_size beam num_beams",
    "the option --out of train": "model_dir output_dir save_dir",
}
"""Our key: their names, some with the section that they stand in."""

FOREIGN = {name: f"here {ours}" for ours, names in _ALIKE.items() for name in names.split()}
FOREIGN |= {
    name: f"always {what} here; leave it out"
    for what, names in {
        "AdamW": "optimizer optim",
        "betas 0.9 and 0.98": "adam_betas",
        "the mean over real target tokens": "normalization",
        "embeddings times the root of d_model": "embeddings.scale scale_embedding",
        "batch first": "batch_first",
        "PAD 0, BOS 1, EOS 2": "pad_token_id bos_token_id eos_token_id decoder_start_token_id",
    }.items()
    for name in names.split()
}

_MARKS = {
    ("JoeyNMT", "docs/from/joeynmt.md"): "joeynmt_version training testing trg use_cuda "
    "tied_embeddings tied_softmax ff_size learning_rate_warmup validation_freq",
    ("Hugging Face", "docs/from/huggingface.md"): "model_type architectures transformers_version "
    "encoder_attention_heads decoder_attention_heads encoder_ffn_dim decoder_ffn_dim "
    "tie_word_embeddings num_train_epochs per_device_train_batch_size",
    ("fairseq", "docs/configuration.md"): "optimization criterion encoder_embed_dim "
    "decoder_embed_dim encoder_ffn_embed_dim share_all_embeddings max_update update_freq",
}
"""A library and the page that helps: words that stand in its files alone."""


def library_of(words: set[str]) -> tuple[str, str] | None:
    """The library that a file with these keys and sections is of, and a page; None = unknown."""
    marks = {library: len(words.intersection(_MARKS[library].split())) for library in _MARKS}
    library = max(marks, key=marks.__getitem__)
    return library if marks[library] >= 2 else None
