"""The faults that a config may name: mistakes that are made on purpose in a model or in what it
learns from. The table says where the class of each is, so that only those who make a fault import
it.

An exercise hides the name of its fault. A hidden name is encoded so that nobody reads it by
accident, neither in the config nor in a title of the run. It stops no one who wants to know:
`decoded_fault` decodes it without a key.
"""

import base64

from toytrans.errors import did_you_mean

FAULTS = {
    "no_causal": "toytrans.training.faults:NoCausal",
    "triangle_off_by_one": "toytrans.training.faults:TriangleOffByOne",
    "pad_visible": "toytrans.training.faults:PadVisible",
    "mask_flipped": "toytrans.training.faults:MaskFlipped",
    "labels_not_shifted": "toytrans.training.faults:LabelsNotShifted",
    "pad_is_eos": "toytrans.training.faults:PadIsEos",
    "wrong_start": "toytrans.training.faults:WrongStart",
    "wrong_scale": "toytrans.training.faults:WrongScale",
    "no_scale": "toytrans.training.faults:NoScale",
    "no_position": "toytrans.training.faults:NoPosition",
    "loss_on_pads": "toytrans.training.faults:LossOnPads",
    "batch_mean_of_means": "toytrans.training.faults:MeanOfMeans",
    "no_residual": "toytrans.training.faults:NoResidual",
    "no_norm": "toytrans.training.faults:NoNorm",
    "no_feed_forward": "toytrans.training.faults:NoFeedForward",
}
"""The class of each fault, for `pkgutil.resolve_name`."""


def hide(fault: str | None) -> str:
    """The text that stands for a fault in an exercise's config, or for none at all."""
    encoded = base64.b32encode((fault or "none").encode()).decode()
    return "hidden-" + encoded.rstrip("=").lower()


HIDDEN: dict[str, str | None] = {hide(fault): fault for fault in (*FAULTS, None)}
"""What each hidden text stands for: a fault, or None where an exercise breaks nothing."""


def check_fault_name(fault: str) -> str:
    """The text of a config, if it names or hides a fault. Raises ValueError for any other."""
    if fault not in FAULTS and fault not in HIDDEN:
        raise ValueError(f"found {fault!r}; {did_you_mean(fault, FAULTS)}")
    return fault


def is_hidden(fault: str | None) -> bool:
    """Whether a config's fault is that of an exercise."""
    return fault in HIDDEN


def decoded_fault(fault: str | None) -> str | None:
    """The name of the fault that a config's text stands for, or None if nothing is broken."""
    if fault in HIDDEN:
        return HIDDEN[fault]
    return fault


def openly_named_fault(fault: str | None) -> str | None:
    """The fault that may be told, because the config names it openly; None in an exercise."""
    return None if is_hidden(fault) else fault


def fault_remark(fault: str | None) -> str:
    """What titles say about a config's fault. It is empty without one, and for an exercise it does
    not tell the name."""
    if is_hidden(fault):
        return "an exercise"
    return f"broken on purpose: {fault}" if fault else ""
