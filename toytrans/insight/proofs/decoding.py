"""Decoding step by step against one parallel pass: with a cache, or by any function given."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.errors import UserError
from toytrans.insight.proofs.answers import answer, apart, foreign, largest, logits_of
from toytrans.insight.proofs.batch import MOST_ROUNDING, ProofBatch
from toytrans.insight.proofs.copies import variant_of, zeroed
from toytrans.insight.proofs.hugging_face import HuggingFaceCall
from toytrans.insight.proofs.report import CannotJudge, NotApplicable, NotAsked, Outcome
from toytrans.model.seq2seq import Seq2Seq

CAUSE = (
    "a step of decoding, which has only the past, gives other logits than the parallel pass: "
    "that pass sees more or less than the past, or the cache holds something else"
)


DRAWS = (
    "generate gives two answers to one input: is dropout left on in it (call model.eval() first), "
    "or does it sample?"
)


def steps_are_the_pass(batch: ProofBatch) -> Outcome:
    """(f) Decoding step by step with the cache = one parallel pass."""
    if not batch.model.is_causal:
        raise NotApplicable("an encoder does not decode")
    if batch.model.generate is not None:
        return _generated(batch, batch.model.generate)
    if isinstance(batch.model.module, Seq2Seq) and batch.model.module.decodes_from_a_state:
        return _from_a_state(batch, batch.model.module)
    if isinstance(batch.model.call, HuggingFaceCall):
        return _cached(batch, batch.model.call)
    raise NotAsked(generate="decoding step by step with a cache")


def _from_a_state(batch: ProofBatch, model: Seq2Seq) -> Outcome:
    with torch.no_grad():
        state = model.start_decoding(batch.src, batch.tgt_in.shape[1])
        steps = [state.next_logits(token[:, None])[:, 0] for token in batch.tgt_in.unbind(1)]
    return Outcome(
        largest((torch.stack(steps, 1) - batch.logits)[batch.real]),
        batch.tolerance,
        f"{len(steps)} steps with the {'cache' if batch.model.ours else 'state'} = one masked pass",
        CAUSE,
    )


def _rows(batch: ProofBatch) -> tuple[Tensor, Tensor]:
    """Pairs whose targets are of one length, sources of several: (B, S), (B, T)."""
    count = max(len(target) for _, target in batch.pairs)
    pairs = [(source, batch._row(count)) for source, _ in batch.pairs]
    src, tgt_in, _ = batch.make_batch(pairs)
    if not batch.model.has_source:
        return src[:, :0], tgt_in
    real = batch.model.real_inputs(tgt_in)
    return src, tgt_in[:, : int(real.sum(1).min())]


def _cached(batch: ProofBatch, call: HuggingFaceCall) -> Outcome:
    """Hugging Face's loop: a token at a time, with what the last step handed on."""
    src, tgt_in = _rows(batch)
    parallel = batch.ask(src, tgt_in)
    try:
        moved = batch.moved(_steps(batch, call, src, tgt_in), parallel)
    except (NotApplicable, CannotJudge):
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:150]
        raise CannotJudge(
            f"the loop with use_cache=True raises {type(error).__name__}: {first}"
        ) from None
    bad = (~(moved <= batch.tolerance)).any(0).nonzero()[:, 0].tolist()
    cause = f"{CAUSE} (first at step {bad[0]})" if bad else ""
    if bad and call.takes_positions and not moved.isnan().any():
        without = batch.moved(_steps(batch, call, src, tgt_in, positions=False), parallel)
        if largest(without) <= batch.tolerance:
            cause = (
                "a step of decoding is given position_ids counted from 0, as generate gives them, "
                "and the parallel pass counts its own from another number: without position_ids "
                "both agree"
            )
    evidence = f"{tgt_in.shape[1]} steps with the cache = one parallel pass"
    return Outcome(largest(moved), batch.tolerance, evidence, cause)


@torch.no_grad()
def _steps(
    batch: ProofBatch, call: HuggingFaceCall, src: Tensor, tgt_in: Tensor, positions: bool = True
) -> Tensor:
    """Logits (B, T, V) of the loop, with position_ids where the model takes them."""
    model, kept, steps = call.model, None, []
    common: dict[str, Any] = {"use_cache": True, "return_dict": True}
    if batch.model.has_source:
        mask = call.masks(src, tgt_in)["attention_mask"]
        encoded = model.get_encoder()(input_ids=src, attention_mask=mask, return_dict=True)
        common |= {"encoder_outputs": encoded, "attention_mask": mask}
    for step in range(tgt_in.shape[1]):
        token = tgt_in[:, step : step + 1]
        named = dict(common)
        if batch.model.has_source:
            named["decoder_input_ids"] = token
        else:
            named["input_ids"] = token
            named["attention_mask"] = torch.ones(len(tgt_in), step + 1, dtype=torch.int64)
            if positions and call.takes_positions:
                named["position_ids"] = torch.full_like(token, step)
        if kept is not None:
            named["past_key_values"] = kept
        out = model(**named)
        kept = getattr(out, "past_key_values", None)
        if kept is None:
            raise NotApplicable("the model hands on no past_key_values to decode with")
        steps.append(logits_of(out))
    return torch.cat(steps, 1)


