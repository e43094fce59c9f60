"""Sweeps in Python: every combination of values with every seed, compared."""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toytrans.api.run import Run, check_positive, checked_lengths, is_count, load
from toytrans.api.training import Settings, logger, name_of, tree_of
from toytrans.config.load import config_of, lay_over
from toytrans.config.schema import Config
from toytrans.errors import UserError
from toytrans.html import html_table
from toytrans.sweeps import results
from toytrans.sweeps.failures import Failure
from toytrans.sweeps.groups import PARTS, Group, Summary, group, parts_of
from toytrans.sweeps.measure import ExactMatch
from toytrans.sweeps.on_ray import check_ray, run_on_ray
from toytrans.sweeps.outcomes import SWEEPS
from toytrans.sweeps.processes import run_trials, workers_for
from toytrans.sweeps.sweep import Sweep, plan


@dataclass(frozen=True, repr=False)
class Comparison:
    """The runs of a sweep, grouped by what differs.

    name: of the sweep. groups: one for each choice of values, with every run. files: the results.
    decoding: of the exact match, free-running or teacher-forced.
    """

    name: str
    decoding: str
    groups: Sequence[Group]
    files: Sequence[Path]

    @property
    def runs(self) -> list[Run]:
        """The runs that have a result, group by group. Raises UserError."""
        return [load(member.path) for each in self.groups for member in each.counted]

    @property
    def trouble(self) -> dict[Path, str]:
        """Why runs have no result. They are never averaged in."""
        members = (member for each in self.groups for member in each.members)
        return {member.path: member.trouble for member in members if member.trouble}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: the groups with every run, and the pairs of groups."""
        return results.to_dict(self.groups)

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.decoding} exact match, mean of the seeds, 95% interval"]
        for part in parts_of(self.groups):
            for each in self.groups:
                cells = " ".join(filter(None, _cells(each.summary(part))))
                lines.append(f"  {PARTS[part]}, {each.values or 'all runs'}: {cells}")
        lines += [f"  not counted: {path}: {reason}" for path, reason in self.trouble.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        tables = (
            html_table(
                f"{self.name}: {self.decoding} exact match, {PARTS[part]}",
                ("mean", "95%", "runs"),
                [(each.values or "all runs", _cells(each.summary(part))) for each in self.groups],
            )
            for part in parts_of(self.groups)
        )
        trouble = [(str(path), [reason]) for path, reason in self.trouble.items()]
        return "".join([*tables, html_table("not counted", [""], trouble) if trouble else ""])


def _cells(summary: Summary | None) -> list[str]:
    """Mean, interval and number of runs."""
    if summary is None:
        return ["-", "", "0 runs"]
    known = summary.low is not None and summary.high is not None
    interval = f"{summary.low:.3f}..{summary.high:.3f}" if known else ""
    return [f"{summary.mean:.3f}", interval, f"{summary.runs} runs"]


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
    process of its own. A run that fails stops no other; see `Comparison.trouble`.
    """
    if on not in ("local", "ray"):
        raise UserError(f"on {on!r}: local or ray")
    check_positive(examples=examples, jobs=jobs)
    if on == "ray":
        check_ray()
    name = name_of(config, _config(config)) if out is None else Path(out).name
    planned = plan(
        name,
        SWEEPS / name if out is None else Path(out),
        lambda texts: _config(config, texts),
        [f"{key}={','.join(map(_text, values))}" for key, values in (grid or {}).items()],
        _checked_seeds(seeds),
        ExactMatch(checked_lengths(lengths), examples),
        here=on == "local",
    )
    results.check_results(name, planned.folder)
    return _run(planned, jobs, on, gpu_share)


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


def _run(
    sweep: Sweep, jobs: int | None, on: Literal["local", "ray"], gpu_share: float | None
) -> Comparison:
    """Train what is missing, and write the results."""
    failures: dict[Path, Failure] = {}
    with sweep.held() as notes:
        for note in notes:
            logger.info(note)
        waiting = sweep.waiting()
        rounds = (
            run_on_ray(waiting, jobs, gpu_share)
            if on == "ray"
            else run_trials(waiting, workers_for(waiting, jobs))
        )
        with contextlib.closing(rounds):
            for _, ended in rounds:
                for trial, failure in ended:
                    failures |= {} if failure is None else {trial.path: failure}
                    logger.info("%s: %s", trial.path, failure.reason if failure else "done")
        groups = group(sweep.members(failures))
        files = results.write_results(sweep, groups)
    for failure in failures.values():
        if failure.traceback:
            raise failure.error()
    return Comparison(sweep.name, sweep.measure.decoding, groups, files)
