"""Does the mask really work, and do loss, labels and layers? Proofs that pass or fail.

Each proof changes what must not matter and looks for a difference, or changes what must matter
and looks for none. Those here look from outside, at logits and loss; `inner_proofs` look inside.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from toytrans.config import Config
from toytrans.errors import UserError
from toytrans.insight.adapters import Subject, own, subject_of
from toytrans.insight.examples import SHORTEST, TOLERANCE, Examples, NoAnswer, apart, largest, worst
from toytrans.insight.findings import CannotJudge, Finding, NotApplicable, Outcome, Report, finding_of
from toytrans.insight.inner_proofs import INNER_PROOFS, exact_gradients
from toytrans.model.transformer import Transformer
from toytrans.tokens import Vocabulary
from toytrans.training.run import Run

LENGTH = 7
"""Symbols of the longest sequence of the proofs' batch."""

POLARITY = "is True = block what your layer expects?"


def check(
    model: Any,
    *,
    pad_id: int | None = None,
    vocabulary_size: int | None = None,
    source_size: int | None = None,
    start_id: int | None = None,
    eos_id: int | None = None,
    embedding: Any = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    batch: Callable[[Any], tuple[Tensor, Tensor, Tensor]] | None = None,
    limit: int | None = None,
    length: int = LENGTH,
    seed: int = 0,
    source_pad_id: int | None = None,
    pad_side: str | None = None,
    batch_first: bool | None = None,
    max_length: int | None = None,
    only: Any = (),
    skip: Any = (),
    thorough: bool = False,
    generate: Any = None,
    decoder_only: bool | None = None,
) -> Report:
    """Run every proof that applies to a model.

    model: f(src (B, S), tgt_in (B, T)) -> logits (B, T, V), ids in int64, batch first; or a
    toytrans run, or a Hugging Face encoder-decoder model, of which the rest is known. A module is
    copied: the one given stays as it is. pad_id, vocabulary_size: of the target; source_size: the
    source's, if it is another. start_id: the first decoder input; eos_id: what ends a sequence.
    embedding: the embedding module, or (source's, target's). loss: (logits, tgt_out) -> mean.
    batch: pairs of lists of symbol ids -> (src, tgt_in, tgt_out). limit: the most places the
    model takes. length: symbols of the longest sequence tried.

    Raises UserError where the model cannot be asked: wrong shape, NaN throughout, another answer
    at the second call, an exception of its own, fewer places than needed.
    """
    if isinstance(model, Run):
        given = (pad_id, vocabulary_size, source_size, start_id, eos_id, embedding, loss, batch)
        if any(value is not None for value in (*given, limit)):
            raise UserError("of a run all is known; give check nothing but length and seed")
        name = str(model.path)
        return check_own(model.model, model.config, model.vocabulary, name, length, seed)
    subject = subject_of(
        model,
        pad_id=pad_id,
        vocabulary_size=vocabulary_size,
        source_size=source_size,
        start_id=start_id,
        eos_id=eos_id,
        embedding=embedding,
        loss=loss,
        batch=batch,
        limit=limit,
    )
    return prove(subject, length, seed)


def check_own(
    model: Transformer,
    config: Config,
    vocabulary: Vocabulary,
    name: str,
    length: int = LENGTH,
    seed: int = 0,
) -> Report:
    """Every proof on a model built from a config."""
    return prove(own(model, config, vocabulary, name), length, seed)


def prove(subject: Subject, length: int = LENGTH, seed: int = 0) -> Report:
    """Every proof on a subject, on one batch of random symbols."""
    if not isinstance(length, int) or length < SHORTEST:
        raise UserError(f"length {length}: the proofs need sequences of {SHORTEST} symbols or more")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        examples = Examples(subject, length, seed)
        findings = []
        for letter, (title, proof) in sorted(PROOFS.items()):
            try:
                findings.append(finding_of(letter, title, proof(examples)))
            except NoAnswer as error:  # it did answer at first
                findings.append(Finding(letter, title, "FAIL", str(error), math.nan))
            except CannotJudge as reason:
                findings.append(Finding(letter, title, "cannot judge", str(reason)))
            except NotApplicable as reason:
                findings.append(Finding(letter, title, "does not apply", str(reason)))
        examples.ask_again()
    precision = str(examples.dtype).removeprefix("torch.")
    return Report(subject.name, precision, tuple(findings))


def _wider(ids: Tensor, places: int, value: int) -> Tensor:
    return F.pad(ids, (0, places), value=value)


