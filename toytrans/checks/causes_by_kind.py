"""Causes that go by where a difference begins: by what is seen of the weights of an attention, and
by the kind of thing that it is elsewhere. Several checks have these rows, each with its own words
for what follows, and they stand before the rows that ask for a mask."""

from collections.abc import Callable, Mapping
from typing import Any

from toytrans.checks.beginning import Beginning, Kind
from toytrans.checks.common_causes import POLARITY
from toytrans.checks.outcome import Cause, Evidence
from toytrans.checks.registry import Check

WHAT_IT_DOES: dict[Kind, str] = {
    "norm": "takes its statistics over several places",
    "convolution": "is a convolution that reaches other places",
    "recurrence": "is a recurrence that runs over other places",
    "pooling": "sums, averages or compares over several places",
    "experts": "chooses experts for several tokens at once",
    "product": "multiplies over places, with no softmax of attention",
    "shift": "moves tokens to other places",
    "state": "works with numbers that another call has left there",
    "length": "depends on the number of places",
}
"""Kinds that are no attention, and what is said of the module where a difference begins."""

TO = {"self-attention": "to the encoder", "cross-attention": "to cross-attention"}
"""Where a mask of the source's pads belongs, by the attention that sees them."""


def evidence_of(beginning: Beginning | None, attends: bool) -> dict[str, Any]:
    """What causes go by: where a difference begins, as far as that is known. attends: whether the
    model computes any attention."""
    weights: Mapping[str, Any] = {} if beginning is None else beginning.weights
    words = "" if beginning is None else beginning.words
    kind = "" if beginning is None else beginning.kind
    is_known = kind == "attention" and bool(words)
    return {
        "begins": kind,
        "module": words or "the model",
        "at": f"{words}: " if is_known else "",
        "attends": attends,
        "weights": weights,
        "closed_score": weights.get("fill"),
        "closed_weight": weights.get("closed_weight"),
        "to": TO.get(weights.get("side", ""), "to the encoder and to cross-attention"),
    }


def causes_by_kind(
    check: Check, consequence: str, remedies: Mapping[Kind, str]
) -> tuple[Cause, ...]:
    """Rows of a check for all kinds that are no attention, and one for a model without any.
    consequence: what moves with what, in words; remedies: what to do about each kind."""

    def begins_in(kind: Kind) -> Callable[[Evidence], bool]:
        return lambda evidence: evidence.get("begins") == kind

    rows = [
        check.cause(
            kind,
            when=f"the difference begins in what {what}",
            words=f"{{module}} {what}, so {consequence}",
            remedy=remedies[kind],
            fits=begins_in(kind),
        )
        for kind, what in WHAT_IT_DOES.items()
        if kind in remedies
    ]
    without = check.cause(
        "without_attention",
        when="the model computes no attention, and where the difference begins is not known",
        words=f"{consequence}, in a model that computes no attention",
        remedy="what carries one token to the place of another: a recurrence, a sum, a shift?",
        fits=has_no_attention,
    )
    return (*rows, without)


def has_no_attention(evidence: Evidence) -> bool:
    """Whether nothing in the model could be masked."""
    return not evidence.get("begins") and evidence.get("attends") is False


# In attention ------------------------------------------------------------------------------------


def _seen(evidence: Evidence) -> Mapping[str, Any] | None:
    """What is seen of the weights of attention, where closed keys have some; None where not."""
    weights: Mapping[str, Any] = evidence.get("weights") or {}
    return weights if weights.get("closed_weight", 0) > 0 else None


def weights_fall_short(evidence: Evidence) -> bool:
    """Whether weights were taken away behind softmax."""
    weights = _seen(evidence)
    return weights is not None and bool(weights["is_short"])


def open_is_closed(evidence: Evidence) -> bool:
    """Whether a query sees what it must not, and nothing else."""
    weights = _seen(evidence)
    return weights is not None and not weights["open_weight"]


def all_keys_alike(evidence: Evidence) -> bool:
    """Whether a query has the same weight on every key."""
    weights = _seen(evidence)
    return weights is not None and bool(weights["is_uniform"])


def closed_scores_are_one_number(evidence: Evidence) -> bool:
    """Whether a mask gave all closed scores one number, and softmax some weight."""
    weights = _seen(evidence)
    return weights is not None and weights["fill"] is not None


def causes_in_attention(check: Check, consequence: str, no_key: str) -> tuple[Cause, ...]:
    """Rows of a check for what weights of attention show. no_key: what to do about a query without
    a key."""
    behind = check.cause(
        "mask_behind_softmax",
        when="softmax gives weight to keys that are closed behind it: the weights that are left of "
        "a query do not sum to one",
        words=f"{{at}}the mask comes behind softmax, where closed keys have taken their share of "
        f"the weights already, so {consequence}",
        remedy="fill scores with -inf or -1e9 before softmax",
        fits=weights_fall_short,
    )
    inverted = check.cause(
        "mask_inverted",
        when="a query gives no weight to what it may see, and some to what must be closed",
        words=f"{{at}}the mask closes what may be seen and opens the rest, so {consequence}",
        remedy=f"{POLARITY}",
        fits=open_is_closed,
        read="mistakes/masks-inverted.md",
    )
    keyless = check.cause(
        "query_without_key",
        when="a query has the same weight on every key, closed ones too",
        words=f"{{at}}a query has every key closed, and softmax then gives all of them the same "
        f"weight, so {consequence}",
        remedy=no_key,
        fits=all_keys_alike,
    )
    weak = check.cause(
        "closed_by_too_little",
        when="closed scores hold one number, and softmax gives their keys some weight",
        words="{at}closed scores hold {closed_score:.4g}, which leaves their keys a weight of "
        f"{{closed_weight:.2g}}, so {consequence}",
        remedy="fill with -inf or -1e9, behind all that scales or caps the scores",
        fits=closed_scores_are_one_number,
    )
    return (behind, inverted, keyless, weak)
