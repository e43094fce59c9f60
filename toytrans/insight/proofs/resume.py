"""Is anything lost when training is killed? The same run straight and in pieces, bit for bit.

    toytrans train                      to the end
    toytrans train, kill -9, train --resume, kill -9, ..., train --resume to the end

Kills come at random moments or at named places of writing (`failpoint`). After each, every
checkpoint that was there must be there and readable; at the end weights, optimiser, random states,
records and counters of the two runs must be equal to the last bit.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from toytrans.config.load import check_config, save_config
from toytrans.config.schema import Config
from toytrans.config.yaml import Tree
from toytrans.errors import UserError
from toytrans.insight.proofs.report import Finding, Outcome, Report, finding_of
from toytrans.training.checkpoint import Checkpoint, load_checkpoint
from toytrans.training.failpoint import IN_A_SAVE, VARIABLE
from toytrans.training.owned import CHECKPOINTS, METRICS, saved_steps
from toytrans.training.run import is_run, read_precision, read_records

EVALUATIONS, VALID_EXAMPLES, TEST_EXAMPLES = 10, 40, 8
"""Of a trial: so many, and with them checkpoints, on so few pairs that most time is training."""

Moment = Literal["before the first checkpoint", "between two", "while one was written"]


class Trial(NamedTuple):
    """What is trained: a config file, to `steps`; straight: the run that nobody killed, which took
    `seconds` once it had started."""

    config: Path
    steps: int
    straight: Path
    seconds: float


class Kill(NamedTuple):
    """place: where the process is to die, None for a random moment. resumed: the step it had
    gone on from. lost: a checkpoint that is gone; unreadable: one that cannot be read."""

    place: str | None
    moment: Moment
    resumed: int
    lost: str
    unreadable: str


class Refused(Exception):
    """A killed run that does not go on; the message is what it says."""


def prove_resume(
    config: Config,
    name: str,
    steps: int,
    kills: int,
    seed: int,
    follow: Callable[[str], None] = lambda _: None,
) -> Report:
    """Train a config for some steps, straight and killed several times, and compare the two.

    Every other kill is aimed at the writing of a checkpoint, the others come at random moments.
    Where a proof fails the two runs stay, in a folder that is named. follow: called before the
    training in pieces and after each kill. Raises UserError where the config cannot be trained,
    and where no kill came after a resume past step 0. kills: 2 or more; the first leaves a
    checkpoint, and the second comes after a resume from it.
    """
    folder = Path(tempfile.mkdtemp(prefix="toytrans-resume-"))
    report = None
    try:
        trial = train_straight(config, folder, steps)
        rng = random.Random(seed)
        places = deque(rng.sample(IN_A_SAVE, len(IN_A_SAVE)))
        pieces, done = folder / "pieces", []
        follow("the training that is killed")
        try:
            for kill in train_in_pieces(trial, pieces, kills, rng, places):
                done.append(kill)
                follow(f"killed {len(done)} times of {kills}")
            findings = compare(trial, pieces)
        except Refused as refusal:
            cause = f"after kill {len(done)} the run does not go on: {refusal}"
            findings = [finding_of("r", "a killed run goes on", Outcome(1, 0, "", cause))]
        findings += _of_kills(done)
        subject = (
            f"{name}, {steps} steps, dropout {config.model.dropout:g}, killed {len(done)} times"
        )
        precision = read_precision(trial.straight) or "auto"
        report = Report(subject, f"cpu, {precision}", tuple(findings))
    finally:
        if report is None or report.passed:
            shutil.rmtree(folder)
    if report.passed:
        if not any(kill.resumed for kill in done):
            raise UserError(
                f"{report.subject}: no kill came after a resume past step 0, so nothing is "
                f"proved; raise --steps {steps} or --kills {kills}"
            )
        return report
    return Report(f"{report.subject}; kept in {folder}", report.precision, report.findings)


def train_straight(config: Config, folder: Path, steps: int) -> Trial:
    """Make a trial of a config, and train it in one piece. Raises UserError."""
    values = config.model_dump(mode="json")
    values["device"] = "cpu"
    values["train"] |= {
        "max_steps": steps,
        "warmup_steps": min(config.train.warmup_steps or 0, steps),
        "eval_every": max(1, steps // EVALUATIONS),
        "log_every": max(1, steps // EVALUATIONS * 2 // 3),
        "cuda_graphs": "auto",
    } | dict.fromkeys(("max_seconds", "stop_at_exact_match", "patience"))
    for key, most in (("valid_examples", VALID_EXAMPLES), ("test_examples", TEST_EXAMPLES)):
        values["data"][key] = min(values["data"][key] or most, most)
    file, straight = folder / "trial.yaml", folder / "straight"
    file.write_text(save_config(check_config(Tree(str(file), values))))
    trial = Trial(file, steps, straight, 0.0)
    code, error = _run(trial, straight)
    if code != 0:
        raise UserError(f"the run that nobody kills ends with exit code {code}: {error}")
    return trial._replace(seconds=read_records(straight)[-1]["elapsed_s"])


def train_in_pieces(
    trial: Trial, run: Path, kills: int, rng: random.Random, places: deque[str]
) -> Iterator[Kill]:
    """Train a trial and kill it up to so many times, then to its end; each kill as it happened.

    Every other kill is at a random moment, the others at the places in turn. A run may reach its
    end before all kills have come. If there is no checkpoint before the last kill but one, that
    one comes while the second is written, so that the last comes after a resume. Raises Refused.
    """
    for number in range(kills):
        steps = saved_steps(run)
        newest = steps[-1] if steps else 0
        if newest == trial.steps:
            break
        last_chance = newest == 0 and number == kills - 2
        place = _next_place(run, places) if number % 2 or last_chance else None
        if place == "set-aside":
            _flip_a_byte(run / CHECKPOINTS / f"step-{newest}" / "weights.safetensors")
            newest = steps[-2]
        left = trial.seconds * (1 - newest / trial.steps)
        delay = rng.uniform(0, 2 * left / (kills - number + 1))
        before = _drafts(run)
        passing = rng.randint(1, 2) if place in IN_A_SAVE and place != "set-aside" else 1
        passing = 2 if last_chance and place in IN_A_SAVE else passing
        aim = f"{place}:{passing}" if place else None
        code, error = _run(trial, run, aim, None if place else delay)
        if code == 0:
            break
        if code != -signal.SIGKILL:
            raise Refused(error)
        moment: Moment = "between two"
        if place in IN_A_SAVE or _drafts(run) - before:
            moment = "while one was written"
        elif not saved_steps(run):
            moment = "before the first checkpoint"
        yield Kill(place, moment, newest, *_audit(run, newest, place))
    code, error = _run(trial, run)
    if code != 0:
        raise Refused(error)


def compare(trial: Trial, run: Path) -> list[Finding]:
    """Whether a run in pieces ends where the straight one does, to the last bit."""
    try:
        ours, theirs = (load_checkpoint(path, trial.steps) for path in (run, trial.straight))
    except UserError as error:
        raise Refused(str(error)) from None
    findings = []
    for letter, part, title in (
        ("r", "weights", "weights are equal"),
        ("s", "optimizer", "optimiser moments and counts are equal"),
        ("t", "random", "random states are equal"),
    ):
        restored, expected = getattr(ours, part), getattr(theirs, part)
        other = _differing(restored, expected)
        numbers = sum(tensor.numel() for tensor in expected.values())
        evidence = f"{len(expected)} tensors, {numbers:,} numbers: every bit"
        findings.append(finding_of(letter, title, _equality(other, evidence)))
    records = [_timeless(read_records(path)) for path in (run, trial.straight)]
    other = [f"record {n}" for n, (a, b) in enumerate(zip(*records, strict=False), 1) if a != b]
    if len(records[0]) != len(records[1]):
        other.append(f"{len(records[0])} records in place of {len(records[1])}")
    evidence = f"{len(records[1])} records in {METRICS}: every key but elapsed_s"
    findings.append(finding_of("u", "metrics are equal", _equality(other, evidence)))
    counters = [_counters(checkpoint) for checkpoint in (ours, theirs)]
    other = [key for key in counters[1] if counters[0][key] != counters[1][key]]
    evidence = f"{len(counters[1])} of them: steps, pairs dealt, tokens, best step"
    findings.append(finding_of("v", "counters are equal", _equality(other, evidence)))
    return findings


def _run(
    trial: Trial, out: Path, aim: str | None = None, delay: float | None = None
) -> tuple[int, str]:
    """Train in a process of its own, going on where there is a run; its exit code and last words.

    aim: the failpoint where it dies; delay: seconds after which it is killed once it has started.
    """
    arguments = ("train", "--config", str(trial.config), "--out", str(out), "--resume")
    imports_as_here = os.pathsep.join(path for path in sys.path if path)  # nothing of where it runs
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "toytrans", *arguments],
        env=os.environ | {VARIABLE: aim or "", "PYTHONPATH": imports_as_here},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            lines = _heard(process, out, delay)
        except BaseException:
            process.kill()
            raise
    return process.returncode, (lines or ["no word"])[-1].strip()


def _heard(process: subprocess.Popen[str], out: Path, delay: float | None) -> list[str]:
    """The lines that a training writes till its end, which comes some time after its start."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if delay is not None and line.startswith(f"{out}: "):
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.kill()
    return lines