def pads_appended(x: Examples) -> Outcome:
    """(a) More pads behind source and target leave the outputs at real places as they are."""
    pad, width = x.subject.pad_id, x.tgt_in.shape[1]
    src, tgt_in = _wider(x.src, 3, pad), _wider(x.tgt_in, 2, pad)
    asked = {
        "the source": x.ask(src, x.tgt_in),
        "the target": x.ask(x.src, tgt_in)[:, :width],
        "both": x.ask(src, tgt_in)[:, :width],
    }
    by = {side: largest(apart(found, x.logits)[x.real]) for side, found in asked.items()}
    side = next((side for side, found in by.items() if not found <= x.tolerance), "both")
    where = {
        "the source": "is the source's pad mask passed to the encoder and to cross-attention",
        "the target": "is the target's pad mask passed, and is the causal mask",
        "both": "are the pad masks passed",
    }[side]
    return Outcome(
        worst(by.values()),
        x.tolerance,
        "3 pads behind the source, 2 behind the target: nothing changes",
        f"outputs at real places change when pads are appended to {side}: pads are seen as keys; "
        f"{where}, and {POLARITY}",
    )


def future_changed(x: Examples) -> Outcome:
    """(b) Another token at place j leaves the outputs before j as they are."""
    row = int(x.real.sum(1).argmax())
    places = range(1, int(x.real[row].sum()))
    src = x.src[row].expand(len(places), -1)
    before = x.tgt_in[row].expand(len(places), -1)
    after = before.clone()
    for number, place in enumerate(places):
        after[number, place] = x.other(before[number, place])
    moved = apart(x.ask(src, after), x.ask(src, before)).abs().amax(-1)  # (J, T)
    earlier = torch.arange(moved.shape[1]) < torch.tensor(places)[:, None]
    seen = earlier & ~(moved <= x.tolerance)
    return Outcome(
        largest(moved[earlier]),
        x.tolerance,
        f"tokens 1..{places[-1]} changed one by one: no earlier output moves",
        _what_is_seen(seen, places) if bool(seen.any()) else "",
    )


def _what_is_seen(seen: Tensor, places: range) -> str:
    """(J, T) outputs that move with a later token -> what that means."""
    number = int(seen.sum(1).argmax())
    outputs, place = seen[number].nonzero()[:, 0].tolist(), places[number]
    moving = f"places {outputs[0]}..{outputs[-1]}" if len(outputs) > 1 else f"place {outputs[0]}"
    ahead = max(
        int(place - t) for n, place in enumerate(places) for t in seen[n].nonzero()[:, 0].tolist()
    )
    said = f"outputs at {moving} change when token {place} changes: the decoder sees the future"
    if ahead < places[-1]:
        return (
            f"{said}, {ahead} ahead and no more; is the triangle off by one, in each layer or "
            "in some (tril(1) for tril(), triu(2) for triu(1))?"
        )
    return f"{said}; is the causal mask passed, and {POLARITY}"


def one_at_a_time(x: Examples) -> Outcome:
    """(d) A pair alone gives what it gives in a batch."""
    by = []
    for row, pair in enumerate(x.pairs):
        src, tgt_in, _ = x.make_batch([pair])
        real = x.subject.real_inputs(tgt_in)[0]
        together = x.logits[row, : tgt_in.shape[1]]
        by.append(largest(apart(x.ask(src, tgt_in)[0], together)[real]))
    return Outcome(
        worst(by),
        x.tolerance,
        f"{len(by)} pairs, each alone and unpadded, as in their batch",
        f"pair {by.index(worst(by))} of {len(by)} gives other outputs alone than in a padded "
        f"batch: pads are seen, or rows are mixed up; are all pad masks passed, {POLARITY}",
    )


def sees_nothing_closed(x: Examples) -> Outcome:
    """(e) No real output depends on pads or on the future: by its gradient, which is exactly
    zero, or, where no embedding is at hand, by replacing all of them at once."""
    if x.subject.embeddings is not None:
        return exact_gradients(x)
    longest = int(x.real.sum(1).max())
    by = []
    for place in range(longest - 1):
        changed = x.tgt_in.clone()
        changed[:, place + 1 :] = x.other(changed[:, place + 1 :])
        moved = apart(x.ask(x.src, changed), x.logits)[:, : place + 1]
        by.append(largest(moved[x.real[:, : place + 1]]))
    return Outcome(
        worst(by),
        x.tolerance,
        "all that follows a place replaced at once, target pads by symbols: no output moves (by "
        "finite change; source pads and exact gradients need the embedding)",
        "outputs move with what follows them: the decoder sees the future or target pads; "
        f"are the causal mask and the target's pad mask passed, and {POLARITY}",
    )


