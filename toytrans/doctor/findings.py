"""What looks wrong in a run: a table of rules, each of which reads what is known of a run.

    Run -> RunSnapshot (record.py) -> RULES, each asked of the runs that it fits -> findings

The bounds were set on measured runs, sound and faulty; EXPERIMENTS.md lists them.
"""

from collections.abc import Callable, Iterator
from statistics import median
from typing import Literal, NamedTuple

from toytrans.config.fault_cards import CARDS
from toytrans.config.faults import openly_named_fault
from toytrans.doctor.record import RunSnapshot
from toytrans.training.folder import Record

Severity = Literal["wrong", "odd"]
"""wrong: something is broken; odd: it should be different."""


class Finding(NamedTuple):
    """One finding about a run.

    checks: those of `toytrans check` that give more information.
    cards: faults with the same symptom.
    """

    name: str
    severity: Severity
    what: str
    evidence: str
    remedy: str
    checks: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()


class Seen(NamedTuple):
    """What a rule sees in a run. what: in place of the sentence of the rule."""

    evidence: str
    remedy: str
    what: str = ""


Looks = Callable[[RunSnapshot], Iterator[Seen]]
"""Yields what is seen in a run: as a rule nothing."""


class Rule(NamedTuple):
    """One row of the table: what a finding is called and says, which runs are asked, and how.

    checks, cards: as of a finding.
    """

    name: str
    severity: Severity
    what: str
    asked_of: Callable[[RunSnapshot], bool]
    look: Looks
    checks: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()


def examine(run: RunSnapshot) -> list[Finding]:
    """All findings of a run, the worst first; what its config says of a fault comes last."""
    found = [Finding(each.name, "odd", each.title, each.what, each.remedy) for each in run.of_data]
    for rule in RULES:
        for seen in rule.look(run) if rule.asked_of(run) else ():
            about = rule.name, rule.severity, seen.what or rule.what, seen.evidence, seen.remedy
            found.append(Finding(*about, rule.checks, rule.cards))
    found.sort(key=lambda finding: finding.severity != "wrong")
    if fault := openly_named_fault(run.settings.fault):
        card, what = CARDS[fault], f"The config names a planted fault: {fault}."
        remedy = "train without --break, and with fault: null in the config"
        found.append(Finding("fault", "wrong", what, card.what, remedy, card.checks, (fault,)))
    return found


# Which runs are asked --------------------------------------------------------------------------

SOLVED = 0.9
"""The exact match on validation data from which a run counts as solved, and is not asked why it
learned so little."""


def every(run: RunSnapshot) -> bool:
    """Any run."""
    return True


def trained(run: RunSnapshot) -> bool:
    """A run that has records, and did not diverge."""
    return bool(run.records) and not run.diverged


def evaluated(run: RunSnapshot) -> bool:
    """A trained run with an evaluation, whose validation targets are known."""
    return trained(run) and bool(run.evaluations) and run.targets is not None


def unsolved(run: RunSnapshot) -> bool:
    """A trained run that has not solved its task."""
    return trained(run) and (run.best is None or run.best["valid_exact_match"] < SOLVED)


def tried(run: RunSnapshot) -> bool:
    """An unsolved run that was trained for long enough to have learned something."""
    train = run.settings.train
    stopped_early = not run.finished and run.step < train.max_steps / 2
    return unsolved(run) and not stopped_early and run.step >= (train.warmup_steps or 0)


def settled(run: RunSnapshot) -> bool:
    """A finished run that has learned something, but is left with a loss."""
    enough = tried(run) and run.finished and len(run.records) >= 8
    return enough and run.settled_loss >= HIGHER_BY and not knows_no_source(run)


def knows_no_source(run: RunSnapshot) -> bool:
    """Whether the loss is about that of guessing by the frequencies of tokens."""
    return run.targets is not None and run.settled_loss > GUESSING * run.targets.entropy


def finished_and_tried(run: RunSnapshot) -> bool:
    return run.finished and tried(run)


def unfinished_and_tried(run: RunSnapshot) -> bool:
    return not run.finished and tried(run)


# Files and the end of a training ---------------------------------------------------------------


def damaged_checkpoint(run: RunSnapshot) -> Iterator[Seen]:
    """Each checkpoint that cannot be used, and the nearest that can."""
    sound = [step for step, damage in run.damage.items() if not damage]
    for step, damage in run.damage.items():
        if damage:
            remedy = "train again"
            if sound:
                nearest = max((each for each in sound if each < step), default=sound[0])
                remedy = f"that of step {nearest} can be: --checkpoint {nearest}"
            what = f"The checkpoint of step {step} cannot be used."
            yield Seen(damage.partition("; ")[0], remedy, what)


