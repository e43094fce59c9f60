"""What a page can show of a run directory, whatever state it is in."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toytrans.config.schema import Config
from toytrans.data.pairs import DataFacts
from toytrans.errors import UserError
from toytrans.training.run import NOT_MEASURED, Record, Run, RunFolder


@dataclass(frozen=True)
class RunView:
    """A run directory as it is.

    state: finished, unfinished, being written or damaged, with the step.
    problem: why something of it cannot be read; empty if nothing is wrong.
    config, facts: None if the run is damaged.
    run: the model of the best checkpoint; None if there is none to read.
    """

    path: Path
    state: str
    problem: str = ""
    config: Config | None = None
    facts: DataFacts | None = None
    run: Run | None = None
    records: list[Record] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    @property
    def training_time(self) -> str:
        """Of the last record."""
        seconds = self.records[-1].get("elapsed_s") if self.records else None
        return NOT_MEASURED if seconds is None else f"{seconds:.1f} s"


def read_view(path: Path) -> RunView:
    """Read a run. Only a path that is no folder raises UserError; damage is part of the view."""
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory; `toytrans runs` lists those there are")
    try:
        folder = RunFolder.open(path)
    except UserError as error:
        return RunView(path, "damaged", str(error))
    run, problem, records = None, "", []
    try:
        records = folder.records
        if folder.damaged_lines:
            problem = f"{path}/metrics.jsonl: lines that hold no record: {folder.damaged_lines}"
        run = folder.load("best", "cpu")
    except UserError as error:
        problem = "\n".join(filter(None, (problem, str(error))))
    state, (config, facts) = str(folder.state), (folder.config, folder.facts)
    return RunView(path, state, problem, config, facts, run, records, folder.environment)
