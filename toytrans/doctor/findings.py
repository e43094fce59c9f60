"""Diagnose a run from its record alone.

A run that solved its task is not asked why it learned so little: clipping and spikes did no harm.
"""

from toytrans.doctor.record import RunSnapshot
from toytrans.doctor.rules import (
    OF_ANY_RUN,
    OF_FAILURE,
    OF_TRAINING,
    planted_fault,
    rate,
)
from toytrans.doctor.symptoms import SEVERITIES, Symptom

SOLVED = 0.9
"""The exact match on validation data from which a run counts as solved."""


def examine(run: RunSnapshot) -> list[Symptom]:
    """All symptoms of a run, the worst first; what its config says of a fault comes last."""
    rules = [*OF_ANY_RUN]
    if run.records and not run.diverged:
        rules += OF_TRAINING
        if not solved(run):
            rules += (rate,) if _early(run) else OF_FAILURE
    symptoms = [symptom for rule in rules for symptom in rule(run)]
    symptoms.sort(key=lambda symptom: SEVERITIES.index(symptom.severity))
    return [*symptoms, *planted_fault(run)]


def solved(run: RunSnapshot) -> bool:
    return run.best is not None and run.best["valid_exact_match"] >= SOLVED


def _early(run: RunSnapshot) -> bool:
    """Whether training stopped before it could have learned anything."""
    train = run.config.train
    interrupted = run.ending == "cut short" and run.step < train.max_steps / 2
    return run.step < (train.warmup_steps or 0) or interrupted