def no_checkpoint(run: RunSnapshot) -> Iterator[Seen]:
    if run.finished and not run.damage and not run.diverged:
        yield Seen(f"step {run.step:,} was reached", "--resume trains again from the start")


def untrained(run: RunSnapshot) -> Iterator[Seen]:
    if not run.records:
        yield Seen("metrics.jsonl holds no record", "toytrans train; --resume continues")


def diverged(run: RunSnapshot) -> Iterator[Seen]:
    """The number that was not finite, and what the loss was before it."""
    if run.diverged:
        train = run.settings.train
        broken = next(record for record in run.records if "diverged" in record)
        before = [record for record in run.records if record["step"] < broken["step"]]
        evidence = f"{broken['diverged']} not finite by step {broken['step']}"
        evidence += f", rate {broken['lr']:.2g}"
        if before:
            evidence += f"; loss {before[-1]['loss']:.3g} at step {before[-1]['step']}"
        also = "set train.clip_norm: 1.0" if train.clip_norm is None else "warm up for longer"
        yield Seen(evidence, f"lower train.lr {train.lr:g}, and {also}")


def cut_short(run: RunSnapshot) -> Iterator[Seen]:
    if not run.finished:
        train = run.settings.train
        evidence = f"step {run.step:,} of {train.max_steps:,}, rate {run.records[-1]['lr']:.2g} of "
        yield Seen(f"{evidence}{train.lr:.2g} at its peak", "continue with --resume")


# Outputs beside tokens -------------------------------------------------------------------------

ROUNDING = 0.02
"""The share of validation pairs whose decoding may differ from teacher forcing by rounding."""


def wrong_shares(run: RunSnapshot) -> tuple[float, float]:
    """Of the last evaluation: the share of wrong outputs, and the wrong tokens of a pair when it is
    fed the target.

    In a sound model the first wrong token of an output is wrong under teacher forcing too.
    """
    assert run.targets is not None
    last = run.evaluations[-1]
    tokens = (1 - last["valid_token_accuracy"]) * run.targets.mean_tokens
    return 1 - last["valid_exact_match"], tokens


def reads_the_future(run: RunSnapshot) -> Iterator[Seen]:
    """More wrong outputs than wrong tokens."""
    outputs, tokens = wrong_shares(run)
    if outputs > tokens + ROUNDING:
        yield Seen(
            f"{measured(run.evaluations[-1])}. Decoding alone, {outputs:.0%} of the outputs are "
            f"wrong. Fed the target, a pair has {tokens:.2f} wrong tokens. A sound model has at "
            "least one wrong token where it has a wrong output.",
            "check the decoder's mask and the shift of the targets",
        )


def one_error_each(run: RunSnapshot) -> Iterator[Seen]:
    """One wrong token in nearly every output. Random errors leave more outputs right."""
    assert run.targets is not None
    last, (outputs, tokens) = run.evaluations[-1], wrong_shares(run)
    chance = run.targets.by_chance(last["valid_token_accuracy"])
    exact = last["valid_exact_match"]
    if exact < chance / 2 and chance - exact > 0.2 and abs(tokens / outputs - 1) <= 0.2:
        yield Seen(
            f"{measured(last)}. A pair has {tokens:.2f} wrong tokens. Errors at random places "
            f"would leave {chance:.2f} of the outputs right.",
            "toytrans eval shows whether the ends are wrong; check what the loss ignores",
        )


# Validation beside training --------------------------------------------------------------------

HIGHER_BY, TIMES_ENDLESS, TIMES_FINITE = 0.1, 3.0, 2.0
"""A validation loss counts as higher if it exceeds the training loss by so many nats and by a
factor: another one for endless training pairs, where faults give 50 and more, than for a finite
set, which may be learned by heart."""

LOST, NOISE = 0.05, 2.1
"""A loss of exact match counts from LOST on and above three standard errors, which are at most
NOISE / root of the pairs."""


def losses_at_end(run: RunSnapshot) -> tuple[float, float] | None:
    """The losses in training and in validation, above those of a perfect model, where the second is
    far above the first; else None.

    The training loss includes the steps just before the evaluation, so a training that diverges for
    a moment raises no alarm.
    """
    if valid_is_longer(run):
        return None
    assert run.targets is not None
    last, (floor, valid_floor) = run.evaluations[-1], run.floors
    train = max(run.loss_of(0.75, 1, until=last["step"]), last["loss"] - floor)
    valid = last["valid_loss"] - valid_floor
    times = TIMES_ENDLESS if run.targets.train_size is None else TIMES_FINITE
    return None if valid < train + HIGHER_BY or valid < times * train else (train, valid)


def losses_in_words(run: RunSnapshot, losses: tuple[float, float]) -> str:
    train, valid = losses
    seen = f"training loss {train:.4f}, {measured(run.evaluations[-1])}"
    return f"{seen}, validation loss {valid:.4f}"


