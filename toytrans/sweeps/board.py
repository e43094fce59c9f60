"""A board: a sweep of other people's tasks, beside the numbers that they published.

One YAML file a board, in boards/. Its `config` holds for all its tasks; a task lays what is its
own over it, and `control` lays over that what makes it the plain model to compare with. Both are
trained with seeds 0 to 4. The model of the last step is measured: test pairs choose nothing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from toytrans.config.load import beside, check_config
from toytrans.config.names import Metric
from toytrans.config.schema import Config, Paths, Section
from toytrans.config.yaml import Tree, read_yaml
from toytrans.errors import UserError
from toytrans.sweeps.groups import Member, table_of
from toytrans.sweeps.measure import Measure
from toytrans.sweeps.sweep import Sweep, check_folder, write_tables
from toytrans.sweeps.trials import Trial, by_names, path_of
from toytrans.training.run import RUNS
from toytrans.user_code import SHIPPED

FOLDER = Path(__file__).parent / "boards"
SEEDS = (0, 1, 2, 3, 4)
KINDS = ("ours", "control")
QUICK_PAIRS = 50
"""Pairs of a measure under --quick, at most."""


class BoardMeasure(Measure):
    """A measure with the number that is compared, and those that were published. control: pairs of
    the control; null = as many; 0 = it is not measured."""

    metric: Metric = "exact_match"
    control: Annotated[int, Field(ge=0)] | None = None
    aim: float | None = None
    published: dict[str, float] = {}


class BoardTask(Section):
    """One task: what its config says beyond the board's, and what is measured."""

    config: dict[str, Any] = {}
    measures: dict[str, BoardMeasure]


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

    def measures(self) -> Iterator[tuple[str, str, BoardMeasure]]:
        """Task, name and measure, in the order of the file."""
        for task, entry in self.tasks.items():
            yield from ((task, name, measure) for name, measure in entry.measures.items())


class Line(NamedTuple):
    """One line of a measure: the values of all seeds, or one published number.

    steps: of each training. pairs: that were measured of each. None where it is not known.
    """

    who: str
    values: tuple[float, ...]
    steps: float | None = None
    pairs: int | None = None


def board_names() -> list[str]:
    """The boards that there are."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_board(name: str) -> Board:
    """The board of a name. Raises UserError naming those that there are."""
    if name not in board_names():
        raise UserError(f"no board {name!r}; there are {', '.join(board_names())}")
    return Board.model_validate(read_yaml(FOLDER / f"{name}.yaml").values)


def plan_board(name: str, *, quick: bool = False, files: Path | None = None) -> Sweep:
    """The sweep of a board, seed by seed. files: the folder of the files that tasks name.

    quick: one seed, few steps, few pairs. Raises UserError where files are missing.
    """
    board, hashed, trials = load_board(name), dict[Paths, str](), []
    folder = RUNS / "boards" / (f"{name}-quick" if quick else name)
    check_folder(folder)
    for seed, task, kind in product(SEEDS[:1] if quick else SEEDS, board.tasks, KINDS):
        measures = {
            key: _measure(measure, kind, quick)
            for key, measure in board.tasks[task].measures.items()
            if kind == "ours" or measure.control != 0
        }
        if measures:
            config = config_of(board, task, kind, seed, quick=quick, files=files)
            path = path_of(folder, f"{task}-{kind}-s{seed}", config, hashed)
            title, about = f"{task} {kind} seed {seed}", {"task": task, "config": kind}
            trials.append(Trial(path, config, measures, title, about, "last"))
    return Sweep(folder, trials, {"board": name, "quick": quick})


def of_tasks(sweep: Sweep, name: str, tasks: Sequence[str]) -> Sweep:
    """The trials of some tasks. Raises UserError for one that a board lacks."""
    there = dict.fromkeys(trial.about["task"] for trial in sweep.trials)
    if missing := [task for task in tasks if task not in there]:
        raise UserError(f"{name} has no task {missing[0]!r}; it has {', '.join(map(repr, there))}")
    return replace(sweep, trials=[t for t in sweep.trials if t.about["task"] in tasks])


def config_of(
    board: Board, task: str, kind: str, seed: int, *, quick: bool, files: Path | None
) -> Config:
    """The config of one training, ours or of the control. Raises UserError where files are
    missing."""
    values = _laid_over(board.config, board.tasks[task].config)
    values = _laid_over(values, board.control if kind == "control" else {})
    values = _laid_over(values, board.quick if quick else {})
    if named := values["data"].get("files"):
        parts = {part: name for part, name in named.items() if part != "format"}
        remedy = f"they come from {board.files_from}; name their folder with --data DIR"
        if files is None:
            raise UserError(f"this board needs {', '.join(sorted(set(parts.values())))}: {remedy}")
        for part, name in parts.items():
            if not (files / name).is_file():
                raise UserError(f"{files / name}: no such file; {remedy}")
            named[part] = str(files / name)
    tree = Tree(f"board task {task}", values | {"seed": seed})
    return check_config(beside(tree, SHIPPED / "examples"))


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The values of both, section by section; those above hold."""
    merged = {key: _laid_over(v, {}) if isinstance(v, dict) else v for key, v in below.items()}
    for key, value in above.items():
        is_section = isinstance(value, dict)
        merged[key] = _laid_over(merged.get(key) or {}, value) if is_section else value
    return merged


def _measure(measure: BoardMeasure, kind: str, quick: bool) -> Measure:
    """A measure with fewer pairs if it is quick. A control decodes nothing unless its metric needs
    that: its outputs often do not end."""
    decode, pairs = measure.decode, measure.pairs or (1000 if measure.lengths else None)
    if kind == "control":
        needs = decode is None or measure.metric == "free_token_accuracy"
        decode, pairs = decode if needs else 0, measure.control or pairs
    if quick:
        pairs = min(pairs or QUICK_PAIRS, QUICK_PAIRS)
    return Measure(lengths=measure.lengths, pairs=pairs, decode=decode, side=measure.side)


def lines_of(board: Board, sweep: Sweep, task: str, measure: str) -> list[Line]:
    """The numbers of finished runs, ours first, and then the published ones. Raises UserError."""
    asked, lines = board.tasks[task].measures[measure], list[Line]()
    for kind in KINDS:
        mine = [trial for trial in sweep.trials if trial.about == {"task": task, "config": kind}]
        members = [Member(t.path, t.config, t.eval(), measure=measure) for t in mine]
        if members := [member for member in members if member.result]:
            values = (member.value(asked.metric) for member in members)
            known = tuple(math.nan if value is None else value for value in values)
            who = f"toytrans, {members[0].config.model.positions}"  # what sets the two apart
            numbers = members[0].numbers
            steps, pairs = numbers[None, "steps"][0], numbers["all", "loss"][1]
            lines.append(Line(who, known, steps, pairs))
    return lines + [Line(who, (value,)) for who, value in asked.published.items()]


def write_board(board: Board, sweep: Sweep) -> list[Path]:
    """Write the tables of all runs of a board that have numbers. Raises UserError."""
    configs = {
        f"{trial.about['task']}, {trial.about['config']}": by_names(trial.config.without_seeds())
        for trial in sweep.trials
    }
    entries = [
        ({**trial.about, "measure": name}, Member(trial.path, trial.config, found, measure=name))
        for trial in sweep.trials
        if (found := trial.eval())
        for name in trial.measures
    ]
    about = board.model_dump(include={"title", "source", "knows", "notes"}) | {"configs": configs}
    return write_tables(sweep.folder, table_of(entries), about)
