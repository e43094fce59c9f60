"""The table of a sweep: one row = run x length (or part of the lengths) x metric.

    FOLDER/table.csv    the rows
    FOLDER/table.json   the same rows below their columns, with configs and environment

`pandas.read_csv` takes the one as it is, `DataFrame(table["rows"], columns=table["columns"])` the
other.
"""

import platform
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from toytrans import __version__
from toytrans.evaluation import Span, wilson_interval
from toytrans.files import csv_text, disk_errors, json_text, to_bytes, write_file
from toytrans.sweeps.groups import Member
from toytrans.sweeps.measure import shown
from toytrans.training.environment import settings_of_numbers, usable_cores

COLUMNS = ("part", "shortest", "longest", "metric", "value", "low", "high", "pairs")
"""After those that name a run. low, high: the 95% interval of Wilson. Rows of a part have no
shortest and longest; rows of a whole run have no part."""

Table = list[list[Any]]
"""The names of the columns, and the rows."""


def table_of(entries: Iterable[tuple[Mapping[str, Any], Member]]) -> Table:
    """The table of runs that have numbers. entries: what sets a run apart, always by the same keys;
    the run. The numbers of the whole run come with its first measure."""
    keys, rows = list[str](), list[list[Any]]()
    for about, member in entries:
        keys = list(about)
        head = [str(member.path), *map(cell, about.values())]
        head += [member.config.seed, member.config.data_seed]
        is_first = member.eval is None or member.measure == next(iter(member.eval.measures), None)
        for (place, metric), (value, pairs) in member.numbers.items():
            if place or is_first:
                lengths = place if isinstance(place, Span) else (None, None, place or "")
                low = high = None
                if pairs and value is not None and metric.startswith("exact_match"):
                    ends = wilson_interval(round(value * pairs), pairs)
                    low, high = min(ends[0], value), max(ends[1], value)  # but for rounding
                rows.append([*head, lengths[2], *lengths[:2], metric, value, low, high, pairs])
    return [["run", *keys, "seed", "data_seed", *COLUMNS], *rows]


def cell(value: Any) -> Any:
    """Numbers as they are; other values as YAML has them. Null is "none": pandas groups by it."""
    return value if isinstance(value, int | float) else shown(value)


def write_tables(folder: Path, table: Table, about: Mapping[str, Any]) -> list[Path]:
    """Write both files. about: what the JSON says besides. Raises UserError."""
    columns, *rows = table
    head = json_text({"made": made(), **about, "columns": columns}, 1).removesuffix("\n}")
    lines = ",\n".join(f"  {json_text(row)}" for row in rows)
    files = {"table.json": f'{head},\n "rows": [\n{lines}\n ]\n}}\n', "table.csv": csv_text(table)}
    for name, text in files.items():
        with disk_errors(folder, name):
            write_file(folder / name, to_bytes(text))
    return [folder / name for name in files]


def made() -> dict[str, Any]:
    """When and on what numbers were made: what may differ between two machines."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "toytrans": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": usable_cores(),
    } | settings_of_numbers()
