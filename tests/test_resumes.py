"""A run that was killed and resumed is the run that was not, bit for bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import call

from toytrans.training.checkpoint import load_checkpoint, saved_steps
from toytrans.training.run import read_records
from toytrans.training.trainer import Trainer

CONFIG = """
data: {task: reverse, symbols: 9, train_length: [1, 8], batch_tokens: 512, valid_examples: 50}
model: {d_model: 16, n_heads: 2, d_ff: 32, dropout: 0.2}
train: {max_steps: 24, eval_every: 6, log_every: 4, precision: fp32, accumulate: 2}
"""

# Kills itself with SIGKILL in the middle of writing a file of the checkpoint of step 18.
KILLED = """
import os, signal, sys
from pathlib import Path
from toytrans.cli import main
from toytrans.training import checkpoint

write = checkpoint.write_file

def write_half(path: Path, raw: bytes) -> None:
    if path.parent.name == ".step-18" and path.name == "optimizer.safetensors":
        path.write_bytes(raw[: len(raw) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, raw)

checkpoint.write_file = write_half
main()
"""


def toytrans(*words: str, code: str | None = None, folder: Path) -> subprocess.CompletedProcess:
    how = ["-c", code] if code else ["-m", "toytrans"]
    return subprocess.run(
        [sys.executable, *how, *words], cwd=folder, capture_output=True, text=True, timeout=120
    )


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


def test_killed_in_the_middle_of_a_checkpoint(tmp_path, straight):
    (tmp_path / "c.yaml").write_text(CONFIG)
    command = ("train", "--config", "c.yaml", "--out", "run")
    killed = toytrans(*command, code=KILLED, folder=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    run = tmp_path / "run"
    assert saved_steps(run)[-1] == 12
    assert (run / "checkpoints" / ".step-18").is_dir(), "a half-written draft is left"
    assert read_records(run)[-1]["step"] == 18, "records go beyond the checkpoint"
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "lo')
    resumed = toytrans(*command, "--resume", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed at step 12" in resumed.stderr
    assert_same(run, straight)
    assert not (run / "checkpoints" / ".step-18").exists()


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
