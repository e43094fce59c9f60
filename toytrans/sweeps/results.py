"""A comparison as plain values, as tables in CSV, and as files of results/sweeps/."""

import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from toytrans import __version__
from toytrans.errors import UserError
from toytrans.evaluation import part_of, wilson_interval
from toytrans.files import csv_text, disk_errors, json_text, read_json, to_bytes, write_file
from toytrans.sweeps.groups import PARTS, Group, Summary, pairs, parts_of, shown
from toytrans.sweeps.picture import draw
from toytrans.sweeps.saved import FILE
from toytrans.sweeps.sweep import ANOTHER, Sweep
from toytrans.training.environment import settings_of_numbers, usable_cores

RESULTS = Path("results")
"""Where results files go."""

ENDS = (".json", ".csv", "-lengths.csv", ".png")
"""Of the names of the results files, the first one first written."""

MOST_BYTES = 2**28
"""Of a results file that is looked at before it is replaced."""


def this_machine() -> dict[str, Any]:
    """What may differ between the numbers of two machines."""
    return {
        "toytrans": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": usable_cores(),
    } | settings_of_numbers()


def to_dict(groups: Sequence[Group]) -> dict[str, Any]:
    """The groups with every run, and the pairs of groups."""
    parts = parts_of(groups)
    return {
        "groups": [
            {
                "differs": dict(group.differs),
                "config": group.members[0].config.without_seeds().model_dump(mode="json"),
                "summaries": {part: _summary(group.summary(part)) for part in parts},
                "curve": [
                    {"lengths": [span.low, span.high], "in_range": span.part == "in_range"}
                    | summary._asdict()
                    for span, summary in group.curve().items()
                ],
                "runs": [
                    {
                        "run": str(member.path),
                        "seed": member.config.seed,
                        "data_seed": member.config.data_seed,
                        "trouble": member.trouble or None,
                        "values": dict(member.values),
                        "difference": member.difference,
                        "by_length": dict(member.curve),
                        "pairs": member.count,
                        "pairs_by_length": dict(member.pairs) if member.curve else {},
                    }
                    for member in group.members
                ],
            }
            for group in groups
        ],
        "pairs": [
            {"first": groups.index(a), "second": groups.index(b), "part": part}
            | {"ahead": compared.ahead, "behind": compared.behind, "level": compared.level}
            | compared.difference._asdict()
            for part in parts
            for a, b, compared in pairs(groups, part)
        ],
    }


def _summary(summary: Summary | None) -> dict[str, Any] | None:
    return None if summary is None else summary._asdict()


def runs_csv(groups: Sequence[Group]) -> str:
    """One row a run."""
    names = [name.replace(" ", "_") for name in PARTS.values()]
    rows = (
        [
            *about,
            *(member.values.get(part, "") for part in PARTS),
            member.count or "",
            member.trouble,
        ]
        for about, member in _rows(groups)
    )
    matches = [f"exact_match_{name}" for name in names]
    return csv_text([[*_heading(groups), *matches, "pairs", "trouble"], *rows])


def lengths_csv(groups: Sequence[Group]) -> str:
    """One row a run and length, with the 95% Wilson interval of its pairs."""
    rows = (
        [
            *about,
            length,
            part_of(length, member.trained),
            value,
            *wilson_interval(round(value * count), count),
            count,
        ]
        for about, member in _rows(groups)
        if not member.trouble
        for length, value in member.curve.items()
        for count in [member.pairs.get(length, 0)]
    )
    names = ("length", "part", "exact_match", "low", "high", "pairs")
    return csv_text([[*_heading(groups), *names], *rows])


def _heading(groups: Sequence[Group]) -> list[str]:
    return ["run", *(groups[0].differs if groups else ()), "seed", "data_seed"]


def _rows(groups: Sequence[Group]) -> Iterator[tuple[list[Any], Any]]:
    for group in groups:
        for member in group.members:
            values = map(shown, group.differs.values())
            config = member.config
            yield [str(member.path), *values, config.seed, config.data_seed], member


def check_results(name: str, folder: Path) -> None:
    """Raise UserError where results files of a name are not those of the sweep in a folder, or
    cannot be written.

    A sweep whose folder was moved keeps its results.
    """
    path, *others = (RESULTS / "sweeps" / f"{name}{end}" for end in ENDS)
    otherwise = "not a sweep's results; move it away"
    before = read_json(path, _Results, otherwise, most_bytes=MOST_BYTES)
    if before is None:  # it is written before the others
        for other in filter(os.path.lexists, others):
            raise UserError(f"{other}: {otherwise}, or give {ANOTHER}")
    elif before.folder is not None and not _is_same(folder, Path(before.folder)):
        raise UserError(
            f"{path}: holds the results of {before.folder}, another sweep; give {ANOTHER}, or move "
            "its results away"
        )
    with _writing(name) as place, tempfile.TemporaryFile(dir=place):
        pass


def _is_same(folder: Path, other: Path) -> bool:
    """Whether the sweep in a folder is that of another, or was moved from there."""
    moved = (folder / FILE).exists() and not (other / FILE).exists()
    return moved or os.path.realpath(folder) == os.path.realpath(other)


class _Results(BaseModel):
    """A results file, as far as it is read again."""

    sweep: str
    folder: str | None = None


def write_results(sweep: Sweep, groups: Sequence[Group]) -> list[Path]:
    """Write the results of a sweep: JSON, CSV and, with matplotlib, a picture. Outdated
    files of an earlier call are removed. Raises UserError where the disk refuses, or where
    another sweep has written under this name meanwhile."""
    check_results(sweep.name, sweep.folder)
    about = {
        "sweep": sweep.name,
        "folder": str(sweep.folder),
        "date": time.strftime("%Y-%m-%d"),
        "machine": this_machine(),
        "grid": sweep.grid,
        "seeds": list(sweep.seeds),
        **sweep.measure.to_dict(),
    }
    json = f"{json_text(about | to_dict(groups), 1)}\n"
    lengths = lengths_csv(groups) if sweep.measure.lengths else None
    tables = [to_bytes(text) if text else None for text in (json, runs_csv(groups), lengths)]
    picture = None
    with contextlib.suppress(UserError):  # no matplotlib
        picture = draw(groups, sweep.name)
    written = [
        _write(f"{sweep.name}{end}", raw) for end, raw in zip(ENDS, [*tables, picture], strict=True)
    ]
    return [path for path in written if path is not None]


def _write(name: str, raw: bytes | None) -> Path | None:
    """Write a results file, or remove it. Its path, where it was written."""
    with _writing(name) as folder:
        if raw is None:
            (folder / name).unlink(missing_ok=True)
            return None
        write_file(folder / name, raw)
    return folder / name


@contextlib.contextmanager
def _writing(name: str) -> Iterator[Path]:
    """The folder of results files, made where it is missing. Raises UserError, which names the
    file, where the disk refuses."""
    folder = RESULTS / "sweeps"
    with disk_errors(folder, name):
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
