"""`train --log-to tensorboard`: TensorBoard reads what metrics.jsonl holds; no training fails."""

import sys
from pathlib import Path

import pytest
from conftest import Command

from toytrans.training.run import Run

pytestmark = pytest.mark.usefixtures("here")
TRAIN = ("train", "c.yaml", "--out", "r")
LONGER = (*TRAIN, "--resume", "--set", "train.max_steps=12")
LOGGED = ("--log-to", "tensorboard")

Logged = dict[str, dict[int, float]]
"""Values by tag and step."""


def records(run: str = "r") -> list[dict]:
    return Run.open(Path(run)).records


def expected() -> Logged:
    values: Logged = {}
    for record in records():
        for key, value in record.items():
            tag = f"valid/{key[6:]}" if key.startswith("valid_") else f"train/{key}"
            if key != "step":
                values.setdefault(tag, {})[record["step"]] = pytest.approx(value, rel=1e-6)
    return values


def shown() -> Logged:
    """What TensorBoard reads; a step that is there twice is a failure."""
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module).EventAccumulator
    events = accumulator("r/logs", size_guidance={"scalars": 0}).Reload()
    values: Logged = {}
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        values[tag] = {point.step: point.value for point in points}
        assert len(values[tag]) == len(points), (tag, "twice")
    return values


def test_the_log_holds_what_metrics_hold_through_resumes(command: Command):
    """One that begins late, too, and one that goes on from an older checkpoint."""
    pytest.importorskip("tensorboard")
    assert command(*TRAIN).code == 0 and not Path("r/logs").exists()
    assert "--log-to" not in command(*LONGER, *LOGGED).err
    assert shown() == expected() and len(expected()["train/loss"]) == 12
    Path("r/checkpoints/step-12.safetensors").rename("lost")
    assert command(*LONGER, *LOGGED, "--set", "train.max_steps=14").code == 0
    assert shown() == expected() and list(shown()["valid/loss"]) == [2, 4, 6, 8, 10, 12, 14]


def test_another_logger_and_a_missing_library_are_refused(command: Command, refused, monkeypatch):
    assert command(*TRAIN, "--log-to", "wandb").code == 2
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert "pip install tensorboard" in refused(*TRAIN, *LOGGED)
    assert not Path("r").exists()


def test_a_log_that_cannot_be_written_stops_no_training(command: Command):
    pytest.importorskip("tensorboard")
    assert command(*TRAIN).code == 0
    Path("r/logs").write_text("mine")
    answer = command(*LONGER, *LOGGED)
    assert answer.code == 0 and len(expected()["train/loss"]) == 12
    assert answer.err.count("--log-to tensorboard: stopped (") == 1, answer.err
    assert "metrics.jsonl is complete" in answer.err and "Traceback" not in answer.err