def _generated(batch: ProofBatch, generate: Any) -> Outcome:
    """A function of the user's: (src, tgt_in) -> logits (B, T, V) made step by step, or
    src -> ids (B, L) decoded greedily, each of which must be the parallel pass's best."""
    src, tgt_in = _rows(batch)
    try:
        parameters = list(inspect.signature(generate).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    required = [
        p for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    given = (
        (src, tgt_in) if len(required) >= 2 else (src if batch.model.has_source else tgt_in[:, :2],)
    )
    near, outcomes, made = _nearness(batch), [], None
    # other rows of the same shape after them: what is kept of the first ones would show
    for rows in (given, tuple(ids.flip(0) for ids in given)):
        before = torch.get_rng_state()
        try:
            made = again = _called(batch, generate, rows)
            if not torch.equal(before, torch.get_rng_state()):
                again = _called(batch, generate, rows)
        except UserError as error:
            if made is None:
                raise
            cause = f"{error}, at a second call after one that it answered: is its cache emptied?"
            return Outcome(1.0, 0.0, "", cause)
        judge = _judged_logits if len(given) == 2 else _judged_ids
        with zeroed(batch.variant.opened):  # generate runs the model as it came
            outcomes.append(judge(batch, rows, made, again, near))
    return max(outcomes, key=lambda outcome: (not outcome.passed, outcome.difference))


def _nearness(batch: ProofBatch) -> float:
    """How far logits may be apart where they are computed in the precision that the model came in,
    by what its rounding does to the batch."""
    dtype, least = batch.variant.came_as, max(batch.tolerance, 1e-4 * batch.size)
    own = None if dtype is None or dtype.itemsize > 2 else variant_of(batch.model, dtype)
    if own is None:
        return least
    logits = answer(own.model, batch.src.clone(), batch.tgt_in.clone()).to(batch.logits.dtype)
    by = batch.differ(logits, batch.logits, batch.real)
    return max(least, min(3 * by, MOST_ROUNDING * batch.size))


def _seen(batch: ProofBatch, src: Tensor, tgt_in: Tensor) -> Tensor:
    """The logits of a parallel pass. Raises CannotJudge where they are one for all ids."""
    logits = batch.ask(src, tgt_in)
    if not largest(apart(logits, logits[:1, :1]).nan_to_num()):
        raise CannotJudge("the model as it came gives one answer to everything; train it a step")
    return logits


@torch.no_grad()
def _called(batch: ProofBatch, generate: Any, given: tuple[Tensor, ...]) -> Any:
    """What the function gives for copies of some ids."""
    return foreign(batch.model, "generate", generate, *(ids.clone() for ids in given))


def _judged_logits(
    batch: ProofBatch, given: tuple[Tensor, ...], made: Any, again: Any, near: float
) -> Outcome:
    """Logits made step by step beside the parallel pass. again: those of another draw; near: how
    far those in another precision may be apart."""
    src, tgt_in = given
    steps, same = map(logits_of, (made, again))
    if not isinstance(steps, Tensor) or steps.shape[:2] != tgt_in.shape:
        raise UserError(
            "generate(src, tgt_in) gave no logits (B, T, V); expected those of each step"
        )
    parallel = _seen(batch, src, tgt_in)
    came_as = batch.variant.came_as or parallel.dtype
    same_precision = steps.dtype == parallel.dtype == came_as
    tolerance = batch.tolerance if same_precision else near
    if not largest(apart(steps, same).nan_to_num()) <= tolerance:
        raise CannotJudge(DRAWS)
    by = largest(batch.moved(steps.to(parallel.dtype), parallel))
    return Outcome(by, tolerance, f"{steps.shape[1]} steps = one parallel pass", CAUSE)


def _judged_ids(
    batch: ProofBatch, given: tuple[Tensor, ...], made: Any, again: Any, near: float
) -> Outcome:
    """Ids decoded greedily beside the parallel pass. again: those of another draw; near: how far
    an id may be behind the best."""
    ids, same = (getattr(answer, "sequences", answer) for answer in (made, again))
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        raise UserError("generate gave no ids (B, L); expected what is decoded greedily")
    if not torch.equal(ids, same):
        raise CannotJudge(DRAWS)
    return _greedy(batch, given[0], ids.long().cpu(), near)


def _greedy(batch: ProofBatch, given: Tensor, ids: Tensor, near: float) -> Outcome:
    """Whether each id decoded is the best of the parallel pass over those before it."""
    start = (
        batch.model.decoding_start
        if batch.model.decoding_start is not None
        else batch.model.start_id
    )
    first = 1
    if not batch.model.has_source:
        first = given.shape[1]
    elif start is not None and not bool((ids[:, :1] == start).all()):
        ids = nn.functional.pad(ids, (1, 0), value=start)
    elif start is None:
        raise CannotJudge("needs the id that decoding starts with (start_id=...)")
    src = given if batch.model.has_source else given[:, :0]
    decoded = ids[:, first:]
    ended, live = _ended(batch, decoded)
    if not bool(live.any()):
        raise CannotJudge("generate gave no id behind those that it began with")
    logits = _seen(batch, src, ids)[:, first - 1 : -1]
    best = logits.amax(-1)
    behind = [apart(best, logits.gather(-1, x[..., None])[..., 0]) for x in (decoded, ended)]
    worst_by = largest(torch.minimum(*behind)[live])
    return Outcome(
        worst_by, near, f"{int(live.sum())} ids decoded are the best of the parallel pass",
        "decoding takes ids that the parallel pass over the same past does not rank first, by "
        f"{worst_by:.2g}: the steps see something else than the pass, or do not decode greedily",
    )  # fmt: skip


def _ended(batch: ProofBatch, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (B, L) behind the start, and which of them were decoded: up to the end. Where a row lacks
    an end, it is put for the first of the pads at the end of the row."""
    end, pads_behind = batch.model.eos_id, (ids == batch.model.pad_id).flip(1).cumprod(1).flip(1)
    if end is None:
        return ids, pads_behind == 0
    lost = (pads_behind.cumsum(1) == 1) & ~(ids == end).any(1, keepdim=True)
    ids = ids.masked_fill(lost, end)
    return ids, ((ids == end).cumsum(1) - (ids == end).long()) == 0