def trained_on_something_else(run: RunSnapshot) -> Iterator[Seen]:
    """Endless pairs cannot be memorized, so the cause is another one."""
    assert run.targets is not None
    if run.targets.train_size is None and (losses := losses_at_end(run)):
        remedy = "training and validation data differ: check pads, start and labels"
        yield Seen(losses_in_words(run, losses), remedy)


def overfitted(run: RunSnapshot) -> Iterator[Seen]:
    """A validation loss that rises while pairs of a limited number are seen again and again."""
    assert run.targets is not None
    if run.targets.train_size is not None and (losses := losses_at_end(run)):
        lowest = min(run.evaluations, key=lambda record: record["valid_loss"])
        yield Seen(
            f"{losses_in_words(run, losses)}, lowest {lowest['valid_loss']:.4f} at step "
            f"{lowest['step']:,}; {run.targets.train_size:,} pairs, each seen {run.epochs:.0f} "
            "times",
            "what is odd about the data comes first; then " * bool(run.of_data)
            + "more pairs (data.train_examples), model.dropout, or train.patience to stop earlier",
        )


def best_long_before(run: RunSnapshot) -> Iterator[Seen]:
    """A last evaluation far below the best one."""
    if run.best is not None and run.finished:
        last, pairs = run.evaluations[-1], len(run.targets.tokens) if run.targets else 1
        lost = run.best["valid_exact_match"] - last["valid_exact_match"]
        if lost > max(LOST, NOISE / pairs**0.5):
            remedy = "the best checkpoint is kept and used by default; lower train.lr"
            yield Seen(f"{measured(run.best)}, {measured(last)}", remedy)


def unseen_lengths(run: RunSnapshot) -> Iterator[Seen]:
    """Validation pairs longer or shorter than any that was trained."""
    if valid_is_longer(run) and not run.settings.model.source_bos:
        spans = run.facts.train_length, run.settings.data.valid_length
        seen, valid = (" to ".join(map(str, span or ("?",))) for span in spans)
        remedy = "only anchored positions reach further; toytrans eval reports lengths beyond apart"
        yield Seen(f"trained {seen}, valid {valid}", remedy)


# The course of the loss ------------------------------------------------------------------------

GUESSING = 0.95
"""Above this share of the entropy of target tokens, a loss owes nothing to the source."""

RISING, FALLING = 1.2, 0.9
"""The loss rises if its last quarter is above RISING times the third, plus HIGHER_BY. It still
falls if its last quarter is below FALLING times the third."""

CLIMBED, NO_GRADIENT = 1.2, 1e-3
"""A loss has climbed above CLIMBED times its first value; a gradient below NO_GRADIENT has
vanished."""


