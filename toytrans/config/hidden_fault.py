"""How a config says which fault is planted: by its name, or hidden, as in an exercise.

A hidden name is encoded only so that nobody reads it by accident, neither in the config nor in a
title of the run. It stops no one who wants to know: `planted_fault` decodes it without a key.
"""

import base64
from typing import cast, get_args

from toytrans.config.names import FaultName


def hide(fault: FaultName | None) -> str:
    """The text that stands for a fault in an exercise's config, or for none at all."""
    encoded = base64.b32encode((fault or "none").encode()).decode()
    return "hidden-" + encoded.rstrip("=").lower()


HIDDEN: dict[str, FaultName | None] = {hide(fault): fault for fault in (*get_args(FaultName), None)}
"""What each hidden text stands for."""


def is_hidden(fault: str | None) -> bool:
    """Whether a config's fault is that of an exercise."""
    return fault in HIDDEN


def planted_fault(fault: str | None) -> FaultName | None:
    """The fault that a config's text stands for, or None if nothing is broken."""
    return HIDDEN[fault] if fault in HIDDEN else cast(FaultName | None, fault)


def named_fault(fault: str | None) -> FaultName | None:
    """The fault that may be told, because the config names it openly; None in an exercise."""
    return None if is_hidden(fault) else planted_fault(fault)


def fault_remark(fault: str | None) -> str:
    """What titles say about a config's fault. It is empty without one, and for an exercise it does
    not tell the name."""
    if is_hidden(fault):
        return "an exercise"
    return f"broken on purpose: {fault}" if fault else ""
