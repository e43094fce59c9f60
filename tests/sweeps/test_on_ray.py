"""Sweeps on Ray."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command

pytest.importorskip("ray")

WORDS = ("sweep", "c.yaml", "--seeds", "0:0", "--set", "train.lr=1e-3,1e30")
NUMBERS = ("values", "by_length", "seed", "trouble")


def numbers(name: str) -> list[dict]:
    groups = json.loads(Path(f"results/sweeps/{name}.json").read_text())["groups"]
    return [{key: run[key] for key in NUMBERS} for group in groups for run in group["runs"]]


def test_a_sweep_on_ray_ends_like_one_on_this_machine(here: Path, command: Command):
    """Bit for bit, a failure included, and Ray prints nothing."""
    line = [sys.executable, "-m", "toytrans", *WORDS, "--on", "ray", "--name", "ray"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    assert [
        line for line in lines if not re.match(r"[12]/2 train.lr=|results: |2 runs: seed 0", line)
    ] == []
    local = command(*WORDS, "--name", "local")
    assert local.out.replace("sweeps/local", "sweeps/ray") == done.stdout
    assert numbers("ray") == numbers("local")
    ours, theirs = (
        {path.parts[3:]: path.read_bytes() for path in Path("runs/sweeps", name).rglob("*.safet*")}
        for name in ("ray", "local")
    )
    assert ours == theirs and len(ours) >= 3
