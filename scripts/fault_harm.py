"""The harm that every fault does: sound and broken trainings side by side, three seeds each.

    python scripts/fault_harm.py [--seeds 3] [--jobs 1] [--out runs/fault_harm]

Each fault is trained on a config where it does visible harm: configs/textbook.yaml, with the
changes in GROUPS. Every group is a sweep, so the same command goes on where it was stopped. Prints
a Markdown table: every seed, beside the sound runs of the same group.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from toytrans.choices import FaultName

TEXTBOOK = Path(__file__).parent.parent / "configs" / "textbook.yaml"


class Group(NamedTuple):
    """Faults that are trained on one config. changes: keys of configs/textbook.yaml."""

    faults: Sequence[FaultName]
    changes: dict[str, str]


GROUPS = {
    "textbook": Group(
        (
            "no_causal",
            "triangle_off_by_one",
            "pad_visible",
            "mask_flipped",
            "labels_not_shifted",
            "pad_is_eos",
            "wrong_start",
            "no_position",
            "no_residual",
            "no_norm",
            "no_feed_forward",
        ),
        {},
    ),
}