def vanished(run: RunSnapshot) -> Iterator[Seen]:
    middle = median(record["grad_norm"] for record in run.records[len(run.records) // 2 :])
    if middle < NO_GRADIENT and run.settled_loss > HIGHER_BY:
        remedy = "check that every layer is reached; lower train.lr"
        yield Seen(f"median norm {middle:.1e}, loss {run.settled_loss:.2f}", remedy)


def learned_nothing(run: RunSnapshot) -> Iterator[Seen]:
    if run.targets is not None and knows_no_source(run):
        train, guessed = run.settings.train, run.targets.entropy
        yield Seen(
            f"loss {run.settled_loss:.2f}; token frequencies alone would give {guessed:.2f}",
            f"check the model, then train.lr {train.lr:g} (too high or too low) and "
            f"train.max_steps {train.max_steps:,}",
        )


def last_quarters(run: RunSnapshot) -> str:
    """The loss of the last two quarters, and the last evaluation."""
    third, end = run.loss_of(0.5, 0.75), run.settled_loss
    evidence = f"loss {third:.3f} in the third quarter, {end:.3f} in the last"
    if run.targets is not None and run.evaluations:
        last = run.evaluations[-1]
        chance = run.targets.by_chance(last["valid_token_accuracy"])
        evidence += f"; {measured(last)} (errors at random places would give {chance:.3f})"
    return evidence


def too_short(run: RunSnapshot) -> Iterator[Seen]:
    if run.settled_loss < FALLING * run.loss_of(0.5, 0.75):
        yield Seen(last_quarters(run), f"raise train.max_steps {run.settings.train.max_steps:,}")


def plateau(run: RunSnapshot) -> Iterator[Seen]:
    third = run.loss_of(0.5, 0.75)
    if FALLING * third <= run.settled_loss <= RISING * third + HIGHER_BY:
        remedy = (
            "check whether the model can tell places apart, then try another train.lr, more steps "
            "and a larger model"
        )
        yield Seen(last_quarters(run), remedy)


def still_warming_up(run: RunSnapshot) -> Iterator[Seen]:
    """A run that has ended before its learning rate was at its peak."""
    train = run.settings.train
    if run.step < (train.warmup_steps or 0):
        evidence = f"{run.step:,} steps of {train.warmup_steps:,} of warm-up, rate "
        evidence += f"{run.records[-1]['lr']:.2g} of {train.lr:.2g}"
        remedy = "fewer train.warmup_steps, or more time (train.max_steps, train.max_seconds)"
        yield Seen(evidence, remedy)


def unstable(run: RunSnapshot) -> Iterator[Seen]:
    """A loss that has climbed far above its first value, or rises again at the end."""
    remedy = f"lower train.lr {run.settings.train.lr:g}, or use a longer warm-up"
    first = run.records[0]["loss"]
    highest = max(run.records, key=lambda record: record["loss"])
    third, end = run.loss_of(0.5, 0.75), run.settled_loss
    if highest["loss"] > CLIMBED * first:
        evidence = f"{first:.2f} at first, {highest['loss']:.2f} at step {highest['step']:,}"
        yield Seen(evidence, remedy, "The loss rose above its initial value.")
    elif len(run.records) >= 8 and end > RISING * third + HIGHER_BY:
        evidence = f"{third:.3f} in the third quarter, {end:.3f} in the last"
        yield Seen(evidence, remedy, "The loss rose at the end.")


def measured(record: Record) -> str:
    """An evaluation as text."""
    return (
        f"step {record['step']:,}: free-running exact match {record['valid_exact_match']:.3f}, "
        f"token accuracy {record['valid_token_accuracy']:.3f}"
    )


def valid_is_longer(run: RunSnapshot) -> bool:
    """Whether validation data has lengths outside the training lengths."""
    valid, (low, high) = run.settings.data.valid_length, run.facts.train_length
    return valid is not None and (valid[0] < low or valid[1] > high)


# The table -------------------------------------------------------------------------------------

NOTHING = "The model learned nothing from the source."
LOOK_AT_LAYERS = ("order", "labels", "sublayers")

RULES = (
    Rule("damaged_checkpoint", "wrong", "A checkpoint cannot be used.", every, damaged_checkpoint),
    Rule(
        "no_checkpoint",
        "wrong",
        "Training has ended, but its checkpoints are gone.",
        every,
        no_checkpoint,
    ),
    Rule("untrained", "odd", "There is no record of a training.", every, untrained),
    Rule("diverged", "wrong", "Training diverged.", every, diverged),
    Rule("cut_short", "odd", "Training was interrupted, or is still running.", trained, cut_short),
    Rule(
        "reads_the_future",
        "wrong",
        "Correct when fed the target, wrong when decoding alone: the decoder sees its labels.",
        evaluated,
        reads_the_future,
        ("future", "steps"),
        ("no_causal", "triangle_off_by_one", "mask_flipped"),
    ),
    Rule(
        "one_error_each",
        "wrong",
        "Nearly every output has exactly one wrong token, as if the end were never learned.",
        evaluated,
        one_error_each,
        ("labels",),
        ("pad_is_eos",),
    ),
    Rule(
        "trained_on_something_else",
        "wrong",
        "New pairs are far worse than training pairs, although every training pair was new.",
        evaluated,
        trained_on_something_else,
        ("pads", "labels"),
        ("pad_visible", "wrong_start", "labels_not_shifted", "pad_is_eos"),
    ),
    Rule(
        "overfitted",
        "odd",
        "The model memorized its training pairs and is far worse on new ones.",
        evaluated,
        overfitted,
    ),
    Rule("best_long_before", "odd", "An earlier checkpoint was better.", trained, best_long_before),
    Rule(
        "vanished",
        "wrong",
        "The gradient has vanished, although much is left to learn.",
        tried,
        vanished,
        ("sublayers",),
        ("no_residual", "no_norm"),
    ),
    Rule("learned_nothing", "wrong", NOTHING, finished_and_tried, learned_nothing, LOOK_AT_LAYERS),
    Rule("learned_nothing", "odd", NOTHING, unfinished_and_tried, learned_nothing, LOOK_AT_LAYERS),
    Rule(
        "too_short",
        "odd",
        "The loss was still falling when training ended.",
        settled,
        too_short,
    ),
    Rule(
        "plateau",
        "odd",
        "The loss stopped falling far above zero.",
        settled,
        plateau,
        ("order", "sublayers"),
        ("no_position", "no_residual"),
    ),
    Rule(
        "unseen_lengths",
        "odd",
        "Validation data has lengths that were never trained.",
        tried,
        unseen_lengths,
    ),
    Rule(
        "still_warming_up",
        "odd",
        "The learning rate never reached its peak.",
        unsolved,
        still_warming_up,
    ),
    Rule("unstable", "odd", "The loss rose.", unsolved, unstable),
)
"""In the order in which findings of one severity are told."""
