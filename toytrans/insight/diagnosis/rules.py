"""What looks wrong in any run, and in any training that gave numbers: files, faults, and what its
measurements rule out."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from toytrans.choices import FaultName
from toytrans.insight.diagnosis.fault_cards import CARDS
from toytrans.insight.diagnosis.snapshot import SETTLED, Case
from toytrans.training.run import Record

Severity = Literal["wrong", "odd", "note"]

ROUNDING = 0.02
"""Share of validation pairs whose greedy output may differ from teacher forcing by rounding."""

GAP, OTHER, BY_HEART = 0.1, 3.0, 2.0
"""A validation loss so many nats above the training loss is no noise if it is also so many times
it: pairs unlike those of training (50 times and more under faults), or learned by heart."""

RISING = 1.2
"""The last quarter's loss beside the third's: above it, and the gap, training went backwards."""

LOST, NOISE = 0.05, 2.1
"""Exact match given away between two evaluations; three standard errors of their difference are at
most 2.1 over the root of the pairs."""

PADDED = 1.3
SLOWER, ENOUGH_RECORDS = 3.0, 40


@dataclass(frozen=True)
class Symptom:
    """wrong: something is broken; odd: it should not be so; note: worth knowing. proofs: letters
    of `toytrans check` that tell more; cards: faults that look so."""

    name: str
    severity: Severity
    what: str
    evidence: str
    remedy: str
    proofs: tuple[str, ...] = ()
    cards: tuple[FaultName, ...] = ()

    def document(self) -> dict[str, Any]:
        return asdict(self)


# Of any run ----------------------------------------------------------------------------------


def broken_on_purpose(case: Case) -> Iterator[Symptom]:
    """A fault in the config."""
    if fault := case.config.fault:
        yield Symptom(
            "fault",
            "wrong",
            f"It is broken on purpose: {fault}.",
            CARDS[fault].what,
            "train without --break, and with fault: null in the config",
            CARDS[fault].proofs,
            (fault,),
        )


def damaged_files(case: Case) -> Iterator[Symptom]:
    """Checkpoints, records and environment that cannot be read."""
    for saved in case.saved:
        if saved.damage:
            words, _, remedy = saved.damage.partition("; ")
            what = f"The checkpoint of step {saved.step} cannot be used."
            yield Symptom("damaged_checkpoint", "wrong", what, words, remedy or "train again")
    if case.unread:
        yield Symptom(
            "records_cut",
            "odd",
            "The end of metrics.jsonl cannot be read.",
            f"{case.unread} lines after the record of step {case.step}",
            "--resume drops them; a training that is just writing looks so for a moment",
        )
    if case.environment is None:
        yield Symptom(
            "no_environment",
            "note",
            "On what it was trained is not known.",
            "environment.json is missing or damaged",
            "--resume writes it again",
        )


def diverged(case: Case) -> Iterator[Symptom]:
    """A loss or gradient that is no finite number."""
    if not case.diverged:
        return
    broken = next(r for r in case.records if r["loss"] is None or r["grad_norm"] is None)
    before = [r for r in case.records if r["step"] < broken["step"]]
    last = f"; loss {before[-1]['loss']:.3g} at step {before[-1]['step']}" if before else ""
    unclipped = case.config.train.clip_norm is None
    yield Symptom(
        "diverged",
        "wrong",
        "Training diverged.",
        f"loss or gradient not finite by step {broken['step']}, rate {broken['lr']:.2g}{last}",
        f"lower train.lr {case.config.train.lr:g}"
        + (", and set train.clip_norm: 1.0" if unclipped else ", or warm up for longer"),
    )


def cut_short(case: Case) -> Iterator[Symptom]:
    """A training without its end, or without any evaluation."""
    train, step = case.config.train, case.step
    if not case.records:
        what, evidence = "Nothing was trained.", "metrics.jsonl holds no record"
        yield Symptom("untrained", "note", what, evidence, "toytrans train; --resume goes on")
        return
    if case.ending == "cut short":
        yield Symptom(
            "cut_short",
            "odd",
            "Training was cut short, or is still running.",
            f"step {step:,} of {train.max_steps:,}, rate {case.records[-1]['lr']:.2g} of "
            f"{train.lr:.2g} at its peak",
            "go on with --resume",
        )
    if not case.evaluations and not case.diverged:
        yield Symptom(
            "never_evaluated",
            "note",
            "It was never measured on validation data.",
            f"{len(case.records)} records, none with valid_exact_match; train.eval_every is "
            f"{train.eval_every}",
            "toytrans eval, once there is a checkpoint",
        )


# Of a training that gave numbers -------------------------------------------------------------


def reads_the_future(case: Case) -> Iterator[Symptom]:
    """Every output that goes wrong has, in a sound model, a token that goes wrong under teacher
    forcing too: the first. So there are no more wrong outputs than wrong tokens."""
    if case.texts is None or not case.evaluations:
        return
    last = case.evaluations[-1]
    outputs = 1 - last["valid_exact_match"]
    tokens = (1 - last["valid_token_accuracy"]) * case.texts.mean_tokens
    if outputs > tokens + ROUNDING:
        yield Symptom(
            "reads_the_future",
            "wrong",
            "Told the target it gets right what it gets wrong alone: it reads its own answer.",
            f"{measured(last)}: {outputs:.2f} wrong outputs a pair, but {tokens:.2f} wrong "
            "tokens, and the first error of an output is one in either mode",
            "look at the decoder's mask and at the shift of targets",
            ("b", "e", "f"),
            ("no_causal", "triangle_off_by_one", "mask_flipped"),
        )


def one_error_each(case: Case) -> Iterator[Symptom]:
    """As many wrong tokens as wrong outputs, where chance would leave more outputs whole."""
    if case.texts is None or not case.evaluations:
        return
    last = case.evaluations[-1]
    exact, accuracy = last["valid_exact_match"], last["valid_token_accuracy"]
    outputs, tokens = 1 - exact, (1 - accuracy) * case.texts.mean_tokens
    chance = case.texts.by_chance(accuracy)
    if exact < chance / 2 and chance - exact > 0.2 and abs(tokens / outputs - 1) <= 0.2:
        yield Symptom(
            "one_error_each",
            "wrong",
            "Nearly every output has exactly one wrong token, as where the end is never learned.",
            f"{measured(last)}: {tokens:.2f} wrong tokens a pair; errors that fall anywhere would "
            f"leave {chance:.2f} of the outputs whole",
            "toytrans eval tells whether the ends are wrong; look at what the loss ignores",
            ("m",),
            ("pad_is_eos",),
        )


def worse_on_new_pairs(case: Case) -> Iterator[Symptom]:
    """Valid beside train, the steps just before included: a training that loses its way for a
    moment is no alarm. Endless pairs cannot be learned by heart: there it has another cause."""
    if not case.evaluations or case.texts is None or valid_is_longer(case):
        return
    last, endless = case.evaluations[-1], case.texts.train_size is None
    usual = case.loss_of(1 - SETTLED, 1, until=last["step"])
    train = max(usual, last["loss"] - case.floor)
    valid = last["valid_loss"] - case.valid_floor
    if valid < train + GAP or valid < (OTHER if endless else BY_HEART) * train:
        return
    evidence = f"training loss {train:.4f}, {measured(last)}, validation loss {valid:.4f}"
    if endless:
        yield Symptom(
            "trained_on_something_else",
            "wrong",
            "It does far worse on new pairs, though every training pair was new too.",
            evidence,
            "what training sees and what is measured differ: look at pads, start and labels",
            ("a", "c", "l", "m"),
            ("pad_visible", "wrong_start", "labels_not_shifted", "pad_is_eos"),
        )
        return
    lowest = min(case.evaluations, key=lambda record: record["valid_loss"])
    yield Symptom(
        "overfitted",
        "odd",
        "It knows its training pairs by heart and does far worse on others.",
        f"{evidence}, lowest {lowest['valid_loss']:.4f} at step {lowest['step']:,}; "
        f"{case.texts.train_size:,} pairs, each seen {case.epochs:.0f} times",
        "more pairs (data.train_examples), model.dropout, or train.patience to stop sooner",
    )


def got_worse(case: Case) -> Iterator[Symptom]:
    """A best evaluation that the last one falls far below."""
    best = case.best
    if best is not None and case.ending != "cut short":
        last = case.evaluations[-1]
        pairs = len(case.texts.tokens) if case.texts else 1
        noise = NOISE / pairs**0.5
        if best["valid_exact_match"] > last["valid_exact_match"] + max(LOST, noise):
            yield Symptom(
                "best_long_before",
                "odd",
                "It had been better before.",
                f"{measured(best)}, {measured(last)}",
                "the best checkpoint is kept and taken by default; lower train.lr",
            )
    if len(case.records) >= 8:
        third, end = case.loss_of(0.5, 0.75), case.settled_loss
        if end > RISING * third + GAP:
            yield Symptom(
                "loss_rises",
                "odd",
                "The loss rose at the end.",
                f"{third:.3f} in the third quarter, {end:.3f} in the last",
                f"lower train.lr {case.config.train.lr:g}, or warm up for longer",
            )


def untrained_places(case: Case) -> Iterator[Symptom]:
    """Rows of a table of places that no training source reached, where test data will."""
    config, longest = case.config, case.facts.train_length[1]
    wanted = max(
        (span[1] for span in (config.data.valid_length, config.data.test_length) if span), default=0
    )
    if config.model.positions == "learned" and wanted > longest:
        yield Symptom(
            "untrained_places",
            "note",
            "Learned positions know nothing of lengths beyond training.",
            f"trained to length {longest}, valid or test to {wanted}: the rows between are as "
            "they were drawn",
            "toytrans eval measures lengths within and beyond apart; other positions reach further",
        )


def wasteful(case: Case) -> Iterator[Symptom]:
    """Pads, emulated bf16, and steps that take longer and longer."""
    padding = median(record["padding"] for record in case.records)
    if padding > PADDED:
        yield Symptom(
            "padding",
            "note",
            "Much of every batch is padding.",
            f"{padding:.2f} padded tokens a real one",
            f"raise data.batch_tokens {case.config.data.batch_tokens}: longer pools hold more "
            "pairs of like length",
        )
    machine = case.environment or {}
    emulated = machine.get("device") == "cpu" and machine.get("bf16_products") is False
    if emulated and machine.get("precision") == "bf16":
        yield Symptom(
            "emulated_bf16",
            "odd",
            "bf16 was computed by a processor that has no instructions for it.",
            f"precision bf16 on {machine.get('processor')}",
            "train.precision: auto takes fp32 there",
        )
    pace = _pace(case.records)
    if len(pace) >= ENOUGH_RECORDS:
        half = len(pace) // 2
        before, after = median(pace[:half]), median(pace[half:])
        if after > SLOWER * before:
            yield Symptom(
                "slower",
                "note",
                "Steps took longer and longer.",
                f"{before * 1000:.0f} ms a step in the first half, {after * 1000:.0f} ms after",
                "other work on the machine, or too little memory or cooling",
            )


def _pace(records: Sequence[Record]) -> list[float]:
    """Seconds a step between records."""
    return [
        (after["elapsed_s"] - before["elapsed_s"]) / (after["step"] - before["step"])
        for before, after in zip(records, records[1:], strict=False)
    ]


def measured(record: Record) -> str:
    return (
        f"step {record['step']:,}: exact match {record['valid_exact_match']:.3f}, token accuracy "
        f"{record['valid_token_accuracy']:.3f}"
    )


def valid_is_longer(case: Case) -> bool:
    """Whether a task's validation data holds lengths outside of training's."""
    valid, (low, high) = case.config.data.valid_length, case.facts.train_length
    return valid is not None and (valid[0] < low or valid[1] > high)
