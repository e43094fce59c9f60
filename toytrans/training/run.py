"""A run on disk, as everybody reads it; folder.py says which files it has.

Reading takes no lock and writes nothing. Settings and data facts are read where a run is opened;
records, checkpoints and the model are read when they are first asked for. A training reads a run
only to go on with it.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from toytrans.arguments import check_choice, check_whole, checked_lengths
from toytrans.config.faults import fault_remark
from toytrans.config.load import load_saved_config, load_settings
from toytrans.config.schema import Config, Settings
from toytrans.data.formats import sha256_of
from toytrans.data.open import open_dataset
from toytrans.data.pairs import DataFacts, Side
from toytrans.data.selection import (
    pairs_of_files,
    pairs_of_split,
    sources_in_training,
    trained_lengths,
)
from toytrans.errors import UserError
from toytrans.evaluation import evaluate, translate
from toytrans.files import json_text
from toytrans.measure import Measure
from toytrans.measurement import Result, read_results, result_of, selection_of
from toytrans.model.build import build_model
from toytrans.model.seq2seq import Seq2Seq, count_parameters
from toytrans.outputs import Outputs
from toytrans.references import shown, trust
from toytrans.resolve import resolve
from toytrans.tokens import Vocabulary
from toytrans.training.checkpoint import (
    CHECKPOINTS,
    Progress,
    checkpoint_file,
    checkpoint_sha256,
    load_weights,
    pick_steps,
    read_progress,
    read_trained_with,
    saved_steps,
)
from toytrans.training.devices import choose_device, tuned
from toytrans.training.folder import (
    CONFIG,
    DATA,
    METRICS,
    MODEL,
    RESOLVED,
    Record,
    is_being_written,
    is_saved_model,
    read_environment,
)
from toytrans.training.provenance import TrainedWith, trained_with
from toytrans.training.saved import read_facts, read_records

NOT_MEASURED = "not measured"
"""What is shown for a number that is None or missing."""

OneOrMany = TypeVar("OneOrMany", str, list[str])
"""One sequence such as "5 7 9", or several."""

State = Literal["finished", "unfinished", "diverged", "being written", "damaged"]


@dataclass(frozen=True)
class RunState:
    """How far a run has come.

    step: of the newest checkpoint; None if there is none.
    max_steps: None if the config cannot be read.
    exact_match: the best on validation data; None before the first evaluation.
    fault: planted on purpose, as the config says it.
    problem: why the run is damaged, or how it diverged.
    """

    state: State
    step: int | None = None
    max_steps: int | None = None
    exact_match: float | None = None
    fault: str | None = None
    problem: str = ""

    def __str__(self) -> str:
        if self.state in ("finished", "diverged", "damaged"):
            return self.state
        if self.step is None:
            return f"{self.state}, no checkpoint"
        return f"{self.state}, step {self.step:,} of {self.max_steps:,}"


class Run:
    """A run directory, and what can be asked of the model of one of its checkpoints.

    path: the directory. settings: its config with nothing left open; `config` is that as it was
        given. facts: what it remembers of its data.
    checkpoint: best, last, a step, or average:N for the mean of the last N. device: of the model,
        as in a config.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        facts: DataFacts,
        checkpoint: str = "best",
        device: str = "auto",
    ) -> None:
        self.path, self.settings, self.facts = path, settings, facts
        self.checkpoint, self.device = checkpoint, device

    @staticmethod
    def open(
        path: Path, trust_code: bool = False, checkpoint: str = "best", device: str = "auto"
    ) -> "Run":
        """The run of a directory; or a model that was saved beside its config, by a live page or by
        `export`, as a run of one checkpoint.

        trust_code: whether code that the run names may be run, its task's say, until the process
        ends. Raises UserError: no run, one of toytrans 0.3, a damaged one.
        """
        if is_saved_model(path):
            given = load_saved_config(path / CONFIG)
            if trust_code:
                trust(given.references.values())
            settings = resolve(given)
            return Run(path, settings, open_dataset(settings).facts, checkpoint, device)
        if missing := [name for name in (RESOLVED, DATA) if not os.path.isfile(path / name)]:
            what = f"not a run directory (it lacks {' and '.join(missing)})"
            what = what if os.path.exists(path) else "no such run directory"
            if any(path.glob("*.safetensors")):
                remedy = f"a model that was saved is a folder with {CONFIG} and {MODEL}, so named"
            else:
                remedy = "`toytrans train CONFIG` makes one"
            raise UserError(f"{path}: {what}; {remedy}")
        if any(old.is_dir() for old in (path / CHECKPOINTS).glob("step-*[0-9]")):
            raise UserError(
                f"{path}: a run of toytrans 0.3, whose checkpoints are folders; train again, or "
                "use 0.3"
            )
        facts = read_facts(path / DATA)
        settings = load_settings(path / RESOLVED)
        if trust_code:
            trust(settings.references.values())
        return Run(path, settings, facts, checkpoint, device)

    def at(self, checkpoint: str | int) -> "Run":
        """The same run at another checkpoint."""
        return Run(self.path, self.settings, self.facts, str(checkpoint), self.device)

    def with_model(self, model: Seq2Seq, steps: list[int]) -> "Run":
        """The same run with another model, a copy of its own. steps: of its checkpoints, of which
        there are several where it is their mean."""
        other = self.at(self.checkpoint)
        other.model, other.model_steps = model, steps
        return other

    # What it holds

    @property
    def config(self) -> Config:
        """The config as it was given. Raises UserError if it cannot be read."""
        return load_saved_config(self.path / CONFIG)

    @property
    def vocabulary(self) -> Vocabulary:
        """Symbols <-> ids."""
        return self.facts.vocabulary

    @property
    def environment(self) -> dict[str, Any]:
        """The contents of environment.json; empty if it cannot be read."""
        return read_environment(self.path)

    @property
    def records(self) -> list[Record]:
        """The records of the training in the order of their steps, read once. Raises UserError.

        A resumed training writes some steps again: its records replace those of before from the
        first such step on. Lines that hold no record are skipped.
        """
        return self._lines[0]

    @property
    def damaged_lines(self) -> int:
        """Lines of metrics.jsonl that hold no record. Raises UserError.

        A last line without an end is none: a training writes it, or was killed in it.
        """
        return self._lines[1]

    @cached_property
    def _lines(self) -> tuple[list[Record], int]:
        return read_records(self.path / METRICS)

    @property
    def diverged(self) -> str:
        """The number that was not finite, and by which step, if the training diverged; else empty.
        Raises UserError if the records cannot be read."""
        last = self.records[-1] if self.records else {}
        return f"{last['diverged']} not finite by step {last['step']}" if "diverged" in last else ""

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, in ascending order."""
        return saved_steps(self.path)

    @property
    def state(self) -> RunState:
        """How far the run has come, now."""
        return state_of(self.path)

    def progress(self) -> Progress | None:
        """The progress of the newest checkpoint; None if there is none. Raises UserError."""
        steps = self.steps
        return read_progress(self.path, steps[-1]) if steps else None

    @property
    def unfinished(self) -> str:
        """The progress of an unfinished training, say "step 3 of 200"; empty at its end."""
        train = self.settings.train
        with contextlib.suppress(UserError):  # the command that reads the checkpoint raises it
            progress = self.progress()
            if progress is not None and not progress.reached_limit(train):
                return f"step {progress.step} of {train.max_steps}"
        return ""

    # Its model

    @cached_property
    def model_steps(self) -> list[int]:
        """The steps of the checkpoints whose mean the model is: one, unless an average was asked
        for. Raises UserError with those that exist if one does not."""
        if not self.steps and self.diverged:
            raise UserError(
                f"{self.path}: training diverged before its first checkpoint ({self.diverged}); "
                "train again with a lower train.lr or train.clip_norm"
            )
        return pick_steps(self.path, self.checkpoint)

    @property
    def step(self) -> int:
        """The step of the checkpoint; the last one of an average. Raises UserError if there is no
        such checkpoint."""
        return self.model_steps[-1]

    @property
    def which_step(self) -> str:
        """The checkpoint in words, for titles: step 400, or mean of steps 200, 300 and 400."""
        *others, last = self.model_steps
        if not others:
            return f"step {last}"
        return f"mean of steps {', '.join(map(str, others))} and {last}"

    @cached_property
    def model(self) -> Seq2Seq:
        """The model of the checkpoint, in eval mode, in fp32 (fp64 where it was trained so).
        Raises UserError if it cannot be read, or does not fit the config."""
        self.check_settings()
        model = build_model(self.settings, self.facts.vocabulary)
        self._pick_again_if_gone()
        load_weights(model, self.path, *self.model_steps)
        return model.eval().to(choose_device(self.device))

    def _pick_again_if_gone(self) -> None:
        """A training that goes on removes older checkpoints: the best one of a moment ago too."""
        if not all(checkpoint_file(self.path, step).exists() for step in self.model_steps):
            self.model_steps = pick_steps(self.path, self.checkpoint)

    def check_settings(self) -> None:
        """Raise UserError if the settings are not those that the weights were trained with."""
        self._pick_again_if_gone()
        before = read_trained_with(self.path, self.step)
        if before and (unlike := _unlike_settings(before, self._now)):
            raise UserError(
                f"{self.path / RESOLVED}: not what the weights of step {self.step} were trained "
                f"with: {', '.join(unlike)}; set it back"
            )

    @cached_property
    def _now(self) -> TrainedWith:
        return trained_with(self.settings)

    @property
    def notes(self) -> list[str]:
        """What whoever opens the run should know of its weights, one sentence each. Raises
        UserError if the checkpoint cannot be read."""
        self._pick_again_if_gone()
        notes, before = list[str](), read_trained_with(self.path, self.step)
        if self.checkpoint == "best":
            progress = read_progress(self.path, self.steps[-1])
            if progress.best_step not in (None, self.step):
                best = f"the best checkpoint, step {progress.best_step}, is gone"
                notes.append(f"{self.path}: {best}; the last one, step {self.step}, is taken")
        if before is None:
            notes.append(f"{self.path}: step {self.step} does not say what it was trained with")
        elif changed := _changed_files(before, self._now):
            notes.append(f"{self.path}: changed since it was trained: {', '.join(changed)}")
        return notes

    @property
    def title(self) -> str:
        """Path, step and fault."""
        remark = fault_remark(self.settings.fault)
        return f"{self.path}, {self.which_step}" + (f"; {remark}" if remark else "")

    def __repr__(self) -> str:
        about = f"{self.settings.data.task or 'files'}, {count_parameters(self.model):,} parameters"
        remark = fault_remark(self.settings.fault)
        return f"Run({self.path}: {about}, {self.which_step}{remark and f', {remark}'})"

    def translate(self, sequences: OneOrMany, beam: int = 1) -> OneOrMany:
        """The translation of one sequence such as "5 7 9", or those of several.

        Raises UnseenSymbol, a UserError, for a symbol that training has not seen.
        """
        if isinstance(sequences, str):
            return self.translate([sequences], beam)[0]
        symbols = [sequence.split() for sequence in sequences]
        output = translate(self.model, symbols, self.facts, beam)
        return [" ".join(each) for each in output]

    def evaluate(
        self,
        lengths: tuple[int, int] | None = None,
        split: Literal["valid", "test"] = "test",
        examples: int | None = None,
        decode: int | None = None,
        beam: int = 1,
        *,
        length_of: Side = "src",
        files: str | Path | tuple[str | Path, str | Path] | None = None,
    ) -> Result:
        """Measure the run as `toytrans eval` does, for a program in Python: its arguments are plain
        and are checked here, and it computes as a command does.

        lengths: the shortest and the longest; None = those of the split. split: valid or test.
        examples: pairs in all. decode: pairs of each length that are decoded; None = all.
        length_of: the side whose symbols a length counts.
        files: a file of pairs, or a file of sources and one of targets, one a line.
        Raises UserError for an argument of another kind, and where there are no such pairs.
        """
        check_choice(("valid", "test"), split=split)
        check_choice(("src", "tgt"), length_of=length_of)
        check_whole(1, examples=examples, decode=decode, beam=beam)
        named = [files] if isinstance(files, str | Path) else files
        wanted = Measure(
            split=split,
            files=None if named is None else tuple(map(str, named)),
            lengths=checked_lengths(lengths),
            length_of=length_of,
            examples=examples,
            decode=decode,
            beam=beam,
            checkpoint=self.checkpoint,
        )
        with tuned():
            return self.measure(wanted)

    def measure(
        self,
        wanted: Measure,
        follow: Callable[[int, int], object] = lambda done, total: None,
        keep: Outputs | None = None,
    ) -> Result:
        """Measure the run for a command or a sweep, which is tuned already.

        follow: as in `evaluation.evaluate`. keep: what collects the outputs.
        Raises UserError where there are no such pairs.
        """
        if wanted.checkpoint != self.checkpoint:
            return self.at(wanted.checkpoint).measure(wanted, follow, keep)
        settings, facts, selection = self.settings, self.facts, selection_of(wanted)
        self._measured_files(wanted)
        trained = trained_lengths(settings, facts, wanted.length_of)
        if wanted.files is None:
            pairs = pairs_of_split(settings, facts, wanted.split, selection)
        else:
            first, *more = map(Path, wanted.files)
            paths = (first, more[0]) if more else first
            pairs = pairs_of_files(paths, settings, facts, selection)
        scores = evaluate(
            self.model,
            pairs,
            facts,
            beam=wanted.beam,
            decode=wanted.decode,
            side=wanted.length_of,
            follow=follow,
            keep=keep,
        )
        progress = self.progress()
        return result_of(
            replace(scores, train_length=trained),
            wanted,
            run=str(self.path),
            fingerprint=self.fingerprint(wanted),
            step=self.step,
            checkpoint=self.which_step,
            seed=settings.seed,
            data_seed=settings.data_seed,
            fault=settings.fault,
            of_files=wanted.files is not None or settings.data.files is not None,
            trained_on=sources_in_training(settings, facts, pairs),
            steps=progress.step if progress else self.step,
            seconds=progress.elapsed_s if progress else 0.0,
            parameters=count_parameters(self.model),
        )

    def fingerprint(self, wanted: Measure) -> str:
        """What tells whether numbers of a measure are still those of this run: a hash of the
        weights, of the settings that they depend on, of the user's code, and of the files whose
        pairs are measured. Raises UserError where one of these cannot be read."""
        if wanted.checkpoint != self.checkpoint:
            return self.at(wanted.checkpoint).fingerprint(wanted)
        self._pick_again_if_gone()
        measured = self._measured_files(wanted)
        held = [checkpoint_sha256(self.path, step) for step in self.model_steps]
        held += map(sha256_of, measured)
        about = [held, self._now.settings, self._now.code, self.settings.model.length_penalty]
        return hashlib.sha256(json_text(about).encode()).hexdigest()

    def _measured_files(self, wanted: Measure) -> list[str]:
        """The files of the pairs that are measured; none of a task. Raises UserError where one is
        gone."""
        files = self.settings.data.files
        if wanted.files is not None or files is None:
            return list(wanted.files or ())
        key = f"data.files.{wanted.split if getattr(files, wanted.split) else 'train'}"
        paths = getattr(files, key.rpartition(".")[2])
        for path in [paths] if isinstance(paths, str) else paths:
            if not os.path.lexists(path):
                raise UserError(
                    f"{shown(path)}: no such file, and the run names it as {key}; put it back "
                    "there, or measure others with --pairs FILE"
                )
        return [paths] if isinstance(paths, str) else list(paths)

    def kept_result(self, wanted: Measure) -> Result | None:
        """The result of a measure that a sweep has kept, where it is still that of this run.
        Raises UserError where it cannot be told."""
        for result in read_results(self.path):
            if result.measure == wanted and result.fingerprint == self.fingerprint(wanted):
                return result.model_copy(update={"run": str(self.path)})
        return None


# What can be said of a path that may hold no run ------------------------------------------------


def state_of(path: Path) -> RunState:
    """How far a run has come, now. Damage is a state, not an error."""
    state: State = "being written" if is_being_written(path) else "unfinished"
    try:
        run = Run.open(path)
        progress, diverged = run.progress(), run.diverged
    except UserError as error:
        if state == "being written":  # its files are on their way
            return RunState(state)
        return RunState("damaged", problem=str(error))
    step = best = None
    if progress is not None:
        step, match = progress.step, progress.best_exact_match
        best = match if match >= 0 else None
        if state == "unfinished" and progress.reached_limit(run.settings.train):
            state = "finished"
    if state != "being written" and diverged:
        state = "diverged"
    fault = run.settings.fault
    return RunState(state, step, run.settings.train.max_steps, best, fault, problem=diverged)


# Its weights, beside what they were trained with ------------------------------------------------


def _unlike_settings(before: TrainedWith, now: TrainedWith) -> list[str]:
    """The settings that are not those of the weights: `key (was -> is)`."""
    old, new = before.settings, now.settings
    both = [key for key in old if key in new]  # a key that came later says nothing
    return [f"{key} ({old[key]} -> {new[key]})" for key in both if old[key] != new[key]]


def _changed_files(before: TrainedWith, now: TrainedWith) -> list[str]:
    """The keys of files whose contents are not those of the training."""
    here = now.code | now.data
    files = before.code | before.data
    return [key for key, digest in files.items() if here.get(key, digest) != digest]
