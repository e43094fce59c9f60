"""The proofs, in order, and of which batches each is asked."""

from collections.abc import Callable

from toytrans.insight.proofs import (
    decoding,
    future,
    internals,
    labels,
    outputs,
    pads,
    reach,
    scores,
    sublayers,
)
from toytrans.insight.proofs.batch import ProofBatch
from toytrans.insight.proofs.report import Outcome

Proof = Callable[[ProofBatch], Outcome]

PROOFS: dict[str, tuple[str, Proof]] = {
    "a": ("appended pads change no real output", pads.pads_appended),
    "b": ("a future target token changes no earlier output", future.future_changed),
    "c": ("what a pad's embedding holds changes nothing", internals.pads_hold_anything),
    "d": ("a pair alone = the pair in a batch", pads.one_at_a_time),
    "e": ("no gradient from real outputs to pads and future", internals.sees_nothing_closed),
    "f": ("step by step with the cache = one parallel pass", decoding.steps_are_the_pass),
    "g": ("pads closed as keys = as keys and queries", internals.pad_rows_do_no_harm),
    "h": ("the loss ignores pad labels", labels.pad_labels_ignored),
    "i": ("no NaN with an empty row", pads.empty_row),
    "j": ("the order of the source is seen", outputs.order_seen),
    "k": ("softmax is of q k / root of d_head, over keys", scores.attention_is_right),
    "l": ("labels are the next decoder inputs", labels.labels_shifted),
    "m": ("pad, start and end are told apart", labels.ends_agree),
    "n": ("a batch's loss = its halves' over their tokens", labels.halves_add_up),
    "o": ("residual connections carry the input", sublayers.input_passes_by),
    "p": ("layer norms hold the scale", sublayers.scale_is_normed),
    "q": ("every feed-forward sub-layer takes part", sublayers.feed_forward_at_work),
    "s": ("every source token moves some output", lambda batch: reach.source_seen([batch])),
    "t": ("every target token moves a later output", lambda batch: reach.target_seen([batch])),
    "u": ("a prefix of the target gives the prefix", future.prefixes_asked),
    "v": ("nothing is kept from call to call", outputs.nothing_kept),
    "x": ("a likelier label costs less", labels.likelier_labels_cost_less),
}

OFTEN = "abdeuv"
"""Proofs that are asked of every batch, in every mode and precision."""

SEVERAL = "j"
"""Proofs of what must change, which another seed may show."""

FRAGILE = "dv"
"""Proofs that fail where the model raises an exception at them."""

READS_PADS = "acdeisuv"
"""Proofs that fail as well where the source has another pad than the one that is known."""
