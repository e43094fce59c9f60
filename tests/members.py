"""Runs with made-up numbers, as sweeps compare them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conftest import config_of

from toytrans.sweeps.comparison import Member
from toytrans.sweeps.measure import OF_RUN, Result, of_lengths

OF_PAIRS = (
    *("exact_match_free_running", "exact_match_teacher_forced"),
    *("token_accuracy_free_running", "token_accuracy_teacher_forced", "loss"),
)


def member(
    value: float,
    seed: int = 0,
    *,
    beyond: float | None = None,
    difference: float = 0.0,
    problem: str = "",
    curve: Mapping[int, float] | None = None,
    **sections: Any,
) -> Member:
    """A run whose exact match is a value, trained on lengths 1 to 6. curve: of each length."""
    config = config_of(seed=seed, **sections)
    run = Path(f"run-{seed}")
    if problem:
        return Member(run, config, problem=problem)
    places = [("all", None, value), ("in_range", None, value)]
    places += [("beyond", None, beyond)] if beyond is not None else []
    places += [("in_range", length, share) for length, share in (curve or {1: value}).items()]
    rows = [("", None, None, metric, 9, None) for metric in OF_RUN]
    rows += [(part, n, n, m, share, 10) for part, n, share in places for m in OF_PAIRS]
    return Member(
        run,
        config,
        Result(
            measure=of_lengths((1, 6), None),
            of_files=False,
            train_length=(1, 6),
            difference=difference,
            rows=rows,
        ),
    )
