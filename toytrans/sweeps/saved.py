"""sweep.json: what a sweep was asked for, and where its trials are."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from toytrans.config.load import check_config
from toytrans.config.schema import Config, Range, Seed
from toytrans.config.yaml import Tree
from toytrans.errors import UserError
from toytrans.files import read_json
from toytrans.sweeps.grid import Grid
from toytrans.sweeps.measure import ExactMatch

FILE, MOST_BYTES = "sweep.json", 2**26


class SavedTrial(BaseModel):
    """run: name of the directory. config: number of the choice."""

    model_config = ConfigDict(strict=True)

    run: Annotated[str, Field(pattern=r"^\w[\w.\-]{0,200}$")]
    seed: Seed
    config: Annotated[int, Field(ge=0)]


class SavedSweep(BaseModel):
    """configs: one for every choice."""

    model_config = ConfigDict(strict=True)

    configs: Annotated[list[dict[str, Any]], Field(min_length=1)]
    grid: Grid
    seeds: Annotated[list[Seed], Field(min_length=1)]
    lengths: Range | None
    examples: int | None
    trials: Annotated[list[SavedTrial], Field(min_length=1)]

    @property
    def measure(self) -> ExactMatch:
        return ExactMatch(self.lengths, self.examples)

    def configs_in(self, folder: Path) -> list[Config]:
        """The config of every choice. Raises UserError."""
        return [check_config(Tree(str(folder / FILE), values)) for values in self.configs]

    def runs(self, folder: Path) -> dict[Path, Config]:
        """Run directory and config of every trial. Raises UserError."""
        configs = self.configs_in(folder)
        if any(trial.config >= len(configs) for trial in self.trials):
            raise UserError(f"{folder / FILE}: not what a sweep writes; move it away")
        return {
            folder / t.run: configs[t.config].model_copy(update={"seed": t.seed})
            for t in self.trials
        }


def read_sweep(folder: Path) -> SavedSweep | None:
    """What the sweep of a folder was asked for; None where there is none. Raises UserError."""
    if not folder.is_dir():
        return None
    otherwise = "not what a sweep writes; move it away"
    return read_json(folder / FILE, SavedSweep, otherwise, most_bytes=MOST_BYTES)
