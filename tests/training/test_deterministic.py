"""The same config on the same machine with as many threads is the same run, bit for bit: two fresh
processes, dropout on, evaluations in between, in bf16 and in fp32."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toytrans.training.checkpoint import load_checkpoint
from toytrans.training.run import read_records

CONFIG = """
data: {task: reverse, symbols: 20, train_length: [1, 12], batch_tokens: 1024, valid_examples: 60}
model: {d_model: 32, n_heads: 2, d_ff: 64, dropout: 0.2}
train: {max_steps: 12, eval_every: 3, log_every: 2, label_smoothing: 0.1}
"""

BOTH = """
import sys
from toytrans.cli import main

for precision in ("bf16", "fp32"):
    settings = ("--set", f"train.precision={precision}", "--set", "data.test_examples=5")
    sys.argv = ["toytrans", "train", "--config", "c.yaml", "--out", precision, *settings]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two processes with two threads, one after the other, each trained in both precisions."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for folder in folders:
        (folder / "c.yaml").write_text(CONFIG)
        done = subprocess.run(
            [sys.executable, "-c", BOTH],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    return folders


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_two_processes_train_the_same_model(twice, precision):
    runs = [folder / precision for folder in twice]
    tensors, records, environments = [], [], []
    for run in runs:
        tensors.append(
            {p.name: p.read_bytes() for p in run.glob("checkpoints/step-12/*.safetensors")}
        )
        kept = [{k: v for k, v in r.items() if k != "elapsed_s"} for r in read_records(run)]
        records.append(kept)
        environments.append(json.loads((run / "environment.json").read_text()))
    assert sum("valid_loss" in record for record in records[0]) == 4
    assert len(records[0]) == 8 and records[0] == records[1]
    assert tensors[0].keys() == {
        "weights.safetensors",
        "optimizer.safetensors",
        "random.safetensors",
    }
    assert tensors[0] == tensors[1]
    untrained, trained = (load_checkpoint(runs[0], step).weights for step in (9, 12))
    assert any(not untrained[name].equal(trained[name]) for name in trained), "it was learning"
    own = ("id", "started", "command")
    described = [{k: v for k, v in e.items() if k not in own} for e in environments]
    assert described[0] == described[1] and described[0]["threads"] == 2
