"""The table of a sweep: one row = run x length (or part of the lengths) x metric.

    FOLDER/table.csv    the rows
    FOLDER/table.json   the same rows below their columns, with configs and environment

`pandas.read_csv` takes the one as it is, `DataFrame(table["rows"], columns=table["columns"])` the
other.
"""

import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from toytrans import __version__
from toytrans.evaluation import wilson_interval
from toytrans.files import csv_text, disk_errors, json_text, to_bytes, write_file
from toytrans.sweeps.measure import OF_RUN, Eval, Member, Numbers, shown
from toytrans.training.environment import settings_of_numbers, usable_cores

COLUMNS = ("part", "shortest", "longest", "metric", "value", "low", "high", "pairs")
"""After those that name a run. low, high: the 95% interval of Wilson. Rows of a part have no
shortest and longest; rows of a whole run have no part."""


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[Any]]

    def csv(self) -> str:
        return csv_text([self.columns, *self.rows])

    def json(self, about: Mapping[str, Any]) -> str:
        """One row a line."""
        head = json_text({**about, "columns": self.columns}, 1).removesuffix("\n}")
        rows = ",\n".join(f"  {json_text(row)}" for row in self.rows)
        return f'{head},\n "rows": [\n{rows}\n ]\n}}\n'


def table_of(entries: Iterable[tuple[Mapping[str, Any], Member, str]]) -> Table:
    """The rows of runs that have numbers.

    entries: what sets a run apart, always by the same keys; the run; the name of a measure.
    """
    keys, rows = list[str](), list[list[Any]]()
    for about, member, measure in entries:
        keys = list(about)
        if member.eval and measure in member.eval.measures:
            head = [str(member.path), *map(cell, about.values())]
            head += [member.config.seed, member.config.data_seed]
            rows += [[*head, *row] for row in _rows(member.eval, measure)]
    return Table(["run", *keys, "seed", "data_seed", *COLUMNS], rows)


def cell(value: Any) -> Any:
    """Numbers as they are; other values as YAML has them. Null is "none": pandas groups by it."""
    return value if isinstance(value, int | float) else shown(value)


def _rows(run: Eval, measure: str) -> Iterator[list[Any]]:
    """COLUMNS of one measure; those of the whole run come with its first one."""
    for name in OF_RUN if measure == next(iter(run.measures)) else ():
        yield ["", None, None, name, getattr(run, name), None, None, None]
    result = run.measures[measure]
    for part, numbers in result.parts.items():
        yield from ([part, None, None, *row] for row in _of(numbers))
    for span in result.spans:
        yield from ([span.part, span.shortest, span.longest, *row] for row in _of(span))


def _of(numbers: Numbers) -> Iterator[list[Any]]:
    """Metric, value, interval and number of pairs."""
    pairs, decoded = numbers.examples, numbers.decoded
    if decoded:
        yield ["exact_match_free_running", *_share(numbers.exact_match, decoded)]
        yield ["token_accuracy_free_running", numbers.free_token_accuracy, None, None, decoded]
    yield ["exact_match_teacher_forced", *_share(numbers.forced_exact_match, pairs)]
    yield ["token_accuracy_teacher_forced", numbers.token_accuracy, None, None, pairs]
    yield ["loss", numbers.loss, None, None, pairs]


def _share(value: float, pairs: int) -> list[Any]:
    low, high = wilson_interval(round(value * pairs), pairs)
    return [value, min(low, value), max(high, value), pairs]  # but for rounding they are so


def write_tables(folder: Path, table: Table, about: Mapping[str, Any]) -> list[Path]:
    """Write both files. about: what the JSON says besides. Raises UserError."""
    files = {"table.json": table.json({"made": made(), **about}), "table.csv": table.csv()}
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
