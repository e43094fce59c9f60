"""What looks wrong in a run, told by its record alone.

Every question is a function of a `Case` that yields symptoms. The bounds were set on runs that
were measured, sound and broken ones; EXPERIMENTS.md has them. A run that solved its task (exact
match of 0.9 on validation data) is not asked why it did not: clipping and spikes did it no harm.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from toytrans.insight.diagnosis.rules import (
    GAP,
    RISING,
    Severity,
    Symptom,
    broken_on_purpose,
    cut_short,
    damaged_files,
    diverged,
    got_worse,
    measured,
    one_error_each,
    reads_the_future,
    untrained_places,
    valid_is_longer,
    wasteful,
    worse_on_new_pairs,
)
from toytrans.insight.diagnosis.snapshot import Case
from toytrans.training.run import Record

SOLVED = 0.9
"""Exact match from which a run is not asked why it learned so little."""

IGNORANT = 0.95
"""Of the entropy of target tokens: a loss above it owes the source nothing."""

FALLING = 0.9
"""The last quarter's loss beside the third's: below it training was still getting somewhere."""

SPIKE, SPIKE_WINDOW = 20.0, 10
"""A gradient so many times the median of as many records before it."""

CLIMBED = 1.2
CLIPPED, HARD = 0.95, 3.0
"""Share of gradients that were clipped, and how far above the limit they lie: sound runs clip most
of theirs while they learn."""

DEAD = 1e-3
FEW_TOKENS = 200
MANY_EPOCHS = 20.0


def examine(case: Case) -> list[Symptom]:
    """All symptoms of a run, the worst first."""
    found = [symptom for question in QUESTIONS for symptom in question(case)]
    if case.records and not case.diverged:
        found += [symptom for question in OF_TRAINING for symptom in question(case)]
        if not solved(case):
            train = case.config.train
            early = case.step < (train.warmup_steps or 0)
            early = early or case.ending == "cut short" and case.step < train.max_steps / 2
            why = (rate,) if early else OF_FAILURE  # nothing need have been learned yet
            found += [symptom for question in why for symptom in question(case)]
    order: tuple[Severity, ...] = ("wrong", "odd", "note")
    return sorted(found, key=lambda symptom: order.index(symptom.severity))


def solved(case: Case) -> bool:
    return case.best is not None and case.best["valid_exact_match"] >= SOLVED


# Of a training that did not solve its task ---------------------------------------------------


def learned_too_little(case: Case) -> Iterator[Symptom]:
    """Nothing at all, stuck, or not for long enough."""
    end = case.settled_loss
    if case.texts is not None and end > IGNORANT * case.texts.entropy:
        yield Symptom(
            "learned_nothing",
            "wrong" if case.ending != "cut short" else "odd",
            "It learned nothing from the source.",
            f"loss {end:.2f}; how often tokens occur is worth {case.texts.entropy:.2f} by itself",
            f"check the model, then train.lr {case.config.train.lr:g} (too high or too low) and "
            f"train.max_steps {case.config.train.max_steps:,}",
            ("j", "l", "o"),
        )
        return
    if len(case.records) < 8 or end < GAP or case.ending == "cut short":
        return
    third = case.loss_of(0.5, 0.75)
    evidence = f"loss {third:.3f} in the third quarter, {end:.3f} in the last{_expected(case)}"
    if end < FALLING * third:
        yield Symptom(
            "too_short",
            "odd",
            "It was still learning when training ended.",
            evidence,
            f"raise train.max_steps {case.config.train.max_steps:,}",
        )
    elif end <= RISING * third + GAP:
        yield Symptom(
            "plateau",
            "odd",
            "The loss has stopped falling far above zero.",
            evidence,
            "see whether the model can tell places apart, then try another train.lr, more steps "
            "and a larger model",
            ("j", "o", "p"),
            ("no_position", "no_residual"),
        )


def gradients(case: Case) -> Iterator[Symptom]:
    """Spikes, clipping throughout, or nothing left."""
    clip, remedy = case.config.train.clip_norm, "lower train.lr, or warm up for longer"
    steps = spikes(case.records)
    if steps and case.settled_loss > GAP:
        shown = ", ".join(f"{step:,}" for step in steps[:5]) + ", ..." * (len(steps) > 5)
        evidence = f"{len(steps)} records above {SPIKE:.0f} times those before: steps {shown}"
        yield Symptom("spikes", "odd", "The gradient has spikes.", evidence, remedy)
    norms = [record["grad_norm"] for record in case.records[len(case.records) // 2 :]]
    share = sum(norm > clip for norm in norms) / len(norms) if clip else 0.0
    if clip and share > CLIPPED and median(norms) > HARD * clip:
        evidence = f"{share:.0%} of the second half's records above clip_norm {clip:g}, median " + (
            f"{median(norms):.2g}"
        )
        remedy = "steps then all have one length: lower train.lr, or raise train.clip_norm"
        yield Symptom("clipped", "note", "Nearly every gradient was clipped.", evidence, remedy)
    if median(norms) < DEAD and case.settled_loss > GAP:
        yield Symptom(
            "vanished",
            "wrong",
            "The gradient has vanished, though there is much to learn.",
            f"median norm {median(norms):.1e}, loss {case.settled_loss:.2f}",
            "see whether every layer is reached; lower train.lr",
            ("o", "p"),
            ("no_residual", "no_norm"),
        )


def rate(case: Case) -> Iterator[Symptom]:
    """Warm-up that never ended, a rate that never came down, a loss that climbed."""
    train = case.config.train
    if case.step < (train.warmup_steps or 0):
        yield Symptom(
            "still_warming_up",
            "odd",
            "The learning rate never reached its peak.",
            f"{case.step:,} steps of {train.warmup_steps:,} of warm-up, rate "
            f"{case.records[-1]['lr']:.2g} of {train.lr:.2g}",
            "fewer train.warmup_steps, or more time (train.max_steps, train.max_seconds)",
        )
    elif case.ending == "max_seconds" and case.records[-1]["lr"] > 0.5 * train.lr:
        yield Symptom(
            "stopped_before_decay",
            "odd",
            "Time was up long before the learning rate had come down.",
            f"step {case.step:,} of {train.max_steps:,}, rate {case.records[-1]['lr']:.2g} of "
            f"{train.lr:.2g}",
            "set train.max_steps to what train.max_seconds allows",
        )
    first = case.records[0]["loss"]
    highest = max(case.records, key=lambda record: record["loss"])
    if highest["loss"] > CLIMBED * first:
        yield Symptom(
            "unstable",
            "odd",
            "The loss climbed above where it began.",
            f"{first:.2f} at first, {highest['loss']:.2f} at step {highest['step']:,}",
            f"lower train.lr {train.lr:g}, or warm up for longer",
        )


def data(case: Case) -> Iterator[Symptom]:
    """Lengths that were never seen, too few tokens a step, too few pairs."""
    if valid_is_longer(case) and not case.config.source_bos:
        yield Symptom(
            "unseen_lengths",
            "note",
            "Validation data holds lengths that were never trained on.",
            f"trained {_span(case.facts.train_length)}, valid "
            f"{_span(case.config.data.valid_length)}; only anchored positions go beyond",
            "toytrans eval measures lengths within and beyond apart",
        )
    tokens = case.records[-1]["target_tokens"] / case.step
    if tokens < FEW_TOKENS:
        yield Symptom(
            "few_tokens",
            "note",
            "A step sees few target tokens, so its gradient is noisy.",
            f"{tokens:.0f} a step",
            f"raise data.batch_tokens {case.config.data.batch_tokens} or train.accumulate",
        )
    if case.epochs > MANY_EPOCHS and case.texts is not None:
        yield Symptom(
            "many_epochs",
            "note",
            "The same pairs were seen over and over.",
            f"{case.texts.train_size:,} pairs, each {case.epochs:.0f} times",
            "more pairs (data.train_examples)",
        )


Question = Callable[[Case], Iterator[Symptom]]
QUESTIONS: tuple[Question, ...] = (broken_on_purpose, damaged_files, diverged, cut_short)
OF_TRAINING: tuple[Question, ...] = (
    reads_the_future,
    one_error_each,
    worse_on_new_pairs,
    got_worse,
    untrained_places,
    wasteful,
)
OF_FAILURE: tuple[Question, ...] = (learned_too_little, gradients, rate, data)


def spikes(records: Sequence[Record]) -> list[int]:
    """Steps whose gradient is far above the median of the records before."""
    norms = [record["grad_norm"] for record in records]
    return [
        int(record["step"])
        for i, record in enumerate(records)
        if i >= SPIKE_WINDOW and norms[i] > SPIKE * median(norms[i - SPIKE_WINDOW : i])
    ]


def _expected(case: Case) -> str:
    """The last evaluation, and what errors that fall anywhere would make of its tokens."""
    if case.texts is None or not case.evaluations:
        return ""
    last = case.evaluations[-1]
    chance = case.texts.by_chance(last["valid_token_accuracy"])
    return f"; {measured(last)} (errors that fall anywhere would give {chance:.3f})"


def _span(length: tuple[int, int] | None) -> str:
    return f"{length[0]} to {length[1]}" if length else "?"
