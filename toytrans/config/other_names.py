"""The names that JoeyNMT, Hugging Face, fairseq, OpenNMT, sockeye and nanoGPT give to our keys.

`refusals` looks here when a key is unknown, before it looks for a like spelling. A name of another
program is a key of ours, or what takes its place.
"""

NAMES_OF: dict[str, str] = {
    "seed": "random_seed manual_seed",
    "device": "use_cuda cuda gpu gpus no_cuda use_gpu accelerator device_type gpu_ranks use_cpu",
    "data.task or data.files": "dataset dataset_name corpus",
    "data.files.train": "data.train train_data train_file train_path train_src train_tgt trainpref "
    "train_prefix path_src path_tgt training_data prepared_data",
    "data.files.valid": "data.valid data.dev data.validation dev valid_data valid_file validpref "
    "validation_file validation_data validation_source validation_target val_data",
    "data.files.test": "data.test test_data test_file testpref",
    "data.files.split": "level tokenizer_type character_level",
    "data.files.unknown": "unk_token unk unk_id",
    "data.files.min_frequency": "min_freq voc_min_freq src_words_min_frequency "
    "tgt_words_min_frequency word_min_count",
    "data.train_length": "max_length max_seq_length max_seq_len max_source_length "
    "max_target_length max_sent_length src_seq_length tgt_seq_length min_length",
    "data.symbols": "vocab_size vocabulary_size src_vocab_size tgt_vocab_size num_words voc_limit "
    "n_vocab src_vocab tgt_vocab",
    "data.batch_tokens": "batch_size per_device_train_batch_size train_batch_size max_tokens "
    "batch_type micro_batch_size tokens_per_batch batch_sentences",
    "model.d_model": "hidden_size embed_dim embedding_dim emb_size n_embd dim d_embed model_dim "
    "encoder_embed_dim decoder_embed_dim transformer_model_size model_size rnn_size hidden_dim "
    "word_vec_size emb_dim num_embed width",
    "model.n_heads": "num_heads heads n_head nhead num_attention_heads attention_heads h "
    "encoder_attention_heads decoder_attention_heads transformer_attention_heads",
    "model.n_encoder_layers": "num_encoder_layers encoder_layers enc_layers encoder_depth",
    "model.n_decoder_layers": "num_decoder_layers decoder_layers dec_layers decoder_depth",
    "model.n_encoder_layers and model.n_decoder_layers": "num_layers n_layers layers n_layer "
    "num_hidden_layers depth n",
    "model.d_ff": "ff_size ffn_dim dim_feedforward intermediate_size encoder_ffn_dim d_inner "
    "decoder_ffn_dim encoder_ffn_embed_dim decoder_ffn_embed_dim transformer_ff mlp_dim "
    "transformer_feed_forward_num_hidden feed_forward_size ffn_embed_dim ff_dim",
    "model.dropout": "attention_dropout activation_dropout hidden_dropout dropout_rate "
    "relu_dropout attn_dropout resid_pdrop attn_pdrop embd_pdrop p_drop "
    "transformer_dropout_attention",
    "model.norm": "layer_norm pre_norm norm_first normalize_before encoder_normalize_before "
    "decoder_normalize_before layer_norm_position prenorm layernorm transformer_preprocess",
    "model.activation": "activation_function activation_fn hidden_act act_fn "
    "pos_ffn_activation_fn feed_forward_proj transformer_activation_type",
    "model.tie_embeddings": "tied_embeddings tied_softmax tie_word_embeddings share_embeddings "
    "share_all_embeddings share_decoder_embeddings weight_tying weight_tying_type tie_weights "
    "share_decoder_input_output_embed",
    "model.positions": "position_encoding positional_encoding pos_encoding pe "
    "position_embedding_type position_encoding_type encoder_learned_pos "
    "transformer_positional_embedding_type pos_emb",
    "model.max_positions": "max_position_embeddings max_source_positions max_target_positions "
    "n_positions block_size max_len context_length",
    "train.lr": "learning_rate lr_max base_lr max_lr peak_lr initial_learning_rate",
    "train.schedule": "scheduler lr_scheduler lr_scheduler_type scheduling decay_method "
    "lr_schedule learning_rate_scheduler_type learning_rate_schedule",
    "train.warmup_steps": "warmup warmup_updates learning_rate_warmup num_warmup_steps "
    "warmup_iters warmup_ratio",
    "train.max_steps": "epochs num_epochs n_epochs num_train_epochs max_epochs max_epoch "
    "max_num_epochs steps num_steps n_steps train_steps max_updates max_update total_steps "
    "max_iters num_train_steps updates",
    "train.clip_norm": "grad_clip clip_grad_norm max_grad_norm gradient_clipping_threshold "
    "clip_gradient gradient_clip_val clip_grad",
    "train.weight_decay": "wd l2",
    "train.betas": "adam_betas adam_beta1 adam_beta2 beta1 beta2",
    "train.eps": "adam_eps adam_epsilon epsilon optimizer_eps",
    "model.length_penalty": "beam_alpha lenpen beam_search_length_penalty length_penalty_alpha",
    "train.label_smoothing": "label_smoothing_factor smoothing",
    "train.accumulate": "gradient_accumulation_steps batch_multiplier accum_count update_freq "
    "update_interval accumulate_grad_batches",
    "train.eval_every": "validation_freq eval_steps valid_steps eval_interval eval_freq "
    "validate_interval_updates checkpoint_interval val_check_interval save_steps "
    "save_checkpoint_steps save_interval_updates",
    "train.log_every": "logging_steps logging_freq report_every log_interval log_freq",
    "train.patience": "early_stopping_patience early_stopping max_num_checkpoint_not_improved",
    "train.keep_checkpoints": "save_total_limit keep_last_ckpts keep_best_ckpts keep_checkpoint "
    "keep_last_params keep_last_epochs",
    "train.precision": "fp16 bf16 amp dtype mixed_precision use_amp model_dtype half torch_dtype",
    "--out": "model_dir save_dir output_dir save_model output out_dir save_path name run_name",
    "eval --beam": "beam_size beam num_beams n_best",
}
"""By what it is here: the names that other programs have for it. A name with a dot is only meant in
that section."""