def _next_place(run: Path, places: deque[str]) -> str:
    """The first of the places that the next piece can pass; it goes to the end of the queue."""
    saved = len(saved_steps(run))
    needs = {"set-aside": saved >= 2, "pruning": saved >= 2, "half-metrics.jsonl": is_run(run)}
    place = next(place for place in places if needs.get(place, True))
    places.remove(place)
    places.append(place)
    return place


def _audit(run: Path, newest: int, place: str | None) -> tuple[str, str]:
    """What a kill cost: a checkpoint lost, and one unreadable; empty for none.

    newest: the step of the checkpoint that was there before. Every evaluation in the records but
    the last one was followed by a checkpoint, too; one damaged on purpose does not count.
    """
    steps = saved_steps(run)
    lost = unreadable = ""
    evaluated = [record["step"] for record in read_records(run) if "valid_loss" in record]
    due = newest if place == "set-aside" else max([newest, *evaluated[:-1]])
    if due > max(steps, default=0):
        lost = f"step {due} was saved; the newest is {max(steps, default=0)}"
    for step in steps:
        try:
            best = load_checkpoint(run, step).progress.best_step
            if step == steps[-1] and best not in (*steps, None):
                lost = f"step {best}, the best, is gone"
        except UserError as error:
            unreadable = str(error)
    return lost, unreadable


