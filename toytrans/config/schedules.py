"""Schedules of the learning rate.

A run warms up in a straight line to `train.lr`. From then on its schedule says which share of
`train.lr` a step takes. To add a schedule, write one function here and give it an entry in
SCHEDULES: `train.schedule`, `toytrans explain`, the JSON Schema of configs and the resume of a run
know it from there.
"""

import math
from collections.abc import Callable

from toytrans.config.schema import TrainConfig
from toytrans.errors import BadKey, did_you_mean

Schedule = Callable[[int, int, int], float]
"""(step, warmup_steps, max_steps) -> the share of the peak, for a step behind the warm-up."""

FLOOR = 0.02
"""Linear and cosine decay end at this share of the peak."""


def constant(step: int, warmup_steps: int, max_steps: int) -> float:
    """The peak, to the end."""
    return 1.0


def inverse_sqrt(step: int, warmup_steps: int, max_steps: int) -> float:
    """The decay of Vaswani et al. 2017: sqrt(warmup_steps / step)."""
    return math.sqrt(max(warmup_steps, 1) / step)


def linear(step: int, warmup_steps: int, max_steps: int) -> float:
    """A straight line down to 2% of the peak."""
    return _above_the_floor(1 - _done(step, warmup_steps, max_steps))


def cosine(step: int, warmup_steps: int, max_steps: int) -> float:
    """Half a period of a cosine, down to 2% of the peak (Loshchilov and Hutter 2017)."""
    return _above_the_floor((1 + math.cos(math.pi * _done(step, warmup_steps, max_steps))) / 2)


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
}


def check_schedule_name(name: str) -> None:
    """Raise BadKey unless there is a schedule of this name."""
    if name not in SCHEDULES:
        raise BadKey("train.schedule", f"found {name!r}; {did_you_mean(name, SCHEDULES)}")


def learning_rate(step: int, train: TrainConfig) -> float:
    """The learning rate of step 1, 2, ..."""
    warmup_steps = train.warmup_steps or 0
    if step <= warmup_steps:
        return train.lr * step / warmup_steps
    return train.lr * SCHEDULES[train.schedule](step, warmup_steps, train.max_steps)


def _done(step: int, warmup_steps: int, max_steps: int) -> float:
    """The share of the steps behind the warm-up that are done."""
    return min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))


def _above_the_floor(left: float) -> float:
    return FLOOR + (1 - FLOOR) * left
