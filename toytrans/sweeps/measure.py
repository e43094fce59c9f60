"""What is measured of a trained run, and eval.json, where a sweep keeps it.

A measure is a choice of pairs and of how many are decoded. Its numbers are rows: of all pairs, of
those below, in and beyond the training lengths, of each length (or short span of lengths), and of
the whole run. All tables, pictures and comparisons are made of these rows.
"""

import math
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from toytrans import references
from toytrans.config.schema import LONGEST, Config, Positive, Range, Section
from toytrans.data.pairs import Side, Split
from toytrans.data.selection import Selection
from toytrans.documents import read_json
from toytrans.errors import UserError, share
from toytrans.files import disk_errors, write_json
from toytrans.model.seq2seq import count_parameters
from toytrans.score_tables import LengthGroup, group_lengths
from toytrans.scores import Scores, Summary
from toytrans.training.checkpoint import Count
from toytrans.training.run import Run

EVAL = "eval.json"
MOST_SPANS = 100
"""Each length has numbers of its own, as long as there are no more than so many."""

Place = str | LengthGroup
"""Pairs that have numbers of their own: some lengths, a part of them (a key of PARTS), or "all".
Empty = the whole run, whatever is measured."""

Metric = Literal[
    "exact_match",
    "token_accuracy",
    "free_token_accuracy",
    "loss",
    "perplexity",
    "steps",
    "seconds",
    "parameters",
]

OF_RUN = ("steps", "seconds", "parameters")
"""Metrics of the whole run."""

METRICS: dict[Metric, tuple[str, str, str]] = {
    "exact_match": ("{how} exact match", "exact_match_{how}", ""),
    "token_accuracy": ("teacher-forced token accuracy", "token_accuracy_teacher_forced", ""),
    "free_token_accuracy": ("free-running token accuracy{few}", "token_accuracy_free_running", ""),
    "loss": ("loss in nats a token", "loss", ".4f"),
    "perplexity": ("perplexity", "loss", ".4f"),
    "steps": ("training steps", "steps", ",.0f"),
    "seconds": ("training seconds", "seconds", ",.1f"),
    "parameters": ("parameters", "parameters", ",.0f"),
}
"""Of each metric: its words, the metric of rows that it is taken from, and its format, which
shares have none of. how: its decoding."""


def is_share(metric: Metric) -> bool:
    """Whether a metric goes from 0 to 1."""
    return not METRICS[metric][2]


def written(value: float, metric: Metric, *, signed: bool = False) -> str:
    """A value as its metric is shown."""
    if is_share(metric):
        return f"{value:+.3f}" if signed else share(value)
    return f"{value:{'+' if signed else ''}{METRICS[metric][2]}}"


