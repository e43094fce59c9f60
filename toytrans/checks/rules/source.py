"""The source: every token of it moves some output."""

from toytrans.checks.asked import Asked
from toytrans.checks.causes_by_kind import has_no_attention
from toytrans.checks.outcome import Outcome, passes
from toytrans.checks.reach import Side, every_id, every_place, is_cut
from toytrans.checks.registry import WITH_SOURCE, Check

SOURCE = Check(
    "source",
    "every source token moves some output",
    how="each token replaced, several seeds; each id in the place of a pad",
    essential=True,
    kinds=WITH_SOURCE,
    follows=("rows", "scale", "reach", "weights"),
    may_be_another_pad=True,
)

NOTHING_SEEN = SOURCE.cause(
    "nothing_seen",
    when="no token of the source moves an output",
    words="no source token moves any {what}: the decoder does not see the source",
    remedy="do the masks close everything?",
    read="mistakes/masks-inverted.md",
)
CUT = SOURCE.cause(
    "cut",
    when="the tokens of the source move no output from some place on",
    words="{where}source tokens from place {first} on, of {count}, move no {what}, whatever "
    "symbols stand there: the source is cut",
    remedy="is it sliced to a number of places, or is a mask or a table made for no more?",
    fits=is_cut,
)
PLACES_UNSEEN = SOURCE.cause(
    "places_unseen",
    when="the tokens at some places of the source move no output",
    words="source tokens at {places} of {count} move no {what}, whatever symbol is there: the mask "
    "closes real tokens",
    remedy="is it made from the right ids and lengths?",
)
IDS_MASKED = SOURCE.cause(
    "ids_masked",
    when="some symbols of the source change nothing, as a pad does",
    words="{ids} of {count} of the source are closed as pads are: the mask takes symbols for pads",
    remedy="is it made by comparing with the pad's id alone?",
)
END_MASKED = SOURCE.cause(
    "end_masked",
    when="the end of the source changes nothing, as a pad does",
    words="the end of the source, id {end}, is closed as pads are",
    remedy="is the mask made by comparing with the pad's id alone?",
)
IDS_SPECIAL = SOURCE.doubt(
    "ids_special",
    when="up to three ids at an end of the vocabulary change nothing, as a pad does",
    words="{ids} of the source changes nothing, as a pad does",
    remedy="if it is a special one, give {needed}",
)

NOTHING_READ = SOURCE.cause(
    "nothing_read",
    when="no token of the source moves an output, in a model that computes no attention",
    words="no source token moves any {what}, and the model computes no attention over the source",
    remedy="is the source's state handed to the decoder?",
    fits=has_no_attention,
)
PLACES_DROPPED = SOURCE.cause(
    "places_dropped",
    when="the tokens at some places move no output, in a model that computes no attention",
    words="source tokens at {places} of {count} move no {what}, whatever symbol is there",
    remedy="is the source cut, or its last state taken behind pads? No attention is computed that "
    "could close them",
    fits=has_no_attention,
)

SIDE = Side(
    "source",
    (NOTHING_READ, NOTHING_SEEN),
    (CUT, PLACES_DROPPED, PLACES_UNSEEN),
    IDS_MASKED,
    IDS_SPECIAL,
)


@SOURCE.part("token by token", on="both ends")
def token_by_token(asked: Asked) -> Outcome:
    """Each token is replaced by others in several sequences; then each id of the vocabulary stands
    in the place of a pad, the end too."""
    asked.require_changing_logits()
    count, ids = every_place(asked, SIDE), ""
    if asked.is_short:
        tried = every_id(asked, SIDE, END_MASKED)
        ids = f"; none of {tried} ids is closed as pads are" if tried else ""
    what = SIDE.what_moves(asked)
    return passes(f"each of up to {count} source tokens moves some {what}{ids}")
