"""What the doctor can find: severity, sentence and remedy of every symptom."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from toytrans.config.names import FaultName
from toytrans.config.schema import Config

Severity = Literal["wrong", "odd", "note"]
SEVERITIES: tuple[Severity, ...] = ("wrong", "odd", "note")


@dataclass(frozen=True)
class Symptom:
    """One finding about a run.

    severity: wrong: something is broken; odd: it should be different; note: good to know.
    proofs: letters of `toytrans check` that give more information.
    cards: faults with the same symptom.
    """

    name: str
    severity: Severity
    what: str
    evidence: str
    remedy: str
    proofs: tuple[str, ...] = ()
    cards: tuple[FaultName, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


WARM_UP = "lower train.lr {train.lr:g}, or use a longer warm-up"
TEXTS: dict[Severity, dict[str, tuple[str, str]]] = {
    "wrong": {
        "fault": (
            "The run has a planted fault.",
            "train without --break, and with fault: null in the config",
        ),
        "damaged_checkpoint": ("A checkpoint cannot be used.", "train again"),
        "no_checkpoint": (
            "Training has ended, but its checkpoints are gone.",
            "--resume trains again from the start",
        ),
        "diverged": ("Training diverged.", WARM_UP),
        "reads_the_future": (
            "Correct when fed the target, wrong when decoding alone: the decoder sees its labels.",
            "check the decoder's mask and the shift of the targets",
        ),
        "one_error_each": (
            "Nearly every output has exactly one wrong token, as if the end were never learned.",
            "toytrans eval shows whether the ends are wrong; check what the loss ignores",
        ),
        "trained_on_something_else": (
            "New pairs are far worse than training pairs, although every training pair was new.",
            "training and validation data differ: check pads, start and labels",
        ),
        "learned_nothing": (
            "The model learned nothing from the source.",
            "check the model, then train.lr {train.lr:g} (too high or too low) and train.max_steps "
            "{train.max_steps:,}",
        ),
        "vanished": (
            "The gradient has vanished, although much is left to learn.",
            "check that every layer is reached; lower train.lr",
        ),
    },
    "odd": {
        "records_cut": (
            "Lines of metrics.jsonl cannot be read.",
            "none is needed: a crash may cut a line short, and it is skipped",
        ),
        "no_records": (
            "The run has checkpoints, but no records of its training.",
            "toytrans eval measures it; only another training gives records",
        ),
        "cut_short": ("Training was interrupted, or is still running.", "continue with --resume"),
        "overfitted": (
            "The model memorized its training pairs and is far worse on new ones.",
            "more pairs (data.train_examples), model.dropout, or train.patience to stop earlier",
        ),
        "worse_on_test_pairs": (
            "Test pairs are far worse than validation pairs of the same lengths.",
            "look for pads that are read, for test pairs of another kind, and for validation pairs "
            "among the training pairs",
        ),
        "best_long_before": (
            "An earlier checkpoint was better.",
            "the best checkpoint is kept and used by default; lower train.lr",
        ),
        "loss_rises": ("The loss rose at the end.", WARM_UP),
        "emulated_bf16": (
            "The processor has no bf16 instructions and emulated them.",
            "train.precision: auto chooses fp32 there",
        ),
        "too_short": (
            "The loss was still falling when training ended.",
            "raise train.max_steps {train.max_steps:,}",
        ),
        "plateau": (
            "The loss stopped falling far above zero.",
            "check whether the model can tell places apart, then try another train.lr, more steps "
            "and a larger model",
        ),
        "spikes": ("The gradient has spikes.", "lower train.lr, or use a longer warm-up"),
        "still_warming_up": (
            "The learning rate never reached its peak.",
            "fewer train.warmup_steps, or more time (train.max_steps, train.max_seconds)",
        ),
        "stopped_before_decay": (
            "Time ran out long before the learning rate had decayed.",
            "set train.max_steps to what train.max_seconds allows",
        ),
        "unstable": ("The loss rose above its initial value.", WARM_UP),
    },
    "note": {
        "no_environment": (
            "The machine of the training is not known.",
            "--resume writes environment.json again",
        ),
        "untrained": ("Nothing was trained.", "toytrans train; --resume continues"),
        "never_evaluated": (
            "The run was never measured on validation data.",
            "toytrans eval, once there is a checkpoint",
        ),
        "untrained_places": (
            "Learned positions do not work beyond the training lengths.",
            "toytrans eval reports lengths in range and beyond; other positions reach further",
        ),
        "padding": (
            "Much of every batch is padding.",
            "raise data.batch_tokens {data.batch_tokens}: a longer pool holds more similar pairs",
        ),
        "slower": (
            "Steps took longer and longer.",
            "look for other work on the machine, or for too little memory or cooling",
        ),
        "clipped": (
            "Nearly every gradient was clipped.",
            "all steps then have the same length: lower train.lr, or raise train.clip_norm",
        ),
        "unseen_lengths": (
            "Validation data has lengths that were never trained.",
            "toytrans eval reports lengths in range and beyond",
        ),
        "few_tokens": (
            "A step sees few target tokens, so its gradient is noisy.",
            "raise data.batch_tokens {data.batch_tokens} or train.accumulate",
        ),
        "many_epochs": ("The same pairs were seen many times.", "more pairs (data.train_examples)"),
    },
}
"""What is wrong, and the remedy, by severity and name. Values of the config are filled in."""

SEE: dict[str, tuple[str, tuple[FaultName, ...]]] = {
    "reads_the_future": ("bef", ("no_causal", "triangle_off_by_one", "mask_flipped")),
    "one_error_each": ("m", ("pad_is_eos",)),
    "trained_on_something_else": (
        "aclm",
        ("pad_visible", "wrong_start", "labels_not_shifted", "pad_is_eos"),
    ),
    "worse_on_test_pairs": ("acd", ("pad_visible",)),
    "learned_nothing": ("jlo", ()),
    "vanished": ("op", ("no_residual", "no_norm")),
    "plateau": ("jop", ("no_position", "no_residual")),
}
"""Proofs, and faults with the same symptom."""


def symptom(config: Config, name: str, evidence: str, **changes: Any) -> Symptom:
    """A symptom of the catalogue with its evidence, and other changes."""
    (severity,) = [severity for severity, texts in TEXTS.items() if name in texts]
    what, remedy = TEXTS[severity][name]
    remedy = remedy.format(train=config.train, data=config.data)
    proofs, cards = SEE.get(name, ("", ()))
    symptom = Symptom(name, severity, what, evidence, remedy, tuple(proofs), cards)
    return replace(symptom, **changes)
