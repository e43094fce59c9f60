"""The names that a config and the command line choose among."""

from typing import Literal

PadMask = Literal["keys", "keys_and_queries"]
FaultName = Literal[
    "no_causal",
    "triangle_off_by_one",
    "pad_visible",
    "mask_flipped",
    "labels_not_shifted",
    "pad_is_eos",
    "wrong_start",
    "wrong_scale",
    "no_scale",
    "no_position",
    "loss_on_pads",
    "batch_mean_of_means",
    "no_residual",
    "no_norm",
    "no_feed_forward",
]
FormatName = Literal["text", "tsv", "jsonl", "scan"]
ExportFormat = Literal["safetensors", "huggingface", "ctranslate2", "onnx"]
Metric = Literal[
    "exact_match",
    "token_accuracy",
    "free_token_accuracy",
    "loss",
    "perplexity",
    "steps",
    "seconds",
    "parameters",
]
