"""What is measured of a trained run, and eval.json, where a sweep keeps it.

    FOLDER/RUN/eval.json   steps, seconds, parameters, and the numbers of each measure

A measure is a choice of pairs and of how many are decoded. Its numbers are kept for all pairs, for
those below, in and beyond the training lengths, and for each length (or short span of lengths).
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from toytrans import user_code
from toytrans.config.names import Metric
from toytrans.config.schema import LONGEST, Config, Positive, Range, Section
from toytrans.data.pairs import Side, Split
from toytrans.data.selection import Selection
from toytrans.errors import UserError
from toytrans.evaluation import Scores, Span, spans
from toytrans.files import read_json
from toytrans.model.initialisation import count_parameters
from toytrans.rounding import share
from toytrans.training.checkpoint import Count
from toytrans.training.run import Run

EVAL = "eval.json"
TEST = "test"
"""The name of the measure of a sweep."""

MOST_SPANS = 100
"""Each length has numbers of its own, as long as there are no more than so many."""

Part = Literal["all", "below", "in_range", "beyond"]
PARTS: dict[Part, str] = {
    "all": "all",
    "below": "below",
    "in_range": "in range",
    "beyond": "beyond",
}
"""Where lengths lie beside those of training: key and label."""

Place = Part | Span
"""Pairs that have numbers of their own: a part, or some lengths."""

OF_RUN = ("steps", "seconds", "parameters")
"""Metrics of a whole run, whatever is measured of it."""

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
"""Of each metric: its words, the column of tables that it is taken from, and its format, which
shares have none of. how: its decoding."""


def is_share(metric: Metric) -> bool:
    """Whether a metric goes from 0 to 1."""
    return not METRICS[metric][2]


def number(value: float, metric: Metric, *, signed: bool = False) -> str:
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
    return user_code.shown(str(value))


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

    def column(self, metric: Metric) -> str:
        """The column of tables that a metric is taken from."""
        return METRICS[metric][1].format(how=self.decoding.replace("-", "_"))

    def selection(self) -> Selection:
        return Selection(self.lengths, self.pairs, self.side)


def of_lengths(lengths: tuple[int, int] | None, pairs: int | None) -> Measure:
    """The measure of a sweep: all pairs are decoded, or with lengths one pair of each. Raises
    UserError."""
    if lengths is not None and lengths[1] > LONGEST:
        raise UserError(f"lengths {lengths[0]}:{lengths[1]}: a length is at most {LONGEST}")
    return Measure(lengths=lengths, pairs=pairs, decode=None if lengths is None else 1)


# eval.json -----------------------------------------------------------------------------------

Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(ge=0)]


class _File(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


class Numbers(_File):
    """Of some pairs. Shares of no pair are 0; a loss that is not finite is None."""

    examples: Count
    decoded: Count
    exact_match: Share
    forced_exact_match: Share
    exact_match_difference: Annotated[float, Field(ge=-1, le=1)]
    token_accuracy: Share
    free_token_accuracy: Share
    loss: Number | None


class SpanNumbers(Numbers):
    """Of the pairs of lengths shortest .. longest, all of one part."""

    shortest: Count
    longest: Count
    part: Part


def _with_all(parts: dict[Part, Numbers]) -> dict[Part, Numbers]:
    if "all" not in parts:
        raise ValueError("no numbers of all pairs")
    return parts


class Result(_File):
    """What a measure gave. train_length: the training lengths of its side. of_files: whether its
    pairs are those of files, which every seed shares."""

    measure: Measure
    of_files: bool = False
    train_length: tuple[Count, Count]
    parts: Annotated[dict[Part, Numbers], AfterValidator(_with_all)]
    spans: list[SpanNumbers]


class Eval(_File):
    """eval.json. steps, seconds: of the whole training. measures: by their names."""

    steps: Count
    seconds: Number
    parameters: Count
    measures: dict[str, Result] = {}


def read_eval(run: Path) -> Eval | None:
    """The eval.json of a run, if it has one. Raises UserError."""
    otherwise = "not what a sweep writes; remove it, and the trained model is measured again"
    return read_json(run / EVAL, Eval, otherwise)


def evaluate(
    run: Run, measures: Mapping[str, Measure], so_far: Eval | None = None
) -> Iterator[Eval]:
    """Measure a run; yields all its numbers after each measure. Raises UserError.

    so_far: what is known of it. Equal measures are taken once.
    """
    found = so_far or eval_of(run)
    for name, wanted in measures.items():
        if name not in found.measures:
            known = [result for result in found.measures.values() if result.measure == wanted]
            if not known:
                selection = wanted.selection()
                scores = run.measure(split_of(run.config), selection, wanted.decode)
                known = [result_of(scores, wanted)]
            found = found.model_copy(update={"measures": {**found.measures, name: known[0]}})
            yield found


def eval_of(run: Run, **measures: Result) -> Eval:
    """The numbers of a whole run, and what was measured of it."""
    progress = run.folder.progress()
    assert progress is not None, "its model was read"
    size = count_parameters(run.model)
    return Eval(steps=progress.step, seconds=progress.elapsed_s, parameters=size, measures=measures)


def result_of(scores: Scores, measure: Measure) -> Result:
    """The numbers of some scores, which a measure gave."""
    low, high = measure.lengths or (min(scores.lengths), max(scores.lengths))
    rows = [
        scores.summary(*ends) | {"shortest": ends[0], "longest": ends[1], "part": part}
        for *ends, part in spans(range(low, high + 1), scores.train_length, MOST_SPANS)
    ]
    parts = {"all": scores.summary(), **scores.parts()}
    for row in (*rows, *parts.values()):
        row["loss"] = row["loss"] if math.isfinite(row["loss"]) else None
    return Result(
        measure=measure,
        of_files=scores.about.get("split") == "files",
        train_length=scores.train_length,
        parts={part: Numbers(**parts[part]) for part in PARTS if part in parts},
        spans=[SpanNumbers(**row) for row in rows if row["examples"]],
    )


def split_of(config: Config) -> Split:
    """The test split; validation pairs where a config names no test file."""
    files = config.data.files
    return "valid" if files is not None and files.test is None else "test"
