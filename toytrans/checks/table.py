"""The table of checks: of what parts each is made, and of which batches a part is asked."""

from collections.abc import Callable
from dataclasses import dataclass

from toytrans.checks import changes, gradients, labels, loss, scale, steps, sublayers
from toytrans.checks.batch import Batch
from toytrans.checks.change import moves, stays
from toytrans.checks.result import Result


@dataclass(frozen=True)
class Part:
    """A part of a check, by its name in words.

    often: asked of every batch, in every mode and precision. essential: without it the check is
    not judged. fragile: it fails where the model raises an exception at it.

    """

    check: str
    name: str
    ask: Callable[[Batch], Result]
    often: bool = False
    essential: bool = False
    fragile: bool = False


PARTS = (
    Part("pads", "more pads", stays(changes.pads_appended), often=True, essential=True),
    Part("pads", "their embeddings", stays(changes.pads_hold_anything)),
    Part("pads", "gradients", gradients.towards(of_future=False), often=True),
    Part("future", "single tokens", stays(changes.later_token), often=True, essential=True),
    Part("future", "all that follows", stays(changes.all_that_follows), often=True),
    Part("future", "prefixes", stays(changes.prefixes), often=True),
    Part("future", "gradients", gradients.towards(of_future=True), often=True),
    Part("rows", "a pair alone", stays(changes.rows_alone), often=True, fragile=True),
    Part("rows", "another order", stays(changes.rows_in_another_order), often=True, fragile=True),
    Part("rows", "an empty pair", stays(changes.empty_pair_added)),
    Part("calls", "others between", stays(changes.other_calls_between), often=True, fragile=True),
    Part("order", "neighbours swapped", moves(changes.neighbours_swapped)),
    Part("steps", "one by one", steps.steps_are_the_pass),
    Part("loss", "pads", loss.pad_labels_ignored),
    Part("loss", "halves", loss.halves_add_up),
    Part("loss", "likelier labels", loss.likelier_labels_cost_less),
    Part("labels", "the shift", labels.labels_shifted),
    Part("labels", "start and end", labels.ends_agree),
    Part("scale", "every attention", scale.attention_is_right),
    Part("sublayers", "residual connections", sublayers.input_passes_by),
    Part("sublayers", "norms", sublayers.scale_is_normed),
    Part("sublayers", "feed-forward", sublayers.feed_forward_at_work),
)

READS_PADS = ("pads", "rows", "calls", "source", "labels")
"""Checks that fail as well where the source has another pad than the one that is known."""
