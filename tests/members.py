"""Runs with made-up numbers, as sweeps compare them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conftest import config_of

from toytrans.sweeps.groups import Member
from toytrans.sweeps.measure import TEST, Eval, Numbers, Result, SpanNumbers, of_lengths


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
    parts = {"all": value, "in_range": value} | ({} if beyond is None else {"beyond": beyond})
    result = Result(
        measure=of_lengths((1, 6), None),
        train_length=(1, 6),
        parts={part: Numbers(**_numbers(share, difference)) for part, share in parts.items()},
        spans=[
            SpanNumbers(shortest=n, longest=n, part="in_range", **_numbers(share, difference))
            for n, share in (curve or {1: value}).items()
        ],
    )
    return Member(run, config, Eval(steps=9, seconds=1.0, parameters=5, measures={TEST: result}))


def _numbers(value: float, difference: float) -> dict[str, Any]:
    shares = ("exact_match", "forced_exact_match", "token_accuracy", "free_token_accuracy")
    more = {"examples": 10, "decoded": 10, "loss": 1.0, "exact_match_difference": difference}
    return dict.fromkeys(shares, value) | more
