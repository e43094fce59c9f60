"""`train --log-to`: logs that the libraries' own readers read, resumes, failures, no network."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Command

from toytrans.training import loggers

pytestmark = pytest.mark.usefixtures("here")
TRAIN = ("train", "c.yaml", "--out", "r")
LONGER = (*TRAIN, "--resume", "--set", "train.max_steps=12")

Logged = dict[str, dict[int, float]]
"""Values by key and step."""


def records(run: str = "r") -> list[dict]:
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def expected(run: str = "r") -> Logged:
    values: Logged = {}
    for record in records(run):
        for key, value in record.items():
            if key not in ("step", "elapsed_s"):
                split, name = ("valid", key[6:]) if key.startswith("valid_") else ("train", key)
                values.setdefault(f"{split}/{name}", {})[record["step"]] = pytest.approx(
                    value, rel=1e-6
                )
    return values


def timeless(run: str) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "elapsed_s"} for record in records(run)]


def of_run(run: str = "r") -> str:
    return json.loads(Path(run, "environment.json").read_text())["id"]


def once(points: Iterator[tuple[str, int, float]]) -> Logged:
    """Points by key and step; one that is there twice is a failure."""
    values: Logged = {}
    for key, step, value in points:
        if key != "train/elapsed_s":
            assert step not in values.setdefault(key, {}), (key, step, "twice")
            values[key][step] = value
    return values


def of_tensorboard(id: str) -> Logged:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(f"r/logs/tensorboard/{id}", size_guidance={"scalars": 0})
    events.Reload()
    keys = events.Tags()["scalars"]
    return once((key, e.step, e.value) for key in keys for e in events.Scalars(key))


def of_mlflow(id: str) -> Logged:
    from mlflow import MlflowClient

    client = MlflowClient(Path("r/logs/mlflow").resolve().as_uri())
    (experiment,) = [e for e in client.search_experiments() if e.name == "toytrans"]
    (run,) = client.search_runs([experiment.experiment_id], f"tags.toytrans_id = '{id}'")
    assert run.info.status == "FINISHED" and run.data.params["train.max_steps"]
    history = (client.get_metric_history(run.info.run_id, key) for key in run.data.metrics)
    return once((m.key, m.step, m.value) for metrics in history for m in metrics)


def of_wandb(id: str) -> Logged:
    """W&B has no reader in Python any more: the blocks of its file, and its own messages."""
    from wandb.proto import wandb_internal_pb2 as messages

    points = []
    for path in sorted(Path("r/logs/wandb").glob(f"offline-run-*-{id}/run-{id}.wandb")):
        raw, at, parts = path.read_bytes(), 7, b""
        while at + 7 <= len(raw):
            if 2**15 - at % 2**15 < 7:
                at += 2**15 - at % 2**15
                continue
            size, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
            parts += raw[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):  # whole, or the last part
                message, parts = messages.Record.FromString(parts), b""
                items = {"/".join(i.nested_key) or i.key: i for i in message.history.item}
                for key, item in items.items():
                    if not key.startswith("_"):
                        step = int(items["_step"].value_json)
                        points.append((key, step, json.loads(item.value_json)))
    return once(iter(points))


READERS: dict[str, Callable[[str], Logged]] = {
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
    "mlflow": of_mlflow,
}


@pytest.fixture(params=READERS)
def logger(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return request.param


def test_a_log_holds_what_metrics_hold_through_resumes(logger, command: Command):
    """The second resume goes on from step 8 once more, as after a crash."""
    read = READERS[logger]
    assert command(*TRAIN, "--log-to", logger).err.count("--log-to") == 0
    id = of_run()
    assert read(id) == expected()
    assert command(*LONGER, "--log-to", logger).code == 0
    assert of_run() == id and read(id) == expected()
    Path("r/checkpoints/step-12.safetensors").unlink()
    assert command(*LONGER, "--log-to", logger).code == 0
    assert read(id) == expected() and len(expected()["train/loss"]) == 12


def test_a_log_that_begins_late_holds_all_records(command: Command):
    pytest.importorskip("tensorboard")
    assert command(*TRAIN).code == 0 and not Path("r/logs").exists()
    assert command(*LONGER, "--log-to", "tensorboard").code == 0
    assert of_tensorboard(of_run()) == expected() and len(expected()["train/loss"]) == 12


def test_loggers_change_no_number(command: Command):
    names = [name for name in READERS if loggers.importlib.util.find_spec(name)]
    assert command(*TRAIN, *(f"--log-to={name}" for name in names)).code == 0
    assert command("train", "c.yaml", "--out", "plain").code == 0
    assert timeless("r") == timeless("plain")


def test_an_unknown_logger_and_a_missing_library_are_refused(refused, monkeypatch):
    assert "did you mean tensorboard?" in refused(*TRAIN, "--log-to", "tensorbord")
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "pip install wandb" in refused(*TRAIN, "--log-to", "wandb")
    assert not Path("r").exists()


@pytest.mark.parametrize("harm", ["file", "link"])
def test_a_logger_that_cannot_write_stops_no_training(command: Command, harm, tmp_path):
    pytest.importorskip("tensorboard")
    assert command(*TRAIN).code == 0
    if harm == "file":
        Path("r/logs").write_text("mine")
    else:
        (tmp_path / "elsewhere").mkdir()
        Path("r/logs").symlink_to(tmp_path / "elsewhere")
    answer = command(*LONGER, "--log-to", "tensorboard")
    assert answer.code == 0 and len(records()) == 12
    assert answer.err.count("toytrans: ") == 0 and answer.err.count("--log-to") == 1
    assert "--log-to tensorboard: stopped (" in answer.err and "is complete" in answer.err
    assert not list((tmp_path / "elsewhere").glob("*")) and Path("r/logs").exists()


@pytest.mark.parametrize("harm", ["raises", "hangs"])
def test_a_logger_that_fails_halfway_stops_no_training(command: Command, monkeypatch, harm):
    """A full disk comes out as an OSError; a disk of a network may just not answer."""
    pytest.importorskip("tensorboard")

    @contextmanager
    def failing(run: loggers.LoggedRun) -> Iterator[loggers.Log]:
        def log(record: dict) -> None:
            if record["step"] == 3:
                if harm == "hangs":
                    time.sleep(60)
                raise OSError(28, "No space left on device")

        yield log

    monkeypatch.setitem(loggers.OPEN, "tensorboard", failing)
    monkeypatch.setattr(loggers, "SECONDS_BEFORE_NOTICE", 0.1)
    monkeypatch.setattr(loggers, "SECONDS_TO_END", 0.3)
    answer = command(*TRAIN, "--log-to", "tensorboard")
    assert answer.code == 0 and len(records()) == 6
    reason = {"raises": "No space left on device", "hangs": "has not ended after"}[harm]
    assert reason in answer.err and answer.err.count("--log-to") == 1
    assert ("waiting for tensorboard" in answer.err) == (harm == "hangs")


OFFLINE = """
import sys

def hook(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
        place = str(args[1] if event != "socket.getaddrinfo" else args[0])
        if "127.0.0.1" not in place and "localhost" not in place and not place.startswith("/"):
            print("NETWORK", event, place, file=sys.stderr)

sys.addaudithook(hook)
from toytrans.cli import main
main()
"""


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_no_logger_connects_to_a_network(name):
    """Python's sockets are watched. W&B's own process is in Go: any request of it would go to the
    proxy that it is given."""
    pytest.importorskip(name)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "http_proxy"), url)
        own = {name: value for name, value in os.environ.items() if "WANDB" not in name}
        environment = own | proxies | {"WANDB_API_KEY": "x" * 40, "WANDB_MODE": "online"}
        line = [sys.executable, "-P", "-c", OFFLINE, *TRAIN, "--log-to", name]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert done.returncode == 0 and "NETWORK" not in done.stderr, done.stderr
    assert "--log-to" not in done.stderr, done.stderr
    assert READERS[name](of_run()) == expected()