NO_KEY = {
    "the optimizer is AdamW": "optimizer optim optimiser",
    "embeddings are multiplied by the root of d_model": "scale scale_embedding no_scale_embedding",
    "pairs are always shuffled": "shuffle",
    "losses are means over real tokens": "normalization",
    "the checkpoint with the best exact match is kept": "early_stopping_metric "
    "metric_for_best_model",
}
"""What holds here without a key, and the names that other programs have for it."""

REMARKS = {
    "device": "cpu, cuda, cuda:N or auto",
    "data.symbols": "the symbols of a task; those of files are in the files",
    "data.batch_tokens": "in padded tokens, rows times (S + T)",
    "data.train_length": "shortest and longest source of a task, say [1, 20]",
    "data.files.split": "blanks or characters",
    "data.files.unknown": "error or symbol",
    "model.dropout": "one rate for all",
    "model.norm": "pre or post",
    "model.tie_embeddings": "one table for source, target and output",
    "model.length_penalty": "an exponent of the length: log-probability / length ** it",
    "train.betas": "both in a list, say [0.9, 0.98]",
    "train.max_steps": "in steps of the optimizer",
    "train.warmup_steps": "in steps",
    "train.eval_every": "a checkpoint is saved at every evaluation",
    "train.precision": "auto, fp32, bf16 or fp64; there is no fp16",
    "--out": "an option of `toytrans train`",
    "eval --beam": "an option of `toytrans eval`",
}
"""What else to know of some of them."""


def what_it_is_here(section: str, name: str) -> str:
    """What a key of another program is here, as the end of an error; empty for an unknown name."""
    name = name.lower().replace("-", "_")
    for key, names in NAMES_OF.items():
        if {name, f"{section}.{name}"} & set(names.split()):
            remark = REMARKS.get(key)
            return f"that is {key} here" + (f" ({remark})" if remark else "")
    for fact, names in NO_KEY.items():
        if name in names.split():
            return f"there is no such key, because {fact}; leave it out"
    return ""
