"""What looks wrong in a run: each rule reads a snapshot and yields findings with their remedies.

The bounds were set on measured runs, sound and faulty; EXPERIMENTS.md lists them. A run that solved
its task is not asked why it learned so little.
"""

from collections.abc import Iterator
from statistics import median
from typing import Literal, NamedTuple

from toytrans.config.faults import openly_named_fault
from toytrans.doctor.record import RunSnapshot
from toytrans.exercises.fault_cards import CARDS
from toytrans.training.folder import Record


class Finding(NamedTuple):
    """One finding about a run.

    severity: wrong: something is broken; odd: it should be different.
    checks: those of `toytrans check` that give more information.
    cards: faults with the same symptom.
    """

    name: str
    severity: Literal["wrong", "odd"]
    what: str
    evidence: str
    remedy: str
    checks: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()


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
    rules = [damaged_files, ended_badly, odd_data]
    if run.records and not run.diverged:
        rules += [wrong_outputs, worse_on_new_pairs, was_better]
        if run.best is None or run.best["valid_exact_match"] < SOLVED:
            train = run.config.train
            stopped_early = not run.finished and run.step < train.max_steps / 2
            if not stopped_early and run.step >= (train.warmup_steps or 0):
                rules += [learned_too_little, unseen_lengths]
            rules.append(rate)
    findings = [finding for rule in rules for finding in rule(run)]
    findings.sort(key=lambda finding: finding.severity != "wrong")
    return [*findings, *fault_of_config(run)]


def fault_of_config(run: RunSnapshot) -> Iterator[Finding]:
    """A fault that the config names."""
    if fault := openly_named_fault(run.config.fault):
        card, what = CARDS[fault], f"The config names a planted fault: {fault}."
        remedy = "train without --break, and with fault: null in the config"
        yield Finding("fault", "wrong", what, card.what, remedy, card.checks, (fault,))


def damaged_files(run: RunSnapshot) -> Iterator[Finding]:
    """Checkpoints that cannot be read, or are gone."""
    sound = [step for step, damage in run.damage.items() if not damage]
    for step, damage in run.damage.items():
        if damage:
            remedy = "train again"
            if sound:
                nearest = max((each for each in sound if each < step), default=sound[0])
                remedy = f"that of step {nearest} can be: --checkpoint {nearest}"
            what = f"The checkpoint of step {step} cannot be used."
            evidence = damage.partition("; ")[0]
            yield Finding("damaged_checkpoint", "wrong", what, evidence, remedy)
    if run.finished and not run.damage and not run.diverged:
        what, evidence = "Training has ended, but its checkpoints are gone.", f"step {run.step:,}"
        remedy = "--resume trains again from the start"
        yield Finding("no_checkpoint", "wrong", what, f"{evidence} was reached", remedy)


def ended_badly(run: RunSnapshot) -> Iterator[Finding]:
    """A training that diverged, did not start, or did not end."""
    train, records = run.config.train, run.records
    if not records:
        what, evidence = "There is no record of a training.", "metrics.jsonl holds no record"
        yield Finding("untrained", "odd", what, evidence, "toytrans train; --resume continues")
    elif run.diverged:
        broken = next(record for record in records if "diverged" in record)
        before = [r for r in records if r["step"] < broken["step"]]
        evidence = f"{broken['diverged']} not finite by step {broken['step']}"
        evidence += f", rate {broken['lr']:.2g}"
        if before:
            evidence += f"; loss {before[-1]['loss']:.3g} at step {before[-1]['step']}"
        also = "set train.clip_norm: 1.0" if train.clip_norm is None else "warm up for longer"
        remedy = f"lower train.lr {train.lr:g}, and {also}"
        yield Finding("diverged", "wrong", "Training diverged.", evidence, remedy)
    elif not run.finished:
        what = "Training was interrupted, or is still running."
        evidence = f"step {run.step:,} of {train.max_steps:,}, rate {records[-1]['lr']:.2g} of "
        evidence += f"{train.lr:.2g} at its peak"
        yield Finding("cut_short", "odd", what, evidence, "continue with --resume")


def odd_data(run: RunSnapshot) -> Iterator[Finding]:
    """What is odd about the files: it may be why the model learned too little from them."""
    for finding in run.of_data:
        yield Finding(finding.name, "odd", finding.title, finding.what, finding.remedy)


