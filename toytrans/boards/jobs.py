"""The trainings of a board: trials in runs/boards/NAME/TASK-VARIANT-SEED-HASH/."""

import contextlib
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toytrans.boards.definition import SEEDS, Board, Measure, Variant, config_of
from toytrans.config.schema import Config, Paths
from toytrans.data.open import open_dataset
from toytrans.data.pairs import DataFacts, all_pairs
from toytrans.evaluation import evaluate
from toytrans.model.seq2seq import Seq2Seq
from toytrans.sweeps.processes import Round, run_trials, workers_for
from toytrans.sweeps.trial import Taken, Trial
from toytrans.training.run import RUNS

QUICK_PAIRS = 50
"""Pairs of a measure under --quick, at most."""


@dataclass(frozen=True, kw_only=True)
class Job(Trial):
    """A training of a board. The model of its last step is measured: nothing is chosen."""

    task: str
    variant: Variant


@dataclass(frozen=True)
class BoardMeasure:
    """A measure of a board's definition."""

    of: Measure

    def asked(self) -> dict[str, Any]:
        """The keys that its number depends on, as JSON."""
        return self.of.model_dump(mode="json", include={"lengths", "pairs", "decode", "metric"})

    def take(
        self, model: Seq2Seq, config: Config, facts: DataFacts, taken: Mapping[str, Taken]
    ) -> Taken:
        """The summary of an evaluation. A measure of the same pairs that was taken before is used
        again."""
        asked = self.asked()
        same = [one for one in taken.values() if one["asked"] | {"metric": self.of.metric} == asked]
        summary = same[0] if same else self._evaluated(model, config, facts)
        return summary | {"asked": asked, "value": self._value(summary)}

    def _evaluated(self, model: Seq2Seq, config: Config, facts: DataFacts) -> dict[str, Any]:
        """The summary of an evaluation, and the teacher-forced exact match of each length."""
        asked: dict[str, Any] = {"test_examples": self.of.pairs}
        if self.of.lengths is not None:
            asked["test_length"] = self.of.lengths
        data = config.data.model_copy(update=asked)
        scores = evaluate(
            model,
            all_pairs(open_dataset(config.model_copy(update={"data": data})), "test"),
            facts,
            source_bos=config.source_bos,
            decode=self.of.decode,
            side="src" if data.task else "tgt",
        )
        curve = {n: each["forced_exact_match"] for n, each in scores.by_length().items()}
        return scores.summary() | {"by_length": curve}

    def _value(self, summary: dict[str, Any]) -> float:
        if self.of.metric == "perplexity":
            return math.exp(min(summary["loss"], 700.0))
        if self.of.metric == "exact_match" and self.of.decode is not None:
            return float(summary["forced_exact_match"])
        return float(summary[self.of.metric])


def jobs_of(name: str, board: Board, *, quick: bool, files: Path | None) -> list[Job]:
    """All trainings of a board, seed by seed. Raises UserError where files are missing."""
    folder = RUNS / "boards" / (f"{name}-quick" if quick else name)
    variants: tuple[Variant, ...] = ("ours", "control")
    hashed: dict[Paths, str] = {}
    every = [
        Job(
            label=f"{task}-{variant}-{seed}",
            config=config_of(board, task, variant, seed, quick=quick, files=files),
            measures={
                key: BoardMeasure(_measure(measure, variant, quick))
                for key, measure in entry.measures.items()
                if variant == "ours" or measure.control != 0
            },
            folder=folder,
            checkpoint="last",
            hashed=hashed,
            task=task,
            variant=variant,
        )
        for seed in (SEEDS[:1] if quick else SEEDS)
        for task, entry in board.tasks.items()
        for variant in variants
    ]
    return [job for job in every if job.measures]


def _measure(measure: Measure, variant: Variant, quick: bool) -> Measure:
    """A measure with fewer pairs if it is quick. A control decodes nothing unless its metric needs
    that: its outputs often do not end."""
    needs = measure.decode is None or measure.metric == "free_token_accuracy"
    decode = measure.decode if variant == "ours" or needs else 0
    pairs = measure.pairs or (1000 if measure.lengths else None)
    if variant == "control":
        pairs = measure.control or pairs
    if quick:
        pairs = min(pairs or QUICK_PAIRS, QUICK_PAIRS)
    return measure.model_copy(update={"pairs": pairs, "decode": decode})


def run_jobs(jobs: Sequence[Job]) -> Generator[Round]:
    """Run jobs. Closed early, it lets every training save. Raises UserError if a job fails."""
    with contextlib.closing(run_trials(jobs, workers_for(jobs))) as rounds:
        for each in rounds:
            for _, failure in each.ended:
                if failure is not None:
                    raise failure.error()
            yield each
