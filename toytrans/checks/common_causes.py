"""The causes that any check may meet. Those of single checks stand in their files in `rules`."""

from toytrans.checks.outcome import Cause, Evidence

POLARITY = "is True = block what your layer expects?"
"""Half of the remedy of most faults of masks."""

# NaN ------------------------------------------------------------------------------------------


def first_query_misses_itself(evidence: Evidence) -> bool:
    """Whether the first query alone has no key, because no query sees its own place."""
    return evidence.get("nan") == "own place"


def last_query_has_no_key(evidence: Evidence) -> bool:
    """Whether the last query alone has no key."""
    return evidence.get("nan") == "last"


def first_key_is_closed(evidence: Evidence) -> bool:
    """Whether the first query alone has no key, because the first key is closed."""
    return evidence.get("nan") == "first key"


def pads_have_no_key(evidence: Evidence) -> bool:
    """Whether pads have no key, as queries, and real queries have some."""
    return evidence.get("nan") == "pads"


def queries_have_no_key(evidence: Evidence) -> bool:
    """Whether some queries have no key, or all."""
    return evidence.get("nan") in ("some", "all")


def is_no_softmax(evidence: Evidence) -> bool:
    """Whether NaN begins in something that is no softmax over closed keys."""
    return evidence.get("nan") == "elsewhere"


BEGINS_IN_SOFTMAX = "softmax over -inf alone is NaN"

NAN_OWN_PLACE = Cause(
    "any.nan_own_place",
    when="the first query has every key closed, because the mask closes each token's own place",
    words=f"{{at}}the triangle leaves out each token's own place, so the first query has no key, "
    f"and {BEGINS_IN_SOFTMAX}",
    remedy="tril(), not tril(-1), where True = may look; triu(1), not triu(), where True = block",
    fits=first_query_misses_itself,
    read="mistakes/causal-mask.md",
)
NAN_TURNED = Cause(
    "any.nan_turned",
    when="the last query alone has every key closed",
    words=f"{{at}}the triangle is turned round: it closes what came before and each token itself, "
    f"so the last query has no key, and {BEGINS_IN_SOFTMAX}",
    remedy=POLARITY,
    fits=last_query_has_no_key,
    read="mistakes/masks-inverted.md",
)
NAN_FIRST_KEY = Cause(
    "any.nan_first_key",
    when="the first query has every key closed, because the first key is closed for all",
    words=f"{{at}}the first token is closed as a key, so the first query has none, and "
    f"{BEGINS_IN_SOFTMAX}",
    remedy="is the start taken for a pad? compare with the pad's id alone",
    fits=first_key_is_closed,
)
NAN_OF_PADS = Cause(
    "any.nan_of_pads",
    when="pads have every key closed, as queries, and their NaN reaches real places",
    words=f"{{at}}pads have every key closed, as queries: {BEGINS_IN_SOFTMAX}, and a weight of 0 "
    "does not keep it from real places",
    remedy="close pads as keys alone: (B, 1, 1, Tk)",
    fits=pads_have_no_key,
)
NAN_WITHOUT_KEY = Cause(
    "any.nan_without_key",
    when="real queries have every key closed",
    words=f"{{at}}queries at {{queries}} have every key closed, and {BEGINS_IN_SOFTMAX}",
    remedy=f"does a mask close every key, and {POLARITY}",
    fits=queries_have_no_key,
    read="mistakes/masks-inverted.md",
)
NAN_ELSEWHERE = Cause(
    "any.nan_elsewhere",
    when="NaN begins in something that is no softmax over closed keys",
    words="{at}output is NaN at a real place of an ordinary batch, which begins in {operation}",
    remedy="is something divided by 0 there, a root or a logarithm taken of 0, or infinity "
    "multiplied with 0?",
    fits=is_no_softmax,
)
NAN = Cause(
    "any.nan",
    when="an ordinary batch has outputs that are NaN at real places, and it is not seen where that "
    "begins",
    words="output is NaN at a real place of an ordinary batch",
    remedy=f"does a mask close every key of a query, and {POLARITY}",
    read="mistakes/masks-inverted.md",
)
NANS = (NAN_OWN_PLACE, NAN_TURNED, NAN_FIRST_KEY, NAN_OF_PADS, NAN_WITHOUT_KEY, NAN_ELSEWHERE, NAN)
"""The one failure that any check may meet, by where it begins; those that meet it later follow from
the first."""

