"""What looks wrong in a run: each rule reads a snapshot and yields findings with their remedies.

The bounds were set on measured runs, sound and faulty; EXPERIMENTS.md lists them. A run that solved
its task is not asked why it learned so little.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from toytrans.config.names import FaultName
from toytrans.config.sealed import is_sealed, opened
from toytrans.doctor.record import SETTLED, RunSnapshot
from toytrans.exercises.fault_cards import CARDS
from toytrans.training.run import Record

Severity = Literal["wrong", "odd"]


@dataclass(frozen=True)
class Finding:
    """One finding about a run.

    severity: wrong: something is broken; odd: it should be different.
    checks: those of `toytrans check` that give more information.
    cards: faults with the same symptom.
    """

    name: str
    severity: Severity
    what: str
    evidence: str
    remedy: str
    checks: tuple[str, ...] = ()
    cards: tuple[FaultName, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Rule = Callable[[RunSnapshot], Iterator[Finding]]

SOLVED = 0.9
"""The exact match on validation data from which a run counts as solved."""

ROUNDING = 0.02
"""The share of validation pairs whose decoding may differ from teacher forcing by rounding."""

GAP, OTHER, BY_HEART = 0.1, 3.0, 2.0
"""A validation loss counts as higher if it exceeds the training loss by GAP nats and by a factor:
OTHER for endless training pairs (faults give 50 and more), BY_HEART for a finite set."""

RISING, FALLING = 1.2, 0.9
"""The loss rises if its last quarter is above RISING times the third, plus GAP. It still falls if
its last quarter is below FALLING times the third."""

LOST, NOISE = 0.05, 2.1
"""A loss of exact match counts above LOST and above three standard errors, which are at most
NOISE / root of the pairs."""

IGNORANT = 0.95
"""Above this share of the entropy of target tokens, a loss owes nothing to the source."""

CLIMBED, DEAD = 1.2, 1e-3
"""A loss has climbed above CLIMBED times its first value; a gradient below DEAD has vanished."""


def examine(run: RunSnapshot) -> list[Finding]:
    """All findings of a run, the worst first; what its config says of a fault comes last."""
    rules: list[Rule] = [damaged_files, diverged, cut_short]
    if run.records and not run.diverged:
        rules += [reads_the_future, one_error_each, worse_on_new_pairs, got_worse]
        if run.best is None or run.best["valid_exact_match"] < SOLVED:
            rules += [] if _early(run) else [learned_too_little, vanished, unseen_lengths]
            rules.append(rate)
    findings = [finding for rule in rules for finding in rule(run)]
    findings.sort(key=lambda finding: finding.severity != "wrong")
    return [*findings, *planted_fault(run)]


def _early(run: RunSnapshot) -> bool:
    """Whether training stopped before it could have learned anything."""
    train = run.config.train
    interrupted = not run.finished and run.step < train.max_steps / 2
    return run.step < (train.warmup_steps or 0) or interrupted


# Any run -------------------------------------------------------------------------------------


def planted_fault(run: RunSnapshot) -> Iterator[Finding]:
    """A fault that the config names."""
    if not is_sealed(run.config.fault) and (fault := opened(run.config.fault)):
        card = CARDS[fault]
        yield Finding(
            "fault",
            "wrong",
            f"The config names a planted fault: {fault}.",
            card.what,
            "train without --break, and with fault: null in the config",
            card.checks,
            (fault,),
        )


def damaged_files(run: RunSnapshot) -> Iterator[Finding]:
    """Checkpoints and records that cannot be read."""
    sound = [checkpoint.step for checkpoint in run.checkpoints if not checkpoint.damage]
    for checkpoint in run.checkpoints:
        if checkpoint.damage:
            remedy = "train again"
            if sound:
                nearest = max((step for step in sound if step < checkpoint.step), default=sound[0])
                remedy = f"that of step {nearest} can be: --checkpoint {nearest}"
            yield Finding(
                "damaged_checkpoint",
                "wrong",
                f"The checkpoint of step {checkpoint.step} cannot be used.",
                checkpoint.damage.partition("; ")[0],
                remedy,
            )
    if run.finished and not run.checkpoints and not run.diverged:
        yield Finding(
            "no_checkpoint",
            "wrong",
            "Training has ended, but its checkpoints are gone.",
            f"step {run.step:,} was reached",
            "--resume trains again from the start",
        )


def diverged(run: RunSnapshot) -> Iterator[Finding]:
    """A loss or gradient that is not finite."""
    if not run.diverged:
        return
    broken = next(r for r in run.records if r["loss"] is None or r["grad_norm"] is None)
    before = [r for r in run.records if r["step"] < broken["step"]]
    last = f"; loss {before[-1]['loss']:.3g} at step {before[-1]['step']}" if before else ""
    where = f"by step {broken['step']}, rate {broken['lr']:.2g}{last}"
    train = run.config.train
    unclipped = f"lower train.lr {train.lr:g}, and set train.clip_norm: 1.0"
    remedy = unclipped if train.clip_norm is None else _warm_up(run)
    evidence = f"loss or gradient not finite {where}"
    yield Finding("diverged", "wrong", "Training diverged.", evidence, remedy)


def cut_short(run: RunSnapshot) -> Iterator[Finding]:
    """A training that did not start, did not end, or was never evaluated."""
    train = run.config.train
    if not run.records:
        yield Finding(
            "untrained",
            "odd",
            "There is no record of a training.",
            "metrics.jsonl holds no record",
            "toytrans train; --resume continues",
        )
        return
    if not (run.finished or run.diverged):
        yield Finding(
            "cut_short",
            "odd",
            "Training was interrupted, or is still running.",
            f"step {run.step:,} of {train.max_steps:,}, rate {run.records[-1]['lr']:.2g} of "
            f"{train.lr:.2g} at its peak",
            "continue with --resume",
        )


# Any training with finite numbers ------------------------------------------------------------


def reads_the_future(run: RunSnapshot) -> Iterator[Finding]:
    """More wrong outputs than wrong tokens.

    In a sound model the first wrong token of an output is wrong under teacher forcing too.
    """
    if run.targets is None or not run.evaluations:
        return
    last = run.evaluations[-1]
    outputs = 1 - last["valid_exact_match"]
    tokens = (1 - last["valid_token_accuracy"]) * run.targets.mean_tokens
    if outputs > tokens + ROUNDING:
        yield Finding(
            "reads_the_future",
            "wrong",
            "Correct when fed the target, wrong when decoding alone: the decoder sees its labels.",
            f"{measured(last)}. Decoding alone, {outputs:.0%} of the outputs are wrong. Fed the "
            f"target, a pair has {tokens:.2f} wrong tokens. A sound model has at least one wrong "
            "token where it has a wrong output.",
            "check the decoder's mask and the shift of the targets",
            ("future", "steps"),
            ("no_causal", "triangle_off_by_one", "mask_flipped"),
        )


def one_error_each(run: RunSnapshot) -> Iterator[Finding]:
    """As many wrong tokens as wrong outputs, where random errors would leave more outputs right."""
    if run.targets is None or not run.evaluations:
        return
    last = run.evaluations[-1]
    exact, accuracy = last["valid_exact_match"], last["valid_token_accuracy"]
    outputs, tokens = 1 - exact, (1 - accuracy) * run.targets.mean_tokens
    chance = run.targets.by_chance(accuracy)
    if exact < chance / 2 and chance - exact > 0.2 and abs(tokens / outputs - 1) <= 0.2:
        yield Finding(
            "one_error_each",
            "wrong",
            "Nearly every output has exactly one wrong token, as if the end were never learned.",
            f"{measured(last)}. A pair has {tokens:.2f} wrong tokens. Errors at random places "
            f"would leave {chance:.2f} of the outputs right.",
            "toytrans eval shows whether the ends are wrong; check what the loss ignores",
            ("labels",),
            ("pad_is_eos",),
        )


def worse_on_new_pairs(run: RunSnapshot) -> Iterator[Finding]:
    """A validation loss far above the training loss.

    The training loss includes the steps just before the evaluation, so a training that diverges
    for a moment raises no alarm. Endless pairs cannot be memorized, so the cause is another one.
    """
    if not run.evaluations or run.targets is None or valid_is_longer(run):
        return
    last, endless = run.evaluations[-1], run.targets.train_size is None
    usual = run.loss_of(1 - SETTLED, 1, until=last["step"])
    train = max(usual, last["loss"] - run.floor)
    valid = last["valid_loss"] - run.valid_floor
    if valid < train + GAP or valid < (OTHER if endless else BY_HEART) * train:
        return
    evidence = f"training loss {train:.4f}, {measured(last)}, validation loss {valid:.4f}"
    if endless:
        yield Finding(
            "trained_on_something_else",
            "wrong",
            "New pairs are far worse than training pairs, although every training pair was new.",
            evidence,
            "training and validation data differ: check pads, start and labels",
            ("pads", "labels"),
            ("pad_visible", "wrong_start", "labels_not_shifted", "pad_is_eos"),
        )
        return
    lowest = min(run.evaluations, key=lambda record: record["valid_loss"])
    yield Finding(
        "overfitted",
        "odd",
        "The model memorized its training pairs and is far worse on new ones.",
        f"{evidence}, lowest {lowest['valid_loss']:.4f} at step {lowest['step']:,}; "
        f"{run.targets.train_size:,} pairs, each seen {run.epochs:.0f} times",
        "more pairs (data.train_examples), model.dropout, or train.patience to stop earlier",
    )


def got_worse(run: RunSnapshot) -> Iterator[Finding]:
    """A last evaluation far below the best one, or a loss that rises."""
    best = run.best
    if best is not None and run.finished:
        last, pairs = run.evaluations[-1], len(run.targets.tokens) if run.targets else 1
        lost = best["valid_exact_match"] - last["valid_exact_match"]
        if lost > max(LOST, NOISE / pairs**0.5):
            yield Finding(
                "best_long_before",
                "odd",
                "An earlier checkpoint was better.",
                f"{measured(best)}, {measured(last)}",
                "the best checkpoint is kept and used by default; lower train.lr",
            )
    if len(run.records) >= 8:
        third, end = run.loss_of(0.5, 0.75), run.settled_loss
        if end > RISING * third + GAP:
            evidence = f"{third:.3f} in the third quarter, {end:.3f} in the last"
            what = "The loss rose at the end."
            yield Finding("loss_rises", "odd", what, evidence, _warm_up(run))


# A training that did not solve its task ------------------------------------------------------


def learned_too_little(run: RunSnapshot) -> Iterator[Finding]:
    """A loss that never fell, stopped falling, or was still falling."""
    end, unfinished, train = run.settled_loss, not run.finished, run.config.train
    if run.targets is not None and end > IGNORANT * run.targets.entropy:
        yield Finding(
            "learned_nothing",
            "odd" if unfinished else "wrong",
            "The model learned nothing from the source.",
            f"loss {end:.2f}; token frequencies alone would give {run.targets.entropy:.2f}",
            f"check the model, then train.lr {train.lr:g} (too high or too low) and "
            f"train.max_steps {train.max_steps:,}",
            ("order", "labels", "sublayers"),
        )
        return
    if len(run.records) < 8 or end < GAP or unfinished:
        return
    third = run.loss_of(0.5, 0.75)
    evidence = f"loss {third:.3f} in the third quarter, {end:.3f} in the last{_expected(run)}"
    if end < FALLING * third:
        what = "The loss was still falling when training ended."
        remedy = f"raise train.max_steps {train.max_steps:,}"
        yield Finding("too_short", "odd", what, evidence, remedy)
    elif end <= RISING * third + GAP:
        yield Finding(
            "plateau",
            "odd",
            "The loss stopped falling far above zero.",
            evidence,
            "check whether the model can tell places apart, then try another train.lr, more steps "
            "and a larger model",
            ("order", "sublayers"),
            ("no_position", "no_residual"),
        )


def vanished(run: RunSnapshot) -> Iterator[Finding]:
    """A gradient near zero."""
    middle = median(record["grad_norm"] for record in run.records[len(run.records) // 2 :])
    if middle < DEAD and run.settled_loss > GAP:
        yield Finding(
            "vanished",
            "wrong",
            "The gradient has vanished, although much is left to learn.",
            f"median norm {middle:.1e}, loss {run.settled_loss:.2f}",
            "check that every layer is reached; lower train.lr",
            ("sublayers",),
            ("no_residual", "no_norm"),
        )


def rate(run: RunSnapshot) -> Iterator[Finding]:
    """A warm-up that never ended, a loss that climbed."""
    train = run.config.train
    if run.step < (train.warmup_steps or 0):
        yield Finding(
            "still_warming_up",
            "odd",
            "The learning rate never reached its peak.",
            f"{run.step:,} steps of {train.warmup_steps:,} of warm-up, rate "
            f"{run.records[-1]['lr']:.2g} of {train.lr:.2g}",
            "fewer train.warmup_steps, or more time (train.max_steps, train.max_seconds)",
        )
    first = run.records[0]["loss"]
    highest = max(run.records, key=lambda record: record["loss"])
    if highest["loss"] > CLIMBED * first:
        evidence = f"{first:.2f} at first, {highest['loss']:.2f} at step {highest['step']:,}"
        what = "The loss rose above its initial value."
        yield Finding("unstable", "odd", what, evidence, _warm_up(run))


def unseen_lengths(run: RunSnapshot) -> Iterator[Finding]:
    """Validation pairs longer or shorter than any that was trained."""
    if valid_is_longer(run) and not run.config.source_bos:
        trained, valid = run.facts.train_length, run.config.data.valid_length
        yield Finding(
            "unseen_lengths",
            "odd",
            "Validation data has lengths that were never trained.",
            f"trained {_span(trained)}, valid {_span(valid)}",
            "only anchored positions reach further; toytrans eval reports lengths beyond apart",
        )


# What several rules say ----------------------------------------------------------------------


def _warm_up(run: RunSnapshot) -> str:
    return f"lower train.lr {run.config.train.lr:g}, or use a longer warm-up"


def measured(record: Record) -> str:
    """An evaluation as text."""
    return (
        f"step {record['step']:,}: free-running exact match {record['valid_exact_match']:.3f}, "
        f"token accuracy {record['valid_token_accuracy']:.3f}"
    )


def valid_is_longer(run: RunSnapshot) -> bool:
    """Whether validation data has lengths outside the training lengths."""
    valid, (low, high) = run.config.data.valid_length, run.facts.train_length
    return valid is not None and (valid[0] < low or valid[1] > high)


def _expected(run: RunSnapshot) -> str:
    """The last evaluation, and the exact match that random errors would give."""
    if run.targets is None or not run.evaluations:
        return ""
    last = run.evaluations[-1]
    chance = run.targets.by_chance(last["valid_token_accuracy"])
    return f"; {measured(last)} (errors at random places would give {chance:.3f})"


def _span(length: tuple[int, int] | None) -> str:
    return f"{length[0]} to {length[1]}" if length else "?"
