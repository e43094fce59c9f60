"""The target: every token of it moves a later output."""

from toytrans.checks.asked import Asked
from toytrans.checks.causes_by_kind import has_no_attention
from toytrans.checks.outcome import Evidence, Outcome, passes
from toytrans.checks.reach import Side, every_id, every_place, is_cut
from toytrans.checks.registry import Check

TARGET = Check(
    "target",
    "every target token moves a later output",
    how="the same for the target",
    essential=True,
    follows=("rows", "scale", "reach", "weights"),
)


def is_never_read(evidence: Evidence) -> bool:
    """Whether no target token moves any output at all, not even the one at its own place."""
    return not evidence["reads"]


def first_is_constant(evidence: Evidence) -> bool:
    """Whether the first output is the same whatever the source is."""
    return bool(evidence["first_is_constant"])


NEVER_READ = TARGET.cause(
    "never_read",
    when="no token of the target moves any output, not even the one at its own place",
    words="no output depends on the target: its ids are taken and never read",
    remedy="is the decoder handed the encoder's output, or the source, in their place?",
    fits=is_never_read,
)
NOTHING_SEEN = TARGET.cause(
    "nothing_seen",
    when="no token of the target moves a later output",
    words="no target token moves any {what}: it sees only itself",
    remedy="do the masks close everything?",
)
CUT = TARGET.cause(
    "cut",
    when="the tokens of the target move no output from some place on",
    words="{where}target tokens from place {first} on, of {count}, move no {what}, whatever "
    "symbols stand there: the target is cut",
    remedy="is it sliced to a number of places, or is a mask or a table made for no more?",
    fits=is_cut,
)
PLACES_UNSEEN = TARGET.cause(
    "places_unseen",
    when="the tokens at some places of the target move no later output",
    words="target tokens at {places} of {count} move no {what}, whatever symbol is there: the mask "
    "closes real tokens",
    remedy="is it made from the right ids and lengths?",
)
IDS_MASKED = TARGET.cause(
    "ids_masked",
    when="some symbols of the target change nothing, as a pad does",
    words="{ids} of {count} of the target are closed as pads are: the mask takes symbols for pads",
    remedy="is it made by comparing with the pad's id alone?",
)
FIRST_IS_CONSTANT = TARGET.cause(
    "first_is_constant",
    when="no token of the target moves the output at its own place, and the first output is the "
    "same for every pair",
    words="no target token moves the output at its own place, which predicts the token behind it, "
    "and the first output is the same for every pair: there is an output for the start too",
    remedy="hand over one id more and leave that output out: model(src, F.pad(tgt_in, (0, 1)))[:, "
    "1:]",
    fits=first_is_constant,
)
ONE_LATE = TARGET.cause(
    "one_late",
    when="no token of the target moves the output at its own place",
    words="no target token moves the output at its own place, which predicts the token behind it: "
    "the decoder reads its inputs one place late",
    remedy="does the model shift them by itself? then wrap it: model(src, F.pad(tgt_in[:, 1:], (0, "
    "1)))",
    read="mistakes/label-shift.md",
)
IDS_SPECIAL = TARGET.doubt(
    "ids_special",
    when="up to three ids at an end of the vocabulary change nothing, as a pad does",
    words="{ids} of the target changes nothing, as a pad does",
    remedy="if it is a special one, give {needed}",
)

NOTHING_CARRIED = TARGET.cause(
    "nothing_carried",
    when="no token of the target moves a later output, in a model that computes no attention",
    words="no target token moves any {what}, and the model computes no attention that could carry "
    "one there",
    remedy="is a layer left out, or its result dropped?",
    fits=has_no_attention,
)
PLACES_DROPPED = TARGET.cause(
    "places_dropped",
    when="the tokens at some places move no later output, in a model that computes no attention",
    words="target tokens at {places} of {count} move no {what}, whatever symbol is there",
    remedy="is the sequence cut, or turned round? No attention is computed that could close them",
    fits=has_no_attention,
)

SIDE = Side(
    "target",
    (NEVER_READ, NOTHING_CARRIED, NOTHING_SEEN),
    (CUT, PLACES_DROPPED, PLACES_UNSEEN),
    IDS_MASKED,
    IDS_SPECIAL,
)


@TARGET.part("token by token", on="both ends")
def token_by_token(asked: Asked) -> Outcome:
    """Each token is replaced by others in several sequences; then each id of the vocabulary stands
    in the place of a pad."""
    asked.require_changing_logits()
    count, ids = every_place(asked, SIDE, FIRST_IS_CONSTANT, ONE_LATE), ""
    if asked.is_short:
        tried = every_id(asked, SIDE)
        ids = f"; none of {tried} ids is closed as pads are" if tried else ""
    return passes(f"each of up to {count} target tokens moves some {SIDE.what_moves(asked)}{ids}")