def shown(value: Any) -> str:
    """A value of a config as YAML has it, and none for null. Paths below the working directory are
    relative."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return references.shown(str(value))


KEYS = {
    "exact_match_free_running": "exact_match",
    "token_accuracy_free_running": "free_token_accuracy",
    "exact_match_teacher_forced": "forced_exact_match",
    "token_accuracy_teacher_forced": "token_accuracy",
    "loss": "loss",
}
"""Of each metric of rows: its key in a summary of scores."""


class Measure(Section):
    """What is measured: pairs of some lengths, and how many of them are decoded.

    exact_match is free-running where all pairs are decoded. Else it is teacher-forced, which is the
    same number; the pairs that are decoded too prove it. token_accuracy is teacher-forced,
    free_token_accuracy free-running, over the decoded pairs.
    """

    lengths: Range | None = Field(None, description="null = those of the test pairs")
    pairs: Positive | None = Field(None, description="in all; null = all test pairs")
    decode: Annotated[int, Field(ge=0)] | None = Field(
        1, description="of each length, so many pairs are decoded too; null = all"
    )
    side: Side = Field("src", description="whether lengths are of sources or of targets")

    @property
    def decoding(self) -> str:
        """How its exact match is decoded."""
        return "free-running" if self.decode is None else "teacher-forced"

    def label(self, metric: Metric) -> str:
        """A metric of it, in words."""
        few = "" if self.decode is None else f" of {self.decode} decoded of each length"
        return METRICS[metric][0].format(how=self.decoding, few=few)

    @property
    def selection(self) -> Selection:
        return Selection(self.lengths, self.pairs, self.side)


def of_lengths(lengths: tuple[int, int] | None = None, pairs: int | None = None) -> Measure:
    """The measure of a sweep: all pairs are decoded, or with lengths one pair of each. Raises
    UserError."""
    if lengths is not None and lengths[1] > LONGEST:
        raise UserError(f"lengths {lengths[0]}:{lengths[1]}: a length is at most {LONGEST}")
    return Measure(lengths=lengths, pairs=pairs, decode=None if lengths is None else 1)


Value = Annotated[int | float, Field(ge=0)]
Row = tuple[str, Count | None, Count | None, str, Value | None, Count | None]
"""One number: its part, the shortest and the longest length, the metric, the value, and the pairs
that it rests on. Lengths are None for a whole part, a value where it is not finite."""


class Result(BaseModel):
    """What a measure gave of a run.

    of_files: whether its pairs are those of files, which every seed shares. train_length: the
    training lengths of its side. difference: of exact match, free-running less teacher-forced, over
    the decoded pairs.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)

    measure: Measure
    of_files: bool
    train_length: tuple[Count, Count]
    difference: Annotated[float, Field(ge=-1, le=1)]
    rows: list[Row]

    @model_validator(mode="after")
    def _holds_shares(self) -> Self:
        shares = [row[4] for row in self.rows if row[3].startswith(("exact", "token"))]
        if not shares or any(value is None or value > 1 for value in shares):
            raise ValueError("a share is from 0 to 1")
        return self

    @cached_property
    def numbers(self) -> dict[tuple[Place, str], tuple[float | None, int]]:
        """Value and pairs by place and metric of rows."""
        found = dict[tuple[Place, str], tuple[float | None, int]]()
        for part, low, high, metric, value, pairs in self.rows:
            place = part if low is None or high is None else LengthGroup(low, high, part)
            found[place, metric] = value, pairs or 0
        return found

    def number(self, metric: Metric, place: Place = "all") -> tuple[float | None, int]:
        """A value and the pairs that it rests on; None and 0 where it is not known."""
        of_run = metric in OF_RUN and place == "all"
        of_rows = METRICS[metric][1].format(how=self.measure.decoding.replace("-", "_"))
        value, pairs = self.numbers.get(("" if of_run else place, of_rows), (None, 0))
        if value is not None and metric == "perplexity":
            value = math.exp(min(value, 700.0))
        return value, pairs


def result_of(run: Run, scores: Scores, measure: Measure) -> Result:
    """The numbers of a run and of its scores, which a measure gave. What nothing was decoded of has
    no free-running numbers."""
    progress = run.progress()
    assert progress is not None, "its model was read"
    whole = progress.step, progress.elapsed_s, count_parameters(run.model)
    rows: list[Row] = [("", None, None, *each, None) for each in zip(OF_RUN, whole, strict=True)]
    every = scores.summary()
    summaries: list[tuple[Any, Summary]] = [
        ((part, None, None), of) for part, of in ({"all": every} | scores.parts()).items()
    ]
    low, high = measure.lengths or (min(scores.lengths), max(scores.lengths))
    for *ends, part in group_lengths(range(low, high + 1), scores.train_length, MOST_SPANS):
        summaries.append(((part, *ends), scores.summary(*ends)))
    for where, of in summaries:
        for metric, key in KEYS.items():
            if pairs := of["decoded" if metric.endswith("free_running") else "examples"]:
                value = of[key] if math.isfinite(of[key]) else None
                rows.append((*where, metric, value, pairs))
    return Result(
        measure=measure,
        of_files=scores.about.get("split") == "files",
        train_length=scores.train_length,
        difference=every["exact_match_difference"],
        rows=rows,
    )


def split_of(config: Config) -> Split:
    """The test split; validation pairs where a config names no test file."""
    files = config.data.files
    return "valid" if files is not None and files.test is None else "test"


def read_results(run: Path) -> dict[Measure, Result]:
    """What eval.json holds, by measure; empty without it. Raises UserError."""
    otherwise = "not what a sweep writes; remove it, and the trained model is measured again"
    found = read_json(run / EVAL, RootModel[list[Result]], otherwise)
    return {result.measure: result for result in found.root} if found else {}


def measured(run: Run, measure: Measure) -> tuple[Scores, Result]:
    """A measure of the pairs on which a sweep measures a run. Raises UserError."""
    scores = run.measure(split_of(run.config), measure.selection, measure.decode)
    return scores, result_of(run, scores, measure)


def measure_run(run: Run, measures: Iterable[Measure]) -> None:
    """Measure a run, and write eval.json after each measure that it lacks. Raises UserError."""
    found = read_results(run.path)
    for measure in measures:
        if measure not in found:
            _, found[measure] = measured(run, measure)
            with disk_errors(run.path, EVAL):
                values = [each.model_dump(mode="json") for each in found.values()]
                write_json(run.path / EVAL, values)
