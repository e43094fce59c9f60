"""The causes that any check may meet. Those of single checks stand in their files in `rules`."""

from toytrans.checks.outcome import Cause, Evidence

POLARITY = "is True = block what your layer expects?"
"""Half of the remedy of most faults of masks."""

NAN = Cause(
    "any.nan",
    when="an ordinary batch has outputs that are NaN at real places",
    words="output is NaN at a real place of an ordinary batch",
    remedy=f"does a mask close every key of a query, and {POLARITY}",
    read="mistakes/masks-inverted.md",
)
"""The one failure that any check may meet; those that meet it later follow from the first."""

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
    NAN,
    CONSTANT_LOGITS,
    EMBEDDING_NOT_MET,
    NO_GRADIENTS,
    LABELS_MISSING,
    ANOTHER_PAD,
    ROWS_ALONE,
    RAISES_WHEN_SHORTER,
    NO_ANSWER,
    EXCEPTION,
    BATCH_STATISTICS,
    DRAWN_ANEW,
)