def empty_row(x: Examples) -> Outcome:
    """(i) A pair without symbols gives numbers, and leaves the other rows as they are; so does a
    source of nothing but pads, whose own outputs may be NaN where such a row never comes, as the
    source ends with EOS."""
    count, pad = len(x.pairs), x.subject.pad_id
    try:
        src, tgt_in, _ = x.make_batch([*x.pairs, ([], [])])
    except UserError as error:
        raise NotApplicable(
            f"needs a batch maker that takes a pair without symbols: {error}"
        ) from None
    logits = x.ask(src, tgt_in)
    others = largest(apart(logits[:count, : x.logits.shape[1]], x.logits)[x.real])
    own = not bool(logits[count, 0].isnan().any())
    all_pads = _takes_pads_alone(x, torch.cat((src, torch.full_like(src[:1], pad))), tgt_in)
    needed = own and (all_pads or x.subject.ours is None)
    what = "its own outputs" if others <= x.tolerance else "those of other rows"
    note = "" if all_pads else "; a source of pads alone, which never comes here, would spoil it"
    return Outcome(
        others if needed else math.nan,
        x.tolerance,
        f"a pair without symbols gives numbers and changes no other row{note}",
        f"a pair without symbols spoils {what}: a row of attention with every key closed "
        "turns into NaN after softmax over -inf alone; give such rows zeros",
    )


def _takes_pads_alone(x: Examples, src: Tensor, tgt_in: Tensor) -> bool:
    """Whether a last row of nothing but pads gives numbers and leaves the others alone."""
    try:
        logits = x.ask(src, torch.cat((tgt_in, tgt_in[-1:])))
    except NoAnswer:
        return False
    others = apart(logits[: len(x.logits), : x.logits.shape[1]], x.logits)[x.real]
    return largest(others) <= x.tolerance and not bool(logits[-1, 0].isnan().any())


def order_seen(x: Examples) -> Outcome:
    """(j) Swapping two different source symbols changes the logits."""
    if x.dtype not in TOLERANCE:
        raise NotApplicable("needs fp32 or fp64: half precision rounds as much as a swap may move")
    row, length = 0, len(x.pairs[0][0])
    swapped = []
    for place in range(length - 1):
        symbols = list(x.pairs[0][0])
        symbols[place : place + 2] = reversed(symbols[place : place + 2])
        swapped.append((symbols, x.pairs[0][1]))
    pairs = [x.pairs[row], *swapped]
    src, tgt_in, _ = x.make_batch(pairs)
    logits = x.ask(src, tgt_in)
    by = [largest(apart(found, logits[0])[x.real[row, : found.shape[0]]]) for found in logits[1:]]
    return Outcome(
        max(by),
        x.tolerance,
        f"{len(by)} swaps of neighbours in a source; places {by.index(max(by))} and "
        f"{by.index(max(by)) + 1} change the logits most",
        f"none of {len(by)} swaps of neighbours in a source changes anything: the encoder does "
        "not see order; are positions added to the embeddings?",
        must_change=True,
    )


def pad_labels_ignored(x: Examples) -> Outcome:
    """(h) What the model says where the label is a pad changes neither loss nor gradient."""
    loss, tgt_out = x.loss, _needs_loss(x)
    real = x.subject.real_labels(tgt_out)
    if bool(real.all()):
        raise NotApplicable("needs a batch whose labels hold pads; the batch maker pads none")
    gradient = x.loss_gradient(tgt_out)
    ignored = int(tgt_out[~real][0])
    once = float(loss(x.logits, tgt_out))
    if (own := x.own_loss(slice(None))) is not None and abs(own - once) > x.loss_tolerance(once):
        return Outcome(
            abs(own - once),
            x.loss_tolerance(once),
            "",
            f"the model's own loss is {own:.4f}, the mean over labels that are no pads {once:.4f}",
        )
    twice = float(
        loss(
            torch.cat((x.logits, x.noise(x.logits)), 1),
            _wider(tgt_out, tgt_out.shape[1], ignored),
        )
    )
    return Outcome(
        worst((largest(gradient[~real]), abs(twice - once))),
        x.loss_tolerance(once),
        f"gradient at {int((~real).sum())} pad labels is zero; {tgt_out.numel()} more leave the "
        f"loss at {once:.4f}",
        f"the loss is {once:.4f}, with more pad labels {twice:.4f}: pads are scored; pass "
        "ignore_index, and divide by the real labels alone",
    )


