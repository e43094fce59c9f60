"""A sweep file: a config, what varies in it, with which seeds, and what is measured of the runs.

    base: reverse.yaml
    grid: {model.positions: [rotary, anchored], train.lr: [1e-3, 3e-3]}
    seeds: [0, 1, 2]
    measures: {test: {lengths: [1, 50]}}

A board is such a file with numbers that others have published. Some come with the package.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from toytrans.config.load import flatten, read_tree, set_key
from toytrans.config.schema import OWN_CODE, Section, Seed
from toytrans.config.yaml import Tree, read_yaml
from toytrans.errors import UserError, did_you_mean
from toytrans.measure import Measure
from toytrans.references import SHIPPED, is_reference

BOARDS = Path(__file__).parent.parent / "boards"
BOARDS = BOARDS if BOARDS.is_dir() else BOARDS.parent.parent / "boards"
"""The sweep files that come with the package: in its wheel, or in a checkout beside it."""

FILES = ("data.files.train", "data.files.valid", "data.files.test")
"""Keys that name files."""

Values = Mapping[str, Any]
"""Values of a config by their keys, say train.lr."""

Dimension = Sequence[Any] | Mapping[str, Values]
"""What varies: the values of a key, or whole sets of keys by their names."""


class SweepMeasure(Measure):
    """A measure, the number that is compared, and what others have published.

    only: the runs that are measured, by the names of a dimension. metric: null means exact match.
    aim: what we want to reach. published: numbers by who published them.
    """

    only: dict[str, list[str]] = {}
    metric: str | None = None
    aim: float | None = None
    published: dict[str, float] = {}

    @property
    def measure(self) -> Measure:
        """What is measured, as a result knows it."""
        return Measure(**{name: getattr(self, name) for name in Measure.model_fields})

    def is_of(self, labels: Mapping[str, str]) -> bool:
        """Whether runs with these names of dimensions are measured."""
        return all(labels.get(dimension) in names for dimension, names in self.only.items())

    @model_validator(mode="after")
    def _names_a_metric(self) -> Self:
        if self.metric is not None:
            from toytrans.metrics import check_metric  # torch comes with it

            check_metric(self.metric)
        return self


class SweepFile(Section):
    """A sweep, as its file describes it.

    title, source, knows, notes: what a person should know of it: whose numbers are published, what
    our positions know of the task, where we differ. files_from: who gives out the files that it
    names. base: the values of a config, or the path of one beside this file, or the name of a
    shipped one.
    """

    title: str = ""
    source: str = ""
    knows: str = ""
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    files_from: str = ""
    base: str | dict[str, Any]
    grid: dict[str, list[Any] | dict[str, dict[str, Any]]] = {}
    seeds: list[Seed] | None = None
    measures: dict[str, SweepMeasure] = {}

    @property
    def about(self) -> list[str]:
        """What a person should know of it, one sentence each."""
        title = f"{self.title} ({self.source})" if self.source else self.title
        knows = f"Our positions know: {self.knows}" if self.knows else ""
        return [sentence for sentence in (title, knows, *self.notes) if sentence]


def board_names() -> list[str]:
    """The sweep files that come with the package."""
    return sorted(path.stem for path in BOARDS.glob("*.yaml"))


def find_sweep_file(path: Path) -> Path | None:
    """The sweep file of a path, or the shipped one that it names, with its folder or without; None
    where the path is a config. Raises UserError where the file cannot be read."""
    shipped = BOARDS / f"{path.stem}.yaml"
    names = (path.stem, f"{BOARDS.name}/{shipped.name}")
    if not path.exists() and str(path) in names and shipped.is_file():
        return shipped
    if path.is_file() and "base" in read_yaml(path).values:
        return path
    return None


def read_sweep_file(path: Path) -> SweepFile:
    """What a sweep file says. Raises UserError with file, line and key."""
    tree = read_yaml(path)
    try:
        return SweepFile.model_validate(tree.values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            section, _, name = key.rpartition(".")
            known = (SweepMeasure if section else SweepFile).model_fields
            message = f"unknown key; {did_you_mean(name, known)}"
        elif problem["type"] == "missing":
            message = "missing; add it"
        else:
            message = problem["msg"].removeprefix("Value error, ")
        raise UserError(f"{tree.origins.of(key)}: {key}: {message}") from None


@dataclass(frozen=True)
class Plan:
    """What a sweep is asked for, by a file or by options.

    base: the values of a config. grid: what varies, by key, or by the name of a dimension whose
    values are sets of keys. seeds: None = that of the config. measures: by name; none = all test
    pairs. origin: how the grid was given, for errors. checks_device: whether the runs take the
    devices of this machine. remedy: what is said of a file that is missing. about: what a person
    should know of the sweep. trust_code: whether code may run that the config of a run names.
    """

    base: Tree
    grid: Mapping[str, Dimension] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    measures: Mapping[str, SweepMeasure] = field(default_factory=dict)
    origin: str = "grid"
    checks_device: bool = True
    remedy: str = ""
    about: Sequence[str] = ()
    trust_code: bool = False


def plan_of(path: Path) -> Plan:
    """What a path asks for: a sweep file, or a config alone. Raises UserError."""
    file = find_sweep_file(path)
    return plan_of_file(file) if file else Plan(read_tree(path))


def plan_of_file(path: Path) -> Plan:
    """What a sweep file asks for. Raises UserError with file, line and key.

    Paths in it start from its folder. Nobody's data lie in the package, so those of a file that
    came with it start from the working directory.
    """
    file = read_sweep_file(path)
    folder = Path() if _is_shipped(path) else path.parent
    if isinstance(file.base, str):
        beside = folder / file.base
        base = read_tree(beside if beside.is_file() else Path(file.base))
    else:
        base = Tree(str(path), {})
        for key, value in _with_paths(file.base, folder).items():
            set_key(base, key, value, str(path))
    grid: dict[str, Dimension] = {}
    for name, values in file.grid.items():
        if isinstance(values, dict):
            grid[name] = {label: _with_paths(keys, folder) for label, keys in values.items()}
        else:
            grid[name] = [_with_paths({name: value}, folder)[name] for value in values]
    return Plan(
        base,
        grid,
        file.seeds,
        file.measures,
        origin=str(path),
        remedy=f"it comes from {file.files_from}" if file.files_from else "",
        about=file.about,
    )


def _is_shipped(path: Path) -> bool:
    return path.resolve().parent == BOARDS.resolve()


def _with_paths(values: Values, folder: Path) -> dict[str, Any]:
    """Values by their keys, in which files and code are found from a folder."""
    found = {}
    for key, value in flatten(dict(values)).items():
        if key in OWN_CODE and isinstance(value, str) and is_reference(value):
            value = _code_from(value, folder)
        elif key in FILES and isinstance(value, str):
            value = str(folder.absolute() / value)
        elif key in FILES and isinstance(value, list):
            value = [str(folder.absolute() / each) for each in value]
        found[key] = value
    return found


def _code_from(reference: str, folder: Path) -> str:
    """The code that a sweep file names: beside it, or else an example of the package."""
    place, _, name = reference.rpartition(":")
    example = SHIPPED / "examples" / place
    beside = folder / place
    return f"{(beside if beside.exists() or not example.exists() else example).absolute()}:{name}"