def _drafts(run: Path) -> set[tuple[str, int]]:
    """What a crash left half done among the checkpoints, with its time."""
    folder = run / CHECKPOINTS
    hidden = folder.glob(".*") if folder.is_dir() else ()
    return {(path.name, path.stat().st_mtime_ns) for path in hidden}


def _flip_a_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def _of_kills(kills: list[Kill]) -> list[Finding]:
    """That no kill cost a checkpoint, and that the run really was one in pieces."""
    harm = [text for kill in kills for text in (kill.lost, kill.unreadable) if text]
    moments = Counter(kill.moment for kill in kills)
    aimed = sum(kill.place is not None for kill in kills)
    listed = ", ".join(f"{number} {moment}" for moment, number in moments.items())
    evidence = f"{len(kills)} kills, {aimed} of them aimed: {listed}"
    resumed = sum(kill.resumed > 0 for kill in kills)
    evidence += f"; {resumed} after a resume past step 0"
    return [finding_of("w", "no checkpoint is lost or unreadable", _equality(harm, evidence))]


def _equality(other: list[str], evidence: str) -> Outcome:
    cause = f"{len(other)} differ: {', '.join(other[:3])}{' ...' if len(other) > 3 else ''}"
    return Outcome(len(other), 0, evidence, cause)


def _differing(restored: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Names of tensors that only one has, or whose bits differ."""
    names = sorted(restored.keys() | expected.keys())
    both = restored.keys() & expected.keys()
    return [n for n in names if n not in both or _bits(restored[n]) != _bits(expected[n])]


def _bits(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tensor.shape, raw


def _timeless(records: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{k: v for k, v in record.items() if k != "elapsed_s"} for record in records]


def _counters(checkpoint: Checkpoint) -> dict[str, object]:
    return {k: v for k, v in asdict(checkpoint.progress).items() if k != "elapsed_s"}