def labels_shifted(x: Examples) -> Outcome:
    """(l) tgt_out[t] = tgt_in[t + 1] at every real place."""
    if x.tgt_out is None:
        raise NotApplicable("needs a batch maker, for its labels (batch=...)")
    follows = x.real[:, 1:]
    wrong = (x.tgt_out[:, :-1] != x.tgt_in[:, 1:]) & follows
    same = bool((x.tgt_out == x.tgt_in)[x.real].float().mean() > 0.5)
    cause = (
        "labels equal tgt_in at the same place: they are not shifted, so the model learns to "
        "repeat the token it has just read; drop BOS from the labels"
        if same
        else "labels are not what follows in tgt_in; is the target shifted by one, once?"
    )
    return Outcome(
        float(wrong.sum()),
        0.0,
        f"{int(follows.sum())} of {int(follows.sum())} labels are the next decoder input",
        f"{int(wrong.sum())} of {int(follows.sum())}: {cause}",
    )


def ends_agree(x: Examples) -> Outcome:
    """(m) Pad, start and end are told apart; decoding starts as training does; the end is
    scored."""
    tgt_out = _needs_loss(x)
    subject, problems = x.subject, []
    if subject.pad_id == subject.eos_id:
        problems.append(
            f"pad and end are both {subject.pad_id}: ends are ignored with the pads, and "
            "decoding never stops; give the pad an id of its own"
        )
    starts = set(x.tgt_in[:, 0].tolist())
    if subject.decoding_start is not None and starts != {subject.decoding_start}:
        problems.append(
            f"training starts targets with {sorted(starts)} and decoding with "
            f"{subject.decoding_start}: the first step of decoding is one never trained"
        )
    if subject.eos_id is not None:
        gradient = x.loss_gradient(tgt_out)
        labelled = subject.real_labels(tgt_out)
        rows, last = torch.arange(len(tgt_out)), labelled.sum(1) - 1
        scored = gradient[rows, last].abs().amax(-1) > 0
        if not bool(((tgt_out[rows, last] == subject.eos_id) & scored).all()):
            problems.append(
                f"the last label scored is {sorted(set(tgt_out[rows, last].tolist()))}, not the "
                f"end, {subject.eos_id}: the model never learns to stop"
            )
    known = "the end is scored" if subject.eos_id is not None else "no end given (eos_id)"
    start = "start unknown" if subject.decoding_start is None else f"start {starts.pop()} in both"
    return Outcome(
        float(len(problems)), 0.0, f"pad {subject.pad_id}, {start}, {known}", "; ".join(problems)
    )


def halves_add_up(x: Examples) -> Outcome:
    """(n) The loss of a batch = the summed losses of its halves over their tokens."""
    loss, tgt_out = x.loss, _needs_loss(x)
    real, half = x.subject.real_labels(tgt_out), len(tgt_out) // 2

    def mean(rows: slice) -> float:
        own = x.own_loss(rows)
        return float(loss(x.logits[rows], tgt_out[rows])) if own is None else own

    whole = mean(slice(None))
    parts = [(mean(rows), int(real[rows].sum())) for rows in (slice(half), slice(half, None))]
    tokens = sum(count for _, count in parts)
    expected = sum(value * count for value, count in parts) / tokens
    cause = (
        "is it a sum? divide by the real labels"
        if abs(whole - sum(value for value, _ in parts)) <= x.loss_tolerance(whole)
        else ("a mean of means weighs short rows more; sum first, divide once by the real labels")
    )
    return Outcome(
        abs(whole - expected),
        x.loss_tolerance(whole),
        f"loss {whole:.4f} = its halves over {tokens} tokens",
        f"the loss is {whole:.4f}, its halves over their tokens {expected:.4f}: {cause}",
    )


def _needs_loss(x: Examples) -> Tensor:
    """The labels, where a loss function is at hand too."""
    missing = [
        name for name, value in (("loss", x.subject.loss), ("batch", x.tgt_out)) if value is None
    ]
    if x.subject.loss is None or x.tgt_out is None:
        words = {"loss": "a loss function (loss=...)", "batch": "a batch maker (batch=...)"}
        raise NotApplicable("needs " + " and ".join(words[name] for name in missing))
    return x.tgt_out


PROOFS: dict[str, tuple[str, Callable[[Examples], Outcome]]] = {
    "a": ("appended pads change no real output", pads_appended),
    "b": ("a future target token changes no earlier output", future_changed),
    "d": ("a pair alone = the pair in a batch", one_at_a_time),
    "e": ("no gradient from real outputs to pads and future", sees_nothing_closed),
    "h": ("the loss ignores pad labels", pad_labels_ignored),
    "i": ("no NaN with an empty row", empty_row),
    "j": ("the order of the source is seen", order_seen),
    "l": ("labels are the next decoder inputs", labels_shifted),
    "m": ("pad, start and end are told apart", ends_agree),
    "n": ("a batch's loss = its halves' over their tokens", halves_add_up),
    **INNER_PROOFS,
}
