"""Sweeps in Python: every combination of values with every seed, compared."""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from toytrans.api.run import check_positive, checked_lengths, is_count
from toytrans.api.training import Settings, logger, name_of, tree_of
from toytrans.config.load import config_of, lay_over
from toytrans.config.schema import Config
from toytrans.errors import UserError
from toytrans.sweeps.comparison import SWEEPS, Comparison
from toytrans.sweeps.measure import of_lengths
from toytrans.sweeps.pool import check_ray
from toytrans.sweeps.sweep import plan, write


def sweep(
    config: Settings,
    out: str | Path | None = None,
    *,
    seeds: Iterable[int] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    lengths: tuple[int, int] | None = None,
    examples: int | None = None,
    jobs: int | None = None,
    on: Literal["local", "ray"] = "local",
    gpu_share: float | None = None,
) -> Comparison:
    """Train every combination of values with every seed, and compare them. Raises UserError.

    out: the folder of the runs; None = runs/sweeps/ and the name of the file or task. seeds: None =
    that of the config. grid: the values of each key, say {"model.positions": ["rotary", "alibi"]}.
    lengths, examples: what is measured, as in `Run.evaluate`. jobs: runs at once; None = one a
    core. on: this machine or a Ray cluster. gpu_share: of a run, with Ray.

    The same call goes on where it was stopped. Ctrl-C lets every training save. Each run has a
    process of its own. A run that fails stops no other; see `Comparison.problems`.
    """
    if on not in ("local", "ray"):
        raise UserError(f"on {on!r}: local or ray")
    check_positive(examples=examples, jobs=jobs)
    if on == "ray":
        check_ray()
    planned = plan(
        SWEEPS / name_of(config, _config(config)) if out is None else Path(out),
        lambda texts: _config(config, texts),
        [f"{key}={','.join(map(_text, values))}" for key, values in (grid or {}).items()],
        _checked_seeds(seeds),
        of_lengths(checked_lengths(lengths), examples),
        here=on == "local",
    )
    for sentence in planned.beginning():
        logger.info(sentence)
    internal = []
    with contextlib.closing(planned.train(jobs, on, gpu_share)) as rounds:
        for ended in rounds:
            for trial, failure in ended:
                logger.info("%s: %s", trial.path, failure.reason if failure else "done")
                internal += [failure] if failure and failure.traceback else []
    compared = write(planned)
    for failure in internal:
        raise RuntimeError(f"{failure.reason}\n{failure.traceback}")
    return compared


def _checked_seeds(seeds: Iterable[int] | None) -> list[int] | None:
    """Seeds as a list. Raises UserError."""
    if seeds is None:
        return None
    known = list(seeds)
    if not known or not all(is_count(seed) and seed < 2**31 for seed in known):
        raise UserError(f"seeds {seeds!r}: give whole numbers from 0, say range(10)")
    return list(dict.fromkeys(known))


def _config(config: Settings, texts: Sequence[str] = ()) -> Config:
    tree = tree_of(config)
    for text in texts:
        lay_over(tree, text, "grid")
    return config_of(tree)


def _text(value: Any) -> str:
    """A value as YAML on one line; text is YAML already."""
    return value if isinstance(value, str) else json.dumps(value)
