"""A sweep that is killed, or that runs on a cluster, ends like one that runs undisturbed here.

    python scripts/same_sweep.py kills [--kills 5] [--seed 0]
    python scripts/same_sweep.py ray

kills: SIGKILL of all its processes at random moments, then the same command, until it ends.
ray: two local nodes with a core each; one node is killed while its trials run (needs extra `ray`).

The tables, every number in the results and the weights of every run must be equal.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONFIG = """\
data: {task: copy, symbols: 8, train_length: [1, 8], valid_examples: 100, test_examples: 100}
model: {d_model: 32, n_heads: 2, n_encoder_layers: 1, n_decoder_layers: 1, d_ff: 64}
train: {max_steps: STEPS, eval_every: 20, precision: fp32}
"""
WORDS = ("--seeds", "0:1", "--set", "model.positions=rotary,anchored")
MEASURED = ("--lengths", "1:20", "--examples", "200")
SECONDS_FOR_PROGRESS = 300.0


def command(name: str, *more: str) -> list[str]:
    words = ["sweep", "sweep.yaml", "--name", name, *WORDS, *MEASURED, *more]
    return [sys.executable, "-m", "toytrans", *words]


def run(name: str, *more: str) -> str:
    """The table that a sweep prints."""
    done = subprocess.run(command(name, *more), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def numbers(name: str) -> tuple[Any, dict[str, bytes]]:
    """The results of a sweep without what names it, and the weights of every run."""
    text = Path(f"results/sweeps/{name}.json").read_text().replace(f"sweeps/{name}", "sweeps/X")
    about = json.loads(text)
    for key in ("sweep", "date", "machine"):
        del about[key]
    weights = Path("runs/sweeps", name).glob("*/checkpoints/step-*/weights.safetensors")
    return about, {"/".join(path.parts[3:]): path.read_bytes() for path in weights}


def require_equal(first: str, second: str, tables: dict[str, str]) -> None:
    if tables[first] != tables[second]:
        raise SystemExit(f"tables differ:\n{tables[first]}\n{tables[second]}")
    (ours, our_weights), (theirs, their_weights) = numbers(first), numbers(second)
    if ours != theirs or our_weights != their_weights:
        raise SystemExit(f"{first} and {second}: numbers or weights differ")
    print(f"{second} is {first}: table, results and {len(our_weights)} checkpoints are equal")


def steps(name: str) -> int:
    """Training steps on record, of all runs together."""
    logs = Path("runs/sweeps", name).glob("*/metrics.jsonl")
    return sum(len(re.findall(r'"step"', path.read_text())) for path in logs)


def wait_for_progress(name: str, process: subprocess.Popen[Any]) -> None:
    """Wait until a sweep has recorded a step more, or has ended."""
    before, deadline = steps(name), time.monotonic() + SECONDS_FOR_PROGRESS
    while steps(name) <= before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)


def killed(name: str, kills: int, seed: int) -> str:
    """The table of a sweep that is killed so many times."""
    draw = random.Random(seed)
    for number in range(1, kills + 1):
        null = subprocess.DEVNULL
        with subprocess.Popen(
            command(name), stdout=null, stderr=null, start_new_session=True
        ) as process:
            wait_for_progress(name, process)
            time.sleep(draw.uniform(0, 2))
            ended = process.poll() is not None
            if not ended:
                os.killpg(process.pid, signal.SIGKILL)
        done = len(list(Path("runs/sweeps", name).glob("*/result.json")))
        reached = "it had ended" if ended else f"{steps(name)} records"
        print(f"kill {number}: {reached}, {done} of 4 runs done", flush=True)
    return run(name)


def on_ray(name: str) -> str:
    """The table of a sweep on two nodes, of which one is killed."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    line = command(name, "--on", "ray")
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        while len(list(Path("runs/sweeps", name).glob("*/checkpoints/step-*"))) < 3:
            if process.poll() is not None:
                raise SystemExit(f"{name}: {process.communicate()[1]}")
            time.sleep(0.2)
        wait_for_progress(name, process)
        cluster.remove_node(other, allow_graceful=False)
        print("one of two nodes is killed")
        out, err = process.communicate()
    cluster.shutdown()
    if process.returncode:
        raise SystemExit(f"{name}: exit code {process.returncode}\n{err}")
    noise = [line for line in err.splitlines() if not re.match(r"\d+/4 |results: ", line)]
    print(f"lines of Ray's own on the terminal: {len(noise)}", *noise, sep="\n  ")
    results = Path("runs/sweeps", name).glob("*/result.json")
    resumed = sum(json.loads(path.read_text())["cpu_s"] is None for path in results)
    print(f"{resumed} of 4 runs went on from a checkpoint")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("kills", "ray"))
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("sweep.yaml").write_text(CONFIG.replace("STEPS", str(given.steps)))
        tables = {"undisturbed": run("undisturbed")}
        if given.what == "kills":
            tables["killed"] = killed("killed", given.kills, given.seed)
            require_equal("undisturbed", "killed", tables)
        else:
            tables["on-ray"] = on_ray("on-ray")
            require_equal("undisturbed", "on-ray", tables)


if __name__ == "__main__":
    main()
