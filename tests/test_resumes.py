"""A run that was killed and resumed is the run that was not, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from toytrans.training.checkpoint import load_checkpoint, saved_steps
from toytrans.training.run import read_records

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
    done = toytrans("train", "--config", "c.yaml", "--out", "run", folder=folder)
    assert done.returncode == 0, done.stderr
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
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, straight, number, step):
    """In step 9, between two records and two checkpoints; in step 8, which makes a record."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    code = f"""
import os
from toytrans.cli import main
from toytrans.training.trainer import Trainer
step = Trainer._step
def interrupted(self, batches):
    if self.progress.step == {step} - 1:
        os.kill(os.getpid(), {int(number)})
    step(self, batches)
Trainer._step = interrupted
main()
"""
    command = ("train", "--config", "c.yaml", "--out", "run")
    stopped = toytrans(*command, code=code, folder=tmp_path)
    assert stopped.returncode == 128 + number
    line = stopped.stderr.splitlines()[-1]
    expected = f"stopped at step {step} and saved; go on with: toytrans train --config c.yaml"
    assert line.startswith(expected) and line.endswith("--out run --resume")
    resumed = toytrans(*line.partition("toytrans ")[2].split(), folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed at step {step}" in resumed.stderr
    assert_same(tmp_path / "run", straight)


def test_a_raised_limit_goes_on_and_nothing_derived_changes(tmp_path):
    config = CONFIG.replace("max_steps: 24, eval_every: 6", "max_steps: 6")
    (tmp_path / "c.yaml").write_text(config)
    command = ("train", "--config", "c.yaml", "--out", "run")
    assert toytrans(*command, folder=tmp_path).returncode == 0
    before = (tmp_path / "run" / "config.yaml").read_text()
    more = (*command, "--set", "train.max_steps=9", "--resume")
    again = toytrans(*more, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    after = (tmp_path / "run" / "config.yaml").read_text()
    assert after == before.replace("max_steps: 6", "max_steps: 9")
    assert read_records(tmp_path / "run")[-1]["step"] == 9


def test_resuming_nothing_starts_at_step_zero_and_says_so(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    done = toytrans(
        *("train", "--config", "c.yaml", "--resume", "--set", "train.max_steps=1"), folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "no checkpoint to resume from; starting at step 0" in done.stderr
    assert json.loads((tmp_path / "runs/c/metrics.jsonl").read_text())["step"] == 1
    assert os.listdir(tmp_path / "runs") == ["c"]
