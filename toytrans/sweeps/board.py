"""A board: a sweep of other people's tasks, beside the numbers that they published.

One YAML file a board, in boards/. Its `config` holds for all its tasks; a task lays what is its
own over it, and `control` lays over that what makes it the plain model to compare with. Both are
trained with seeds 0 to 4. The model of the last step is measured: test pairs choose nothing.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from toytrans.config.load import check_and_trust, make_code_paths_absolute
from toytrans.config.schema import Config, Section
from toytrans.config.yaml import Tree, read_yaml
from toytrans.data.formats import sha256_of
from toytrans.errors import UserError
from toytrans.measurement import Measure
from toytrans.references import SHIPPED
from toytrans.resolve import resolve
from toytrans.sweeps.comparison import COLUMNS, Comparison, rows_of
from toytrans.sweeps.groups import Group, Member, without_seeds
from toytrans.sweeps.sweep import Sweep, check_folder, write_tables
from toytrans.sweeps.trial import Trial, by_names, path_of
from toytrans.table import Table
from toytrans.training.folder import RUNS, is_run
from toytrans.training.run import Run

FOLDER = Path(__file__).parent / "boards"
SEEDS = (0, 1, 2, 3, 4)
KINDS = ("ours", "control")

Keys = dict[str, dict[str, Any]]
"""The values of a config, by section."""


class BoardMeasure(Measure):
    """A measure with the number that is compared, and those that were published. control: pairs of
    the control; null = as many; 0 = it is not measured."""

    metric: str = ""
    decode: Annotated[int, Field(ge=0)] | None = 1
    checkpoint: str = "last"
    control: Annotated[int, Field(ge=0)] | None = None
    aim: float | None = None
    published: dict[str, float] = {}

    def of(self, kind: str) -> Measure | None:
        """What is measured of a model. A control decodes nothing unless its metric needs that: its
        outputs often do not end."""
        decode, pairs = self.decode, self.examples or (1000 if self.lengths else None)
        if kind == "control":
            if self.control == 0:
                return None
            needs = decode is None or self.metric == "free_token_accuracy"
            decode, pairs = decode if needs else 0, self.control or pairs
        return Measure(
            lengths=self.lengths,
            examples=pairs,
            decode=decode,
            length_of=self.length_of,
            checkpoint=self.checkpoint,
        )


class Board(Section):
    """A board. knows: what our position scheme knows of the tasks. notes: where we differ from the
    definition. files_from: who gives out the files that tasks name. tasks: what the config of each
    says beyond the board's. measures: by task and name."""

    title: str
    source: str
    knows: str
    notes: tuple[str, ...] = Field((), strict=False)
    files_from: str | None = None
    config: Keys
    control: Keys
    tasks: dict[str, Keys]
    measures: dict[str, dict[str, BoardMeasure]]


def board_names() -> list[str]:
    """The boards that there are."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_board(name: str) -> Board:
    """The board of a name. Raises UserError naming those that there are."""
    if name not in board_names():
        raise UserError(f"no board {name!r}; there are {', '.join(board_names())}")
    return Board.model_validate(read_yaml(FOLDER / f"{name}.yaml").values)


def plan_board(name: str, files: Path | None = None, tasks: Sequence[str] = ()) -> Sweep:
    """The sweep of a board, seed by seed. files: the folder of the files that tasks name. tasks:
    some of them; none = all. Raises UserError where files or tasks are missing."""
    board, hash_of, trials = load_board(name), cache(sha256_of), []
    if missing := [task for task in tasks if task not in board.tasks]:
        there = ", ".join(map(repr, board.tasks))
        raise UserError(f"{name} has no task {missing[0]!r}; it has {there}")
    folder = RUNS / "boards" / name
    check_folder(folder)
    for seed, task, kind in product(SEEDS, tasks or board.tasks, KINDS):
        wanted = dict.fromkeys(each.of(kind) for each in board.measures[task].values())
        if some := list(filter(None, wanted)):
            config = config_of(board, task, kind, seed, files)
            settings = resolve(config)
            path = path_of(folder, f"{task}-{kind}-s{seed}", settings, hash_of)
            about = {"task": task, "config": kind}
            title = f"{task} {kind} seed {seed}"
            trials.append(Trial(path, config, settings, some, title, about))
    return Sweep(folder, trials, {"board": name})


def config_of(board: Board, task: str, kind: str, seed: int, files: Path | None) -> Config:
    """The config of one training, ours or of the control. Raises UserError where files are
    missing."""
    values: dict[str, Any] = {"seed": seed}
    for keys in (board.config, board.tasks[task], board.control if kind == "control" else {}):
        values |= {section: values.get(section, {}) | of for section, of in keys.items()}
    if named := values["data"].get("files"):
        parts = {part: name for part, name in named.items() if part != "format"}
        remedy = f"they come from {board.files_from}; name their folder with --data DIR"
        if files is None:
            raise UserError(f"this board needs {', '.join(sorted(set(parts.values())))}: {remedy}")
        for name in parts.values():
            if not (files / name).is_file():
                raise UserError(f"{files / name}: no such file; {remedy}")
        paths = {part: str(files / name) for part, name in parts.items()}
        values["data"] = values["data"] | {"files": named | paths}
    tree = Tree(f"board task {task}", values)
    make_code_paths_absolute(tree, SHIPPED / "examples")
    return check_and_trust(tree)


def measured(board: Board, sweep: Sweep) -> Iterator[tuple[str, str, Comparison]]:
    """Each task and measure with the numbers of the runs that have some: our model and its control
    beside each other. Raises UserError."""
    opened = [(trial, Run.open(trial.path)) for trial in sweep.trials if is_run(trial.path)]
    for task, measures in board.measures.items():
        for name, measure in measures.items():
            groups = []
            for kind in KINDS:
                members = [
                    Member(trial.path, trial.settings, found)
                    for trial, run in opened
                    if trial.about == {"task": task, "config": kind}
                    and (wanted := measure.of(kind))
                    and (found := run.kept_result(wanted))
                ]
                if members:
                    groups.append(Group({"config": kind}, members, kind))
            shown = measure.of("ours") or measure
            yield task, name, Comparison(shown, measure.metric or shown.main_metric, groups)


def write_board(board: Board, sweep: Sweep) -> list[Path]:
    """Write the tables of all runs of a board that have numbers. Raises UserError."""
    configs = {
        f"{trial.about['task']}, {trial.about['config']}": by_names(without_seeds(trial.settings))
        for trial in sweep.trials
    }
    rows = [
        [str(member.path), task, *group.differs.values(), name, *member.seeds, *row]
        for task, name, compared in measured(board, sweep)
        for group in compared.groups
        for member, result in group.counted
        for row in rows_of(result)
    ]
    table = Table("", ["run", "task", "config", "measure", "seed", "data_seed", *COLUMNS], rows)
    about = board.model_dump(include={"title", "source", "knows", "notes"}) | {"configs": configs}
    return write_tables(sweep.folder, table, about)