def wrong_outputs(run: RunSnapshot) -> Iterator[Finding]:
    """More wrong outputs than wrong tokens, or one wrong token in nearly every output.

    In a sound model the first wrong token of an output is wrong under teacher forcing too. Random
    errors leave more outputs right than one error in each.
    """
    if run.targets is None or not run.evaluations:
        return
    last = run.evaluations[-1]
    exact, accuracy = last["valid_exact_match"], last["valid_token_accuracy"]
    outputs, tokens = 1 - exact, (1 - accuracy) * run.targets.mean_tokens
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
    floor, valid_floor = run.floors
    train = max(run.loss_of(0.75, 1, until=last["step"]), last["loss"] - floor)
    valid = last["valid_loss"] - valid_floor
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
        "what is odd about the data comes first; then " * bool(run.of_data)
        + "more pairs (data.train_examples), model.dropout, or train.patience to stop earlier",
    )


def was_better(run: RunSnapshot) -> Iterator[Finding]:
    """A last evaluation far below the best one."""
    if run.best is not None and run.finished:
        last, pairs = run.evaluations[-1], len(run.targets.tokens) if run.targets else 1
        lost = run.best["valid_exact_match"] - last["valid_exact_match"]
        if lost > max(LOST, NOISE / pairs**0.5):
            evidence = f"{measured(run.best)}, {measured(last)}"
            remedy = "the best checkpoint is kept and used by default; lower train.lr"
            what = "An earlier checkpoint was better."
            yield Finding("best_long_before", "odd", what, evidence, remedy)


def learned_too_little(run: RunSnapshot) -> Iterator[Finding]:
    """A loss that never fell, stopped falling, or was still falling; a gradient near zero."""
    end, train = run.settled_loss, run.config.train
    middle = median(record["grad_norm"] for record in run.records[len(run.records) // 2 :])
    if middle < DEAD and end > GAP:
        what = "The gradient has vanished, although much is left to learn."
        evidence = f"median norm {middle:.1e}, loss {end:.2f}"
        remedy = "check that every layer is reached; lower train.lr"
        faults: tuple[str, ...] = ("no_residual", "no_norm")
        yield Finding("vanished", "wrong", what, evidence, remedy, ("sublayers",), faults)
    if run.targets is not None and end > IGNORANT * run.targets.entropy:
        yield Finding(
            "learned_nothing",
            "wrong" if run.finished else "odd",
            "The model learned nothing from the source.",
            f"loss {end:.2f}; token frequencies alone would give {run.targets.entropy:.2f}",
            f"check the model, then train.lr {train.lr:g} (too high or too low) and "
            f"train.max_steps {train.max_steps:,}",
            ("order", "labels", "sublayers"),
        )
        return
    if len(run.records) < 8 or end < GAP or not run.finished:
        return
    third = run.loss_of(0.5, 0.75)
    evidence = f"loss {third:.3f} in the third quarter, {end:.3f} in the last"
    if run.targets is not None and run.evaluations:
        last = run.evaluations[-1]
        chance = run.targets.by_chance(last["valid_token_accuracy"])
        evidence += f"; {measured(last)} (errors at random places would give {chance:.3f})"
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


def rate(run: RunSnapshot) -> Iterator[Finding]:
    """A warm-up that never ended, a loss that rose."""
    train, records = run.config.train, run.records
    remedy = f"lower train.lr {train.lr:g}, or use a longer warm-up"
    if run.step < (train.warmup_steps or 0):
        what = "The learning rate never reached its peak."
        evidence = f"{run.step:,} steps of {train.warmup_steps:,} of warm-up, rate "
        evidence += f"{records[-1]['lr']:.2g} of {train.lr:.2g}"
        fewer = "fewer train.warmup_steps, or more time (train.max_steps, train.max_seconds)"
        yield Finding("still_warming_up", "odd", what, evidence, fewer)
    first, highest = records[0]["loss"], max(records, key=lambda record: record["loss"])
    third, end = run.loss_of(0.5, 0.75), run.settled_loss
    what, evidence = "The loss rose above its initial value.", ""
    if highest["loss"] > CLIMBED * first:
        evidence = f"{first:.2f} at first, {highest['loss']:.2f} at step {highest['step']:,}"
    elif len(records) >= 8 and end > RISING * third + GAP:
        what = "The loss rose at the end."
        evidence = f"{third:.3f} in the third quarter, {end:.3f} in the last"
    if evidence:
        yield Finding("unstable", "odd", what, evidence, remedy)


def unseen_lengths(run: RunSnapshot) -> Iterator[Finding]:
    """Validation pairs longer or shorter than any that was trained."""
    if valid_is_longer(run) and not run.config.model.source_bos:
        what = "Validation data has lengths that were never trained."
        spans = run.facts.train_length, run.config.data.valid_length
        trained, valid = (" to ".join(map(str, span or ("?",))) for span in spans)
        remedy = "only anchored positions reach further; toytrans eval reports lengths beyond apart"
        evidence = f"trained {trained}, valid {valid}"
        yield Finding("unseen_lengths", "odd", what, evidence, remedy)


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
