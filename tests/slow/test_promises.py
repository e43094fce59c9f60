"""Every config keeps the promise in its header: exact match on the test data, and wall seconds.

The command of the header is run in full, start-up included. Other work on the machine breaks the
promise of seconds.
"""

import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from forked import COMMAND
from scan_grammar import scan_lines
from test_documented_commands import CONFIGS, promise_of

pytestmark = pytest.mark.slow


def output_of(*words: str) -> str:
    """Standard output of a command that must succeed, with as many threads as a user has."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-P", "-c", COMMAND, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_config_keeps_its_promise(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("configs").symlink_to(ROOT / "configs")
    if config.stem == "scan_simple":  # its simple split is a random fifth for the test
        lines = scan_lines()
        random.Random(0).shuffle(lines)
        Path("TRAIN").write_text("\n".join(lines[4182:]) + "\n")
        Path("TEST").write_text("\n".join(lines[:4182]) + "\n")
    line = re.search(r"^# run: +toytrans (.*)$", config.read_text(), re.MULTILINE)
    assert line
    promise, began = promise_of(config), time.monotonic()
    output_of(*shlex.split(line[1]))
    seconds = time.monotonic() - began
    found = json.loads(output_of("eval", f"runs/{config.stem}", "--json"))["parts"]
    assert found["in_range"]["free_exact_match"] >= promise.in_range
    if promise.beyond is not None:
        assert found["beyond"]["free_exact_match"] >= promise.beyond
    assert seconds <= promise.seconds
