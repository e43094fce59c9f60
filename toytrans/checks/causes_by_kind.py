"""Causes that go by where a difference begins: by what is seen of the weights of an attention, and
by the kind of thing that it is elsewhere. Several checks have these rows, each with its own words
for what follows, and they stand before the rows that ask for a mask."""

from collections.abc import Callable, Iterator, Mapping
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

TO = {
    "self-attention": "to the encoder",
    "cross-attention": "to cross-attention",
    "latents": "to the attention in which latents read the source",
}
"""Where a mask of the source's pads belongs, by the attention that sees them."""


def evidence_of(beginning: Beginning | None, attends: bool) -> dict[str, Any]:
    """What causes go by: where a difference begins, as far as that is known. attends: whether the
    model computes any attention."""
    weights: Mapping[str, Any] = {} if beginning is None else beginning.weights
    words = "" if beginning is None else beginning.words
    kind = "" if beginning is None else beginning.kind
    is_known = kind == "attention" and bool(words)
    opened, closed = weights.get("added") or (0.0, 0.0)
    return {
        "begins": kind,
        "module": words or "the model",
        "at": f"{words}: " if is_known else "",
        "attends": attends,
        "weights": weights,
        "closed_score": weights.get("fill"),
        "closed_weight": weights.get("closed_weight"),
        "added_open": round(opened, 4),
        "added_closed": round(closed, 4),
        "open_heads": weights.get("open_heads"),
        "closed_heads": weights.get("closed_heads"),
        "queries": weights.get("queries"),
        "line": "" if beginning is None else beginning.line,
        "closed_in": "" if beginning is None else beginning.closed_in,
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


# Shapes ------------------------------------------------------------------------------------------


def lost_at_single_shapes(evidence: Evidence) -> bool:
    """Whether the batch passes in other shapes."""
    return bool(evidence["shapes_that_pass"])


def causes_of_shapes(check: Check, moved: str, rows: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Rows of a check for a batch in other shapes, and between them those that know where the
    difference begins. moved: which outputs do, in words."""
    seen = "outputs at real places change in a batch of {rows} rows, {places} target places"
    lost = check.cause(
        "lost_at_a_shape",
        when=f"{moved} move in one shape of a batch, and not in others before it",
        words=f"{seen}, and not in {{tried}} before: something is lost at single shapes",
        remedy="how is a mask, or what else follows the shape, made there?",
        fits=lost_at_single_shapes,
    )
    depends = check.cause(
        "depends_on_shape",
        when=f"{moved} move in the first other shape that is tried",
        words=f"{seen}: rows are mixed up, or something is lost",
        remedy="what depends on the batch's shape?",
    )
    return (lost, *rows, depends)


# In attention ------------------------------------------------------------------------------------


def _seen(evidence: Evidence) -> Mapping[str, Any] | None:
    """What is seen of the weights of attention, where closed keys have some; None where not."""
    weights: Mapping[str, Any] = evidence.get("weights") or {}
    return weights if weights.get("closed_weight", 0) > 0 else None


def weights_fall_short(evidence: Evidence) -> bool:
    """Whether weights were taken away behind softmax."""
    weights = _seen(evidence)
    return weights is not None and bool(weights["is_short"])


def are_latents(evidence: Evidence) -> bool:
    """Whether the queries that see what they must not are no places of source or target."""
    weights = _seen(evidence)
    return weights is not None and weights["side"] == "latents"


def pads_are_closed_as_queries(evidence: Evidence) -> bool:
    """Whether a mask closes all keys of pads, where they are queries."""
    weights = _seen(evidence)
    return weights is not None and bool(weights["rows_closed"])


def open_is_closed(evidence: Evidence) -> bool:
    """Whether queries see what they must not, and besides at most themselves."""
    weights = _seen(evidence)
    return weights is not None and bool(weights["is_inverted"])


def all_keys_alike(evidence: Evidence) -> bool:
    """Whether a query has the same weight on every key."""
    weights = _seen(evidence)
    return weights is not None and bool(weights["is_uniform"])


def mask_is_added(evidence: Evidence) -> bool:
    """Whether two small numbers are added to open and to closed scores."""
    weights = _seen(evidence)
    return weights is not None and weights["added"] is not None


def mask_is_multiplied(evidence: Evidence) -> bool:
    """Whether closed scores are multiplied with 0."""
    weights = _seen(evidence)
    return weights is not None and bool(weights["is_multiplied"])


def some_heads_are_closed(evidence: Evidence) -> bool:
    """Whether some heads see what they must not, and others do not."""
    weights = _seen(evidence)
    return weights is not None and bool(weights["open_heads"] and weights["closed_heads"])


def closed_scores_are_one_number(evidence: Evidence) -> bool:
    """Whether a mask gave all closed scores one number, and softmax some weight."""
    weights = _seen(evidence)
    return weights is not None and weights["fill"] is not None


def another_attention_closes(evidence: Evidence) -> bool:
    """Whether another attention of the same kind closes what this one shows."""
    return _seen(evidence) is not None and bool(evidence.get("closed_in"))


def passes_where_shorter(evidence: Evidence) -> bool:
    """Whether the same part passed in all shorter batches, of which there were some."""
    return bool(evidence.get("passed_at"))


def other_scores_are_closed(evidence: Evidence) -> bool:
    """Whether a mask changed scores there, and not those that must be closed."""
    weights = _seen(evidence)
    return weights is not None and bool(weights["is_masked"])


def causes_in_attention(
    check: Check, consequence: str, *, keys: str, no_key: str, latents: str
) -> tuple[Cause, ...]:
    """Rows of a check for what weights of attention show. keys: what must be closed, in words;
    no_key, latents: what to do about a query without a key, and about latents that read what they
    must not."""
    return (
        *_of_what_is_done_to_scores(check, consequence),
        *_of_queries(check, consequence, no_key, latents),
        *_of_some_keys(check, consequence, keys),
    )


def causes_of_masks_elsewhere(
    check: Check, consequence: str, *, keys: str, mask: str
) -> tuple[Cause, ...]:
    """Rows of a check for masks that are in other layers, or made for shorter sequences, or that
    close other keys, which come behind those that know more. keys: what must be closed; mask: what
    to do."""
    beyond = check.cause(
        "beyond_a_length",
        when="the same passes in all shorter sequences",
        words=f"{{at}}{consequence} in sequences of {{at_length}} symbols, and in none of up to "
        "{passed_at}",
        remedy="is a mask or a table made for fewer places, or kept from a shorter batch?",
        fits=passes_where_shorter,
    )
    some_layers = check.cause(
        "mask_of_some_layers",
        when="an attention gives weight to keys that another one of its kind closes",
        words=f"{{at}}no mask closes {keys} there, and {{closed_in}} closes them, so {consequence}",
        remedy="pass the same mask in every layer",
        fits=another_attention_closes,
    )
    others = check.cause(
        "mask_open",
        when="a mask changes scores, and not those of the keys that must be closed",
        words=f"{{at}}the mask there closes other keys and leaves {keys} open, so {consequence}",
        remedy=mask,
        fits=other_scores_are_closed,
    )
    return (beyond, some_layers, others)


def _of_what_is_done_to_scores(check: Check, consequence: str) -> Iterator[Cause]:
    """Masks that are there, and do too little."""
    yield check.cause(
        "mask_behind_softmax",
        when="softmax gives weight to keys that are closed behind it: the weights that are left of "
        "a query do not sum to one",
        words="{at}the mask comes behind softmax, where closed keys have taken their share of the "
        f"weights already, so {consequence}",
        remedy="fill scores with -inf or -1e9 before softmax",
        fits=weights_fall_short,
    )
    yield check.cause(
        "mask_added",
        when="two small numbers are added to the scores of open and of closed keys",
        words="{at}the mask is added to the scores, {added_open:g} where a key is open and "
        f"{{added_closed:g}} where it is closed, which closes nothing, so {consequence}",
        remedy="add 0 and -inf, or fill: scores.masked_fill(closed, -inf)",
        fits=mask_is_added,
        read="mistakes/masks-inverted.md",
    )
    yield check.cause(
        "mask_multiplied",
        when="the scores of closed keys are multiplied with 0",
        words="{at}scores are multiplied with the mask: closed ones are 0, which leaves their keys "
        f"a weight of {{closed_weight:.2g}}, so {consequence}",
        remedy="fill in place of multiplying: scores.masked_fill(closed, -inf)",
        fits=mask_is_multiplied,
    )


def _of_queries(check: Check, consequence: str, no_key: str, latents: str) -> Iterator[Cause]:
    """Masks that are told by which queries see what."""
    yield check.cause(
        "latents",
        when="what reads the keys that must be closed are no places of source or target",
        words=f"{{at}}{{queries}} latents read every key there, so {consequence}",
        remedy=latents,
        fits=are_latents,
    )
    yield check.cause(
        "mask_of_queries",
        when="pads have every key closed, as queries, and are open as keys",
        words="{at}the mask closes what pads see, as queries, and not what sees them, as keys, so "
        f"{consequence}",
        remedy="a mask of keys is (B, 1, 1, Tk): closed[:, None, None, :], not closed[:, None, :, "
        "None]",
        fits=pads_are_closed_as_queries,
    )
    yield check.cause(
        "mask_inverted",
        when="queries give no weight to what they may see, but for themselves, and some to what "
        "must be closed",
        words=f"{{at}}the mask closes what may be seen and opens the rest, so {consequence}",
        remedy=f"{POLARITY} tril() keeps places up to the query, triu(1) those behind it",
        fits=open_is_closed,
        read="mistakes/masks-inverted.md",
    )
    yield check.cause(
        "query_without_key",
        when="a query has the same weight on every key, closed ones too",
        words="{at}a query has every key closed, and softmax then gives all of them the same "
        f"weight, so {consequence}",
        remedy=no_key,
        fits=all_keys_alike,
    )


def _of_some_keys(check: Check, consequence: str, keys: str) -> Iterator[Cause]:
    """Masks that close keys in some heads alone, or that fill in too little."""
    yield check.cause(
        "mask_of_some_heads",
        when="some heads of an attention give weight to keys that must be closed, and others none",
        words=f"{{at}}the mask closes {keys} in some heads alone ({{closed_heads}}), and others "
        f"({{open_heads}}) see them, so {consequence}",
        remedy="let all heads share it: (B, 1, Tq, Tk), with 1 in the place of the heads",
        fits=some_heads_are_closed,
    )
    yield check.cause(
        "closed_by_too_little",
        when="closed scores hold one number, and softmax gives their keys some weight",
        words="{at}closed scores hold {closed_score:.4g}, which leaves their keys a weight of "
        f"{{closed_weight:.2g}}, so {consequence}",
        remedy="fill with -inf or -1e9, behind all that scales or caps the scores",
        fits=closed_scores_are_one_number,
    )