# Doubts ---------------------------------------------------------------------------------------

CONSTANT_LOGITS = Cause(
    "any.constant_logits",
    when="the logits are the same whatever is asked",
    words="the logits never change, so nothing can be seen through them",
    remedy="is the output layer zero? train a step, or give it other weights",
    is_doubt=True,
)
EMBEDDING_NOT_MET = Cause(
    "any.embedding_not_met",
    when="no embedding layer is called with the ids of the source or of the target",
    words="the embedding layer is not what the model embeds its ids with, or is asked for other "
    "ids than those of the source or the target as they are",
    is_doubt=True,
)
NO_GRADIENTS = Cause(
    "any.no_gradients",
    when="the logits hang on no graph of gradients",
    words="needs gradients, and the model answers without (torch.no_grad?)",
    is_doubt=True,
)
NAN_GRADIENTS = Cause(
    "any.nan_gradients",
    when="the gradient of ordinary outputs towards the embeddings of pads or later tokens is NaN",
    words="gradients towards {towards} are NaN though outputs are numbers",
    remedy="is a root taken of 0, as in the norm of an embedding that is zero, or does a mask "
    "close every key of a query with -inf?",
    is_doubt=True,
)
LABELS_MISSING = Cause(
    "any.labels_missing",
    when="a loss was given, and no labels are known",
    words="labels for the loss that was given are missing: give {needed}",
    is_doubt=True,
)
ANOTHER_PAD = Cause(
    "any.another_pad",
    when="an outcome depends on the pads of the source, and another id acts as a pad there",
    words="id {pad} behind a source is seen as a symbol, and id {other} is not seen: is the "
    "source's mask made from the wrong id?",
    remedy="if the source has a pad of its own, give source_pad_id={other}",
    is_doubt=True,
)
ROWS_ALONE = Cause(
    "any.rows_alone",
    when="rows see each other, and the change moves no output in a batch of equal rows",
    words="outputs move here because rows see each other, and for nothing else",
    remedy="mend that first",
    is_doubt=True,
)


def answers_longer_ones(evidence: Evidence) -> bool:
    """Whether a model that raises was asked with no more places than it answers."""
    return bool(evidence["answered"])


RAISES_WHEN_SHORTER = Cause(
    "any.raises_when_shorter",
    when="the model raises where source and target are no longer than those that it answers",
    words="{error}, though it answers src and tgt_in of {answered} places",
    remedy="does it need so many, or two sides of one length?",
    fits=answers_longer_ones,
    is_doubt=True,
)
NO_ANSWER = Cause(
    "any.no_answer",
    when="the model does not answer what a part asks",
    words="{error}",
    remedy="if it takes fewer places, give max_length=...",
    is_doubt=True,
)
EXCEPTION = Cause(
    "any.exception",
    when="a part meets an exception of the model's",
    words="the check met {error}",
    is_doubt=True,
)

BATCH_STATISTICS = Cause(
    "any.batch_statistics",
    when="train mode alone fails, and passes with BatchNorm in eval mode",
    words="in train mode BatchNorm takes its statistics over all rows and places of a batch, so "
    "outputs depend on them, which may be meant; eval mode passes",
    is_doubt=True,
)
DRAWN_ANEW = Cause(
    "any.drawn_anew",
    when="the same ids, asked twice, get answers as far apart",
    words="the same ids get two answers in a batch of {rows} rows, {places} places, so nothing "
    "else can be judged there",
    remedy="see calls",
    is_doubt=True,
)

COMMON = (
    *NANS,
    CONSTANT_LOGITS,
    EMBEDDING_NOT_MET,
    NO_GRADIENTS,
    NAN_GRADIENTS,
    LABELS_MISSING,
    ANOTHER_PAD,
    ROWS_ALONE,
    RAISES_WHEN_SHORTER,
    NO_ANSWER,
    EXCEPTION,
    BATCH_STATISTICS,
    DRAWN_ANEW,
)
