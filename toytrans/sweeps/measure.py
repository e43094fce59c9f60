"""What is measured of a trained run, and eval.json, where a sweep keeps it.

    FOLDER/RUN/eval.json   steps, seconds, parameters, and the numbers of each measure

A measure is a choice of pairs and of how many are decoded. Its numbers are kept for all pairs, for
those below, in and beyond the training lengths, and for each length (or short span of lengths).
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from toytrans.config.names import Metric
from toytrans.config.schema import LONGEST, Config, Positive, Range, Section
from toytrans.data.pairs import Side, Split
from toytrans.data.selection import Selection
from toytrans.errors import UserError
from toytrans.evaluation import spans
from toytrans.files import read_json
from toytrans.model.initialisation import count_parameters
from toytrans.training.checkpoint import Count
from toytrans.training.measured import measure
from toytrans.training.run import Run

EVAL = "eval.json"
TEST = "test"
"""The name of the measure of a sweep."""

MOST_SPANS = 100
"""Each length has numbers of its own, as long as there are no more than so many."""

PARTS = {"all": "all", "below": "below", "in_range": "in range", "beyond": "beyond"}
"""Where lengths lie beside those of training: key and label."""

Part = Literal["all", "below", "in_range", "beyond"]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(ge=0)]
OF_RUN = ("steps", "seconds", "parameters")
"""Metrics of a whole run, whatever is measured of it."""

SHARES = ("exact_match", "token_accuracy", "free_token_accuracy")
"""Metrics from 0 to 1."""


class Measure(Section):
    """What is measured: pairs of some lengths, and which number is compared.

    exact_match is free-running where all pairs are decoded. Else it is teacher-forced, which is the
    same number; the pairs that are decoded too prove it. token_accuracy is teacher-forced,
    free_token_accuracy free-running, over the decoded pairs.
    """

    lengths: Range | None = Field(None, description="null = those of the test pairs")
    pairs: Positive | None = Field(None, description="in all; null = all test pairs")
    decode: Annotated[int, Field(ge=0)] | None = Field(
        1, description="of each length, so many pairs are decoded too; null = all"
    )
    metric: Metric = "exact_match"
    side: Side = Field("src", description="whether lengths are of sources or of targets")

    @property
    def decoding(self) -> str:
        """How its exact match is decoded."""
        return "free-running" if self.decode is None else "teacher-forced"

    @property
    def label(self) -> str:
        """What is compared, in words."""
        decoded = {
            "exact_match": f"{self.decoding} exact match",
            "token_accuracy": "teacher-forced token accuracy",
            "free_token_accuracy": "free-running token accuracy",
            "loss": "loss in nats a token",
        }
        return decoded.get(self.metric, self.metric)

    def same_pairs(self, other: "Measure") -> bool:
        """Whether the numbers of one are those of the other."""
        return _plain(self.model_copy(update={"metric": other.metric})) == _plain(other)

    def selection(self) -> Selection:
        return Selection(self.lengths, self.pairs, self.side)


def of_lengths(
    lengths: tuple[int, int] | None, pairs: int | None, metric: Metric = "exact_match"
) -> Measure:
    """The measure of a sweep: all pairs are decoded, or with lengths one pair of each. Raises
    UserError."""
    if lengths is not None and lengths[1] > LONGEST:
        raise UserError(f"lengths {lengths[0]}:{lengths[1]}: a length is at most {LONGEST}")
    decode = None if lengths is None else 1
    return Measure(lengths=lengths, pairs=pairs, decode=decode, metric=metric)


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
    """What a measure gave. train_length: the training lengths of its side."""

    measure: Measure
    train_length: tuple[Count, Count]
    parts: Annotated[dict[Part, Numbers], AfterValidator(_with_all)]
    spans: list[SpanNumbers]

    def value(self, metric: Metric, part: Part = "all") -> float | None:
        """The number that a metric stands for; None where it is not known."""
        return self.of(self.parts[part], metric) if part in self.parts else None

    def of(self, numbers: Numbers, metric: Metric) -> float | None:
        """The same of some numbers, say of a span."""
        if metric == "perplexity":
            return None if numbers.loss is None else math.exp(min(numbers.loss, 700.0))
        if metric == "exact_match" and self.measure.decode is not None:
            return numbers.forced_exact_match
        value: float | None = getattr(numbers, metric)
        return value


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

    so_far: what is known of it. Measures of the same pairs are taken once.
    """
    if so_far is None:
        progress = run.folder.progress()
        assert progress is not None, "its model was read"
        parameters = count_parameters(run.model)
        so_far = Eval(steps=progress.step, seconds=progress.elapsed_s, parameters=parameters)
    for name, wanted in measures.items():
        if name not in so_far.measures:
            known = so_far.measures.values()
            same = [result for result in known if wanted.same_pairs(result.measure)]
            result = same[0] if same else _taken(wanted, run)
            so_far = so_far.model_copy(update={"measures": {**so_far.measures, name: result}})
            yield so_far


def _taken(wanted: Measure, run: Run) -> Result:
    scores = measure(run, split_of(run.config), wanted.selection(), wanted.decode)
    trained = scores.train_length
    ends = wanted.lengths or (min(scores.lengths), max(scores.lengths))
    rows = [
        {"shortest": low, "longest": high, "part": part} | scores.summary(low, high)
        for low, high, part in spans(range(ends[0], ends[1] + 1), trained, MOST_SPANS)
    ]
    every = {"all": scores.summary(), **scores.parts()}
    parts = {p: Numbers.model_validate(_finite(every[p])) for p in get_args(Part) if p in every}
    return Result(
        measure=_plain(wanted),
        train_length=trained,
        parts=parts,
        spans=[SpanNumbers.model_validate(_finite(row)) for row in rows if row["examples"]],
    )


def split_of(config: Config) -> Split:
    """The test split; validation pairs where a config names no test file."""
    files = config.data.files
    return "valid" if files is not None and files.test is None else "test"


def _plain(wanted: Measure) -> Measure:
    """A measure without what a board adds to it."""
    return Measure(**{name: getattr(wanted, name) for name in Measure.model_fields})


def _finite(summary: dict[str, Any]) -> dict[str, Any]:
    loss = summary["loss"]
    return summary | {"loss": loss if math.isfinite(loss) else None}
