"""A sweep that is killed, or that runs on a cluster, ends like one that runs undisturbed here.

Its table, every number but the seconds, and the weights of every run are equal.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import tensors_of

pytestmark = pytest.mark.slow

CONFIG = """\
data: {task: copy, symbols: 8, train_length: [1, 8], valid_examples: 100, test_examples: 100}
model: {positions: anchored, norm: pre, d_model: 32, n_heads: 2, n_encoder_layers: 1, d_ff: 64}
train: {max_steps: 200, eval_every: 20, precision: fp32}
"""
WORDS = ("--seeds", "0:1", "--set", "train.lr=1e-3,2e-3,1e30")
WORDS += ("--lengths", "1:20", "--examples", "200")
KILLS, SECONDS_FOR_PROGRESS = 5, 300.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a sweep, and what it printed."""
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "sweep.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, run("undisturbed")


def line(name: str, *more: str) -> list[str]:
    words = ("sweep", "sweep.yaml", "--out", f"runs/sweeps/{name}", *WORDS, *more)
    return [sys.executable, "-m", "toytrans", *words]


def run(name: str, *more: str) -> str:
    """What a sweep prints but for its name. The runs of the largest rate diverge."""
    done = subprocess.run(line(name, *more), capture_output=True, text=True)
    assert done.returncode == 1 and "diverged" in done.stdout, done.stderr
    return done.stdout.replace(f"sweeps/{name}/", "")


def numbers(name: str) -> tuple[list[Any], dict[str, Any]]:
    """The rows of a sweep without its name and the seconds, and the last tensors of every run."""
    folder = Path("runs/sweeps", name)
    table = json.loads((folder / "table.json").read_text().replace(str(folder), ""))
    metric = table["columns"].index("metric")
    rows = [row for row in table["rows"] if row[metric] != "seconds"]
    runs = [path.parent for path in folder.glob("*/checkpoints.json")]
    assert len(runs) == 4
    return rows, {path.name: tensors_of(path) for path in runs}


def steps(name: str) -> int:
    """Records, of all runs together."""
    logs = Path("runs/sweeps", name).glob("*/metrics.jsonl")
    return sum(len(re.findall(r'"step"', path.read_text())) for path in logs)


def wait_for_progress(name: str, process: subprocess.Popen[Any]) -> None:
    """Wait until a sweep has recorded a step more, or has ended."""
    before, deadline = steps(name), time.monotonic() + SECONDS_FOR_PROGRESS
    while steps(name) <= before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_sweep_that_is_killed_five_times_gives_the_same_table(undisturbed, monkeypatch):
    """SIGKILL of all its processes at random moments, then the same command, until it ends."""
    folder, table = undisturbed
    monkeypatch.chdir(folder)
    draw, killed = random.Random(0), 0
    for _ in range(KILLS):
        null = subprocess.DEVNULL
        with subprocess.Popen(
            line("killed"), stdout=null, stderr=null, start_new_session=True
        ) as process:
            wait_for_progress("killed", process)
            time.sleep(draw.uniform(0, 1))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                killed += 1
    assert killed >= 3, "it ended too soon"
    assert run("killed") == table
    assert numbers("undisturbed") == numbers("killed")


def test_two_ray_nodes_of_which_one_is_killed_give_the_same_table(undisturbed, monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    folder, table = undisturbed
    monkeypatch.chdir(folder)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        other = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        environment = os.environ | {"RAY_ADDRESS": cluster.address}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(line("on-ray", "--on", "ray"), env=environment, **streams) as process:
            while len(list(Path("runs/sweeps/on-ray").glob("*/checkpoints/*.safetensors"))) < 3:
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.2)
            wait_for_progress("on-ray", process)
            cluster.remove_node(other, allow_graceful=False)
            out, err = process.communicate()
    finally:
        cluster.shutdown()
    assert process.returncode == 1, err
    assert out.replace("sweeps/on-ray/", "") == table
    known = r"\d+/6 |written: |runs/sweeps/on-ray: 6 runs"
    assert [text for text in err.splitlines() if not re.match(known, text)] == []
    assert numbers("undisturbed") == numbers("on-ray")
