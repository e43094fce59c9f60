"""A training that is killed at random moments and resumed, beside one that nobody kills."""

import random
import time
from pathlib import Path

from conftest import tensors_of, tiny_yaml
from forked import COMMAND, Forked

from toytrans.training.checkpoint import load_checkpoint, saved_steps
from toytrans.training.folder import is_run
from toytrans.training.run import Run

STEPS_PER_KILL = 10
LONGEST_DELAY = 0.05
"""Seconds from a step to the kill after it: some steps and the writing of some checkpoints."""


def train_and_kill(kills: int, seed: int) -> None:
    """Train in the working directory, straight and killed so often, and compare the two.

    Each kill is SIGKILL, a random moment after a random step, or sooner where that step was reached
    before. After each, every checkpoint can be read and none is lost.
    """
    steps = STEPS_PER_KILL * kills
    train = {"max_steps": steps, "eval_every": 2, "log_every": 1}
    Path("killed.yaml").write_text(tiny_yaml(model={"dropout": 0.2}, train=train))
    words = ("train", "killed.yaml", "--out")
    assert Forked(COMMAND, *words, "straight").ended().code == 0
    rng, run = random.Random(seed), Path("pieces")
    resumed = 0
    for target in sorted(rng.choices(range(steps - STEPS_PER_KILL), k=kills)):
        newest = max(saved_steps(run), default=0)
        resumed += newest > 0
        training = Forked(COMMAND, *words, str(run), "--resume")
        while last_step(run) < target:
            assert training.process.is_alive(), training.ended()
            time.sleep(0.001)
        time.sleep(rng.uniform(0, LONGEST_DELAY))
        training.process.kill()
        assert training.ended().code == -9
        saved = saved_steps(run)
        assert max(saved, default=0) >= newest, "a checkpoint is lost"
        for step in saved:
            best = load_checkpoint(run, step)[0].best_step
        assert not saved or best in saved, "the best checkpoint is lost"
    assert resumed >= kills / 2, "most kills come after a resume"
    assert Forked(COMMAND, *words, str(run), "--resume").ended().code == 0
    assert_equal(run, Path("straight"))


def last_step(run: Path) -> int:
    """The step of the last record; 0 = there is none, -1 = there is no run."""
    records = Run.open(run).records if is_run(run) else [{"step": -1}]
    return int(records[-1]["step"]) if records else 0


def assert_equal(run: Path, other: Path) -> None:
    """Weights, optimiser and random states bit for bit; progress and records but for the time."""
    ours, theirs = Run.open(run), Run.open(other)
    assert ours.steps[-1] == theirs.steps[-1] == ours.settings.train.max_steps
    assert tensors_of(run) == tensors_of(other)
    progress = [load_checkpoint(path, ours.steps[-1])[0].model_dump() for path in (run, other)]
    for each in progress:
        assert each.pop("elapsed_s") > 0 and each.pop("evaluation_s") > 0
    assert progress[0] == progress[1]
    for mine, their in zip(ours.records, theirs.records, strict=True):
        times = {"elapsed_s": 0, "evaluation_s": 0}
        assert {**mine, **times} == {**their, **times}
