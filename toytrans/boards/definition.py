"""What a board is: other people's tasks, the numbers that they published, and our configs for them.

One YAML file a board, beside this module. A board's `config` holds for all its tasks; a task lays
what is its own over it, and `control` lays over that what makes it the plain model to compare with.
Code that they name is looked for among the shipped examples.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from toytrans.config.load import beside, check_config
from toytrans.config.schema import Config, Positive, Range, Section
from toytrans.config.yaml import Tree, read_yaml
from toytrans.errors import UserError
from toytrans.user_code import SHIPPED

FOLDER = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)

Metric = Literal["exact_match", "token_accuracy", "free_token_accuracy", "perplexity"]
Variant = Literal["ours", "control"]


class Measure(Section):
    """What is measured on test pairs of some lengths. Training chooses nothing by them.

    exact_match is teacher-forced, which gives the same number as free running (the pairs that are
    decoded too prove it), or free-running where all pairs are decoded; token_accuracy is
    teacher-forced, free_token_accuracy free-running, over the decoded pairs.
    """

    lengths: Range | None = Field(None, description="source symbols; null = the test file's")
    pairs: Positive | None = Field(None, description="a seed; null = 1000, or all of the test file")
    decode: Annotated[int, Field(ge=0)] | None = Field(
        1, description="of each length, so many pairs are decoded too; null = all"
    )
    metric: Metric = "exact_match"
    control: Annotated[int, Field(ge=0)] | None = Field(
        None, description="pairs of the control; null = as many; 0 = it is not measured"
    )
    aim: float | None = None
    published: dict[str, float] = {}


class BoardTask(Section):
    """One task: what its config says beyond the board's, and what is measured."""

    config: dict[str, Any] = {}
    measures: dict[str, Measure]


class Board(Section):
    """A board. knows: what our position scheme knows of the tasks. notes: where we differ from the
    definition. files_from: who gives out the files that tasks name."""

    title: str
    source: str
    knows: str
    notes: tuple[str, ...] = Field((), strict=False)
    files_from: str | None = None
    config: dict[str, Any]
    control: dict[str, Any]
    quick: dict[str, Any]
    tasks: dict[str, BoardTask]


def board_names() -> list[str]:
    """The boards that there are."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_board(name: str) -> Board:
    """The board of a name. Raises UserError naming those that there are."""
    if name not in board_names():
        raise UserError(f"no board {name!r}; there are {', '.join(board_names())}")
    return Board.model_validate(read_yaml(FOLDER / f"{name}.yaml").values)


def only(board: Board, name: str, tasks: Sequence[str]) -> Board:
    """A board with some of its tasks, in its own order. Raises UserError for one it lacks."""
    if missing := [task for task in tasks if task not in board.tasks]:
        names = ", ".join(map(repr, board.tasks))
        raise UserError(f"{name} has no task {missing[0]!r}; it has {names}")
    kept = {task: entry for task, entry in board.tasks.items() if task in tasks}
    return board.model_copy(update={"tasks": kept})


def config_of(
    board: Board, task: str, variant: Variant, seed: int, *, quick: bool, files: Path | None
) -> Config:
    """The config of one training. files: the folder of the files that tasks name.

    Raises UserError where a task's files are missing.
    """
    layers = [board.config, board.tasks[task].config]
    layers += [board.control] * (variant == "control") + [board.quick] * quick
    values: dict[str, Any] = {}
    for layer in layers:
        values = _laid_over(values, layer)
    if "files" in values["data"]:
        values["data"]["files"] = _with_folder(board, values["data"]["files"], files)
    tree = Tree(f"board task {task}", values | {"seed": seed})
    return check_config(beside(tree, SHIPPED / "examples"))


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = deepcopy(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _laid_over(merged[key], value) if both else deepcopy(value)
    return merged


def _with_folder(board: Board, files: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """The files with the folder before their names."""
    names = {part: name for part, name in files.items() if part != "format"}
    remedy = f"they come from {board.files_from}; name their folder with --data DIR"
    if folder is None:
        raise UserError(f"this board needs {', '.join(sorted(set(names.values())))}: {remedy}")
    for name in names.values():
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: no such file; {remedy}")
    return files | {part: str(folder / name) for part, name in names.items()}
