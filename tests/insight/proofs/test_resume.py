"""A run that a signal ended and that was resumed is the run that was not, bit for bit; what kills
cost is in test_crashes.py."""

import os
import signal
from pathlib import Path

import pytest
import torch
from conftest import call

from toytrans.training.checkpoint import load_checkpoint
from toytrans.training.run import read_records
from toytrans.training.trainer import Trainer

CONFIG = """
data: {task: reverse, symbols: 9, train_length: [1, 8], batch_tokens: 512, valid_examples: 50,
  test_examples: 20}
model: {d_model: 16, n_heads: 2, d_ff: 32, dropout: 0.2}
train: {max_steps: 24, eval_every: 6, log_every: 4, precision: fp32, accumulate: 2}
"""


def everything(run: Path) -> tuple[dict[str, torch.Tensor], list[dict]]:
    checkpoint = load_checkpoint(run, 24)
    tensors = {
        f"{part}/{name}": tensor
        for part in ("weights", "optimizer", "random")
        for name, tensor in getattr(checkpoint, part).items()
    }
    records = [{k: v for k, v in r.items() if k != "elapsed_s"} for r in read_records(run)]
    return tensors, records


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("straight")
    (folder / "c.yaml").write_text(CONFIG)
    config, run = str(folder / "c.yaml"), str(folder / "run")
    assert call("train", "--config", config, "--out", run) == 0
    return folder / "run"


def assert_same(ours: Path, theirs: Path) -> None:
    (tensors, records), (expected, expected_records) = everything(ours), everything(theirs)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected[name]), name
    assert records == expected_records
    assert [record["step"] for record in records] == [4, 6, 8, 12, 16, 18, 20, 24]


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 9), (signal.SIGTERM, 8)])
def test_a_signal_saves_and_says_how_to_go_on(
    tmp_path, monkeypatch, command, straight, number, step
):
    """In step 9, between two records and two checkpoints; in step 8, which makes a record."""
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)
    take_step = Trainer._step

    def interrupted(self, batches):
        if self.progress.step == step - 1:
            os.kill(os.getpid(), number)
        take_step(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        stopped = command("train", "--config", "c.yaml", "--out", "run")
    assert stopped.code == 128 + number
    line = stopped.err.splitlines()[-1]
    expected = f"stopped at step {step} and saved; go on with: toytrans train --config c.yaml"
    assert line.startswith(expected) and line.endswith("--out run --resume")
    resumed = command(*line.partition("toytrans ")[2].split())
    assert resumed.code == 0 and f"resumed at step {step}" in resumed.err
    assert_same(tmp_path / "run", straight)
