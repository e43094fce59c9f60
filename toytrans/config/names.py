"""The names that a config and the command line choose among, and the seal that hides one.

A sealed fault is one that nobody reads by accident, for exercises:

    fault: sealed-<16 characters of a nonce, 32 of a hash of it and the name>

Who tries every name finds the one inside, and training does. A sealed fault may be none.
"""

import hashlib
from itertools import product
from typing import Literal, cast, get_args

from toytrans.errors import UserError

TaskName = Literal[
    Literal["addition", "copy", "duplicate", "lexicon", "multiplication", "odds_first"],
    Literal["parity", "reverse", "reverse_nlplike", "shift", "sort", "stack"],
]
PositionName = Literal[
    "sinusoidal", "learned", "none", "rotary", "alibi", "t5", "relative", "anchored"
]
CrossPositionName = Literal["none", "anchored"]
PadMask = Literal["keys", "keys_and_queries"]
Backward = Literal["autograd", "by_hand"]
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

# Sealed faults -------------------------------------------------------------------------------

PREFIX = "sealed-"
NONCE = 8
"""Bytes of a nonce."""

CLOSED = "!"
"""Behind the name in the seal of a closed exercise, whose cure no command tells."""


def seal(fault: FaultName | None, nonce: bytes, *, closed: bool = False) -> str:
    """A fault, or none, sealed. nonce: 8 bytes; equal ones give equal seals."""
    assert len(nonce) == NONCE
    name = f"{fault or ''}{CLOSED if closed else ''}"
    return PREFIX + nonce.hex() + hashlib.sha256(nonce + name.encode()).hexdigest()[:32]


def opened(fault: str | None) -> FaultName | None:
    """The fault of a config, its seal opened. Raises UserError where the seal was changed."""
    if fault is None or not is_sealed(fault):
        return cast(FaultName | None, fault)  # the config checked it
    return _inside(fault)[0]


def is_closed(fault: str | None) -> bool:
    """Whether a fault is that of a closed exercise. Raises UserError where the seal was changed."""
    return fault is not None and is_sealed(fault) and _inside(fault)[1]


def _inside(fault: str) -> tuple[FaultName | None, bool]:
    """The name in a seal, and whether it is closed. Raises UserError where it was changed."""
    try:
        nonce = bytes.fromhex(fault.removeprefix(PREFIX)[: 2 * NONCE]).ljust(NONCE)
    except ValueError:
        nonce = bytes(NONCE)
    for name, closed in product((None, *get_args(FaultName)), (False, True)):
        if seal(name, nonce, closed=closed) == fault:
            return name, closed
    raise UserError(f"fault: {PREFIX}...: this seal was changed; take the one handed out")


def is_sealed(fault: str | None) -> bool:
    return fault is not None and fault.startswith(PREFIX)


def fault_remark(fault: str | None) -> str:
    """What titles say about a config's fault; empty without one."""
    if is_sealed(fault):
        return "a sealed exercise"
    return f"broken on purpose: {fault}" if fault else ""
