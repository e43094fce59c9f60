"""Pads: how many there are and what they hold changes no real output."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.checks.asked import APPENDED_PADS, Asked, embeddings_changed
from toytrans.checks.causes_by_kind import (
    causes_by_kind,
    causes_in_attention,
    causes_of_masks_elsewhere,
    causes_of_shapes,
)
from toytrans.checks.changes import Change
from toytrans.checks.common_causes import NANS, POLARITY
from toytrans.checks.gradients import gradients_are_zero
from toytrans.checks.ids import Ids
from toytrans.checks.model import NoAnswer
from toytrans.checks.numbers import largest, spread_out
from toytrans.checks.outcome import Judged, Outcome, does_not_apply, fails, unsure
from toytrans.checks.registry import WITH_SOURCE, Check
from toytrans.checks.shapes import in_other_shapes
from toytrans.checks.softmaxes import scores_as_trained

PADS = Check(
    "pads",
    "pads change no real output",
    how="pads appended on each side; noise in their embeddings; gradients",
    limits="A leak in the gradient alone is not seen if the model's embeddings are no "
    "`torch.nn.Embedding` and `embedding=` is not given. A mask that takes another id than the "
    "given pad for the source's pad cannot be told from a source with a pad of its own.",
    essential=True,
    follows=("rows", "scale"),
    follows_in={"decoder": ("future",)},  # pads behind ids lie in the future
    may_be_another_pad=True,
)

# Where it begins -----------------------------------------------------------------------------

CONSEQUENCE = "real outputs change with pads"

BY_PLACE = (
    *causes_in_attention(
        PADS,
        CONSEQUENCE,
        keys="pads",
        no_key="give such rows zeros behind softmax, or leave a key open",
        latents="close pads where latents read: (src != pad)[:, None, None, :]",
    ),
    *causes_by_kind(
        PADS,
        CONSEQUENCE,
        {
            "norm": "take them over the features of each place, or over real places alone",
            "convolution": "set pads to zero before it, in every layer",
            "recurrence": "pack the sequences (pack_padded_sequence), or let it run forward alone",
            "pooling": "leave pads out, and divide by the number of real places",
            "experts": "leave pads out before experts are chosen",
            "state": "is a mask or a cache kept, or a table changed while it is read (max_norm)?",
            "product": "set pads to zero before it",
            "shift": "are heads and places, or rows and places, taken for each other?",
            "length": "count real places, not the padded width",
        },
    ),
)
"""Rows that go by where the difference begins, before those that ask for the pad mask."""

ELSEWHERE = causes_of_masks_elsewhere(
    PADS,
    CONSEQUENCE,
    keys="pads",
    mask="is it made from the ids of the keys and from the pad's id, and is True = block what "
    "your layer expects?",
)
"""Rows for masks that are in other layers, or close something else."""

# More pads -----------------------------------------------------------------------------------

PADS_SEEN = (
    "{at}outputs at real places change when pads are appended to {side}: pads are seen as keys"
)

SEEN_BEHIND_SOURCE = PADS.cause(
    "seen_behind_source",
    when="outputs move when pads are appended to the source",
    words=PADS_SEEN,
    remedy=f"is the source's pad mask passed {{to}}, and {POLARITY}",
    read="mistakes/pads-in-cross-attention.md",
)
SEEN_BEHIND_TARGET = PADS.cause(
    "seen_behind_target",
    when="outputs move when pads are appended to the target",
    words=PADS_SEEN,
    remedy=f"is the target's pad mask passed, and is the causal mask, and {POLARITY}",
    read="mistakes/masks-inverted.md",
)
SEEN_BEHIND_BOTH = PADS.cause(
    "seen_behind_both",
    when="outputs move when pads are appended to both sides, and not to one of them alone",
    words=PADS_SEEN,
    remedy=f"are the pad masks passed, and {POLARITY}",
    read="mistakes/masks-inverted.md",
)
LOST_ALONE = PADS.cause(
    "lost_alone",
    when="a pair alone gives other outputs with the pads of a side than without any",
    words="pair {row} alone gives other outputs with pads behind {side} than without any",
    remedy="is the pad mask left out for a single row, or where a row ends with pads?",
    read="mistakes/pads-in-cross-attention.md",
)
SEEN_BEHIND_IDS = PADS.cause(
    "seen_behind_ids",
    when="outputs of a decoder move when pads are appended to its ids",
    words=PADS_SEEN,
    remedy=f"is the pad mask passed, and is the causal mask, and {POLARITY}",
)
SEEN_BY_ENCODER = PADS.cause(
    "seen_by_encoder",
    when="outputs of an encoder move when pads are appended to its ids",
    words=PADS_SEEN,
    remedy=f"is the pad mask passed, and {POLARITY}",
)
MASKED_SCORES_DROPPED = PADS.cause(
    "masked_scores_dropped",
    when="in train mode dropout is handed values below -1e4",
    words="dropout is given masked values, below -1e4: where it makes one zero, what was masked is "
    "seen in training",
    remedy="drop before the mask, or weights after softmax",
)
SEEN_BEFORE_IDS = PADS.cause(
    "seen_before_ids",
    when="places before the ids, where attention_mask is 0, move the outputs of a decoder",
    words="{count} places before the first token, where attention_mask is 0, move the outputs",
    remedy="is the mask combined with the causal one in every layer, and are position_ids used?",
)


@PADS.part("more source pads", on="every", kinds=WITH_SOURCE)
def more_source_pads(asked: Asked) -> Iterator[Change]:
    """Pads are appended to the source; then some pairs are asked alone, with the pads of their
    source and without."""
    ids, numbers = asked.with_pads(APPENDED_PADS, 0)
    causes, evidence = (*BY_PLACE, *ELSEWHERE, SEEN_BEHIND_SOURCE), {"side": "the source"}
    yield Change("pads appended to the source", ids, numbers, causes, evidence)
    if asked.model.drops_masked:
        raise Judged(fails(MASKED_SCORES_DROPPED))
    yield from _pads_taken_away(asked, "the source")


@PADS.part("more target pads", on="every", also_follows=("future",))
def more_target_pads(asked: Asked) -> Iterator[Change]:
    """Pads are appended to the target, or to the ids of a single stream, and in a short batch to
    both sides; then some pairs are asked alone, with the pads of their target and without. A
    Hugging Face decoder is asked with pads before its ids too, where `attention_mask` is 0 and
    `position_ids` count from the first token."""
    facts, more, side, cause = asked.facts, APPENDED_PADS - 1, "the target", SEEN_BEHIND_TARGET
    if not facts.has_source:
        side, cause = "the ids", SEEN_BEHIND_IDS if facts.is_causal else SEEN_BY_ENCODER
    ids, numbers = asked.with_pads(0, more)
    yield Change(
        f"pads appended to {side}", ids, numbers, (*BY_PLACE, *ELSEWHERE, cause), {"side": side}
    )
    if facts.has_source and asked.is_short:
        ids, numbers = asked.with_pads(APPENDED_PADS, more)
        causes, evidence = (*BY_PLACE, *ELSEWHERE, SEEN_BEHIND_BOTH), {"side": "both"}
        yield Change("pads appended to both", ids, numbers, causes, evidence)
    if asked.model.drops_masked:
        raise Judged(fails(MASKED_SCORES_DROPPED))
    yield from _pads_taken_away(asked, side)
    if facts.kind == "decoder" and not facts.masks_from_ids:
        yield from _masked_before(asked)


def _pads_taken_away(asked: Asked, side: str) -> Iterator[Change]:
    """Some pairs alone, without the pads that one side has in the batch."""
    rows = spread_out(len(asked.src), 5)
    real = asked.real_source if side == "the source" else asked.real
    everywhere = torch.where(asked.real, torch.arange(asked.tgt_in.shape[1]), -1)
    some = [row for row in rows if not real[row].all()]
    for row in some if asked.is_short else some[:1]:
        here = real[row]
        padded = asked.alone(row)
        if side == "the source":
            bare, must_repeat = Ids(padded.src[:, here], padded.tgt_in), everywhere[row, None]
        else:
            bare, must_repeat = Ids(padded.src, padded.tgt_in[:, here]), everywhere[row, None, here]
        evidence = {"row": row, "side": side}
        name = f"a pair alone without pads behind {side}"
        yield Change(name, bare, must_repeat, (LOST_ALONE,), evidence, before=padded)


def _masked_before(asked: Asked) -> Iterator[Change]:
    """Places before the ids that a mask closes must not matter, where positions are given as well;
    and what ids stand there never, because the embedding of a pad is zero as long as it is fresh,
    and so are the biases that a layer adds to it."""
    facts, more = asked.facts, APPENDED_PADS - 1
    longer = F.pad(asked.tgt_in, (more, 0), value=facts.pad_id)
    masked = F.pad(~asked.real, (more, 0), value=True)
    must_repeat = F.pad(asked.numbers, (more, 0), value=-1)
    with_pads = Ids(asked.src, longer, masked)
    try:
        asked.ask(*with_pads)
    except NoAnswer:  # it takes none
        return
    causes, evidence = (SEEN_BEFORE_IDS,), {"count": more}
    if facts.takes_positions:
        bare = Ids(asked.src, asked.tgt_in, ~asked.real)
        name = f"{more} pads before them"
        yield Change(name, with_pads, must_repeat, causes, evidence, before=bare)
    others = longer.masked_fill(masked, int(asked.symbols[0]))
    as_before = torch.arange(longer.numel()).view(longer.shape).where(must_repeat >= 0, -1)
    changed, name = Ids(asked.src, others, masked), f"{more} other ids before them"
    yield Change(name, changed, as_before, causes, evidence, before=with_pads)


# Scores as trained ---------------------------------------------------------------------------

OPEN_WHEN_TRAINED = PADS.cause(
    "open_when_trained",
    when="outputs move with appended pads where scores q k are as large as training makes them, "
    "and not with those of fresh weights",
    words="{at}outputs at real places change when pads are appended, once scores are as large as "
    "trained ones: what closes them is too small",
    remedy="fill with -inf or -1e9, behind all that caps the scores",
)


@PADS.part("scores as trained")
def scores_as_large_as_trained(asked: Asked) -> Iterator[Change]:
    """The same with scores q k up to 80, as training makes them: a mask of -30 closes those of
    fresh weights, and not these."""
    if asked.dtype != torch.float64:
        raise Judged(does_not_apply("rounding moves such scores as far, but in fp64"))
    ids, numbers = asked.with_pads(APPENDED_PADS, APPENDED_PADS - 1)
    causes, name = (*BY_PLACE, OPEN_WHEN_TRAINED), "pads appended, with scores as trained"
    for sign in (1, -1):
        around = partial(scores_as_trained, asked, sign)
        yield Change(name, ids, numbers, causes, around=around, is_around_both=True)


# Other shapes --------------------------------------------------------------------------------

IN_OTHER_SHAPES = causes_of_shapes(PADS, "outputs", (*BY_PLACE, *ELSEWHERE))


@PADS.part("other shapes")
def other_shapes(asked: Asked) -> Iterator[Change]:
    """The shortest batch is filled up with pads to about 60 shapes: every width of source and
    target up to the longest, every difference of -8..8, every number of rows of 2..17."""
    yield from in_other_shapes(asked, with_symbols=False, causes=IN_OTHER_SHAPES)


# What pads hold ------------------------------------------------------------------------------

EMBEDDINGS_SEEN = PADS.cause(
    "embeddings_seen",
    when="outputs move with noise in the embeddings of pads",
    words="real outputs change with what the embedding of a pad holds: pads are seen as keys",
    remedy="are the pad masks passed to encoder, decoder and cross-attention, each the right way "
    "round?",
)

EMBEDDED_ELSEWHERE = PADS.doubt(
    "embedded_elsewhere",
    when="the embedding of one side alone is met",
    words="the {side} is embedded by another module, or at another width",
)


@PADS.part("their embeddings")
def their_embeddings(asked: Asked) -> Iterator[Change]:
    """What the embeddings hold for pads is replaced by noise a hundred times as large. A model may
    tell its pads from embeddings that are zero; then noise makes symbols of them, which is no
    failure."""
    name = "noise a hundred times as large in the embeddings of pads"
    are_zero: list[bool] = []
    around = partial(_noise_in_pads, asked, are_zero)
    change = Change(name, asked.ids, asked.numbers, (EMBEDDINGS_SEEN,), around=around)
    if not largest(change.moved(asked)) <= asked.tolerance and all(are_zero):
        raise Judged(does_not_apply("the model may tell pads from their embeddings, which are 0"))
    yield change


@contextlib.contextmanager
def _noise_in_pads(asked: Asked, are_zero: list[bool]) -> Iterator[None]:
    """What the embeddings make of pads is noise meanwhile, on both sides; whether it was zero is
    appended. Raises Judged where a side is not met."""

    def edit(side: str, embedded: Tensor) -> Tensor:
        real = (asked.real_source if side == "src" else asked.real).to(embedded.device)
        are_zero.append(not bool(embedded[~real].any()))
        noise = asked.noise(embedded) * 100 * embedded.abs().amax()
        return torch.where(real[..., None], embedded, noise)

    with embeddings_changed(asked, edit) as met:
        yield
    for side, name in (("src", "source"), ("tgt", "target")):
        if side not in met and (side == "tgt" or asked.facts.has_source):
            raise Judged(unsure(EMBEDDED_ELSEWHERE, side=name))


# Gradients -----------------------------------------------------------------------------------

IN_GRADIENTS = PADS.cause(
    "in_gradients",
    when="gradients of real outputs towards the embeddings of pads are not zero",
    words="real outputs depend on {reached}: attention weights there are not zero",
    remedy="is the mask added before softmax, in every layer, the right way round?",
)


@PADS.part("gradients", on="every", also_follows=("future",))
def gradients(asked: Asked) -> Outcome:
    """Gradients of real outputs towards the embeddings of pads are zero."""
    return gradients_are_zero(asked, of_future=False, cause=IN_GRADIENTS)


# All parts together --------------------------------------------------------------------------

HOW_MANY = PADS.cause(
    "how_many",
    when="outputs move with pads, though gradients towards pads are zero",
    words="{seen}",
    remedy="what pads hold does not matter, by gradients, so it may be how many there are: a mean, "
    "scale or position that uses the padded width",
)


@PADS.conclusion
def by_their_number(failure: Outcome, parts: Mapping[str, Outcome]) -> Outcome:
    """Where gradients towards pads are zero, it is the number of pads that matters, unless it is
    known where the difference begins."""
    others = (
        *NANS,
        LOST_ALONE,
        SEEN_BEFORE_IDS,
        MASKED_SCORES_DROPPED,
        OPEN_WHEN_TRAINED,
        *BY_PLACE,
        *ELSEWHERE,
    )
    by_gradients = parts.get("gradients")
    if by_gradients is None or by_gradients.verdict != "PASS" or failure.cause in others:
        return failure
    seen = {"seen": failure.message}
    return replace(failure, causes=(HOW_MANY,), evidence=seen, circumstances="")
