"""`toytrans runs`: what is listed, and what --prune deletes and keeps."""

import contextlib
import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command, Screen, call, tiny_yaml

from toytrans.sealed import seal
from toytrans.training import owned


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "c.yaml").write_text(tiny_yaml())
    assert call("train", str(folder / "c.yaml"), "--out", str(folder / "run")) == 0
    return folder / "run"


@pytest.fixture
def runs(trained: Path, here: Path) -> Path:
    """Runs in every state, the last of the list the oldest."""
    states = ("good", "sweeps/lr/a", "boards/b/c", "started", "damaged", "locked")
    for age, name in enumerate(states):
        path = Path(shutil.copytree(trained, here / "runs" / name))
        if name == "started":
            shutil.rmtree(path / "checkpoints")
        if name == "damaged":
            (path / "data.json").write_text("{")
        for file in path.rglob("*"):
            os.utime(file, (1e9 - age, 1e9 - age))
    (here / "runs/sweeps/lr/.toytrans-lock").touch()  # which a sweep leaves beside its runs
    (here / "runs/sweeps/lr/sweep.json").write_text("{}")
    (here / "runs/lone").mkdir()
    (here / "runs/lone/config.yaml").write_text("of: another program")
    return here / "runs"


@pytest.fixture
def answers(command: Command, monkeypatch: pytest.MonkeyPatch):
    """Runs `toytrans runs --prune` on a terminal where somebody types."""

    def run(typed: str) -> str:
        typing = Screen(typed)
        monkeypatch.setattr(sys, "stdin", typing)
        answer = command("runs", "--prune")
        assert answer.code == 0, answer.err
        return answer.out

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_every_run_is_listed_with_its_state(runs, command: Command, monkeypatch):
    with open(runs / "locked/.toytrans-lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listed = json.loads(command("runs", "--json").out)
        monkeypatch.setenv("COLUMNS", "200")
        lines = command("runs").out.splitlines()
    assert listed["folder"] == "runs"
    states = {run["run"]: run["state"] for run in listed["runs"]}
    assert states == {
        "runs/good": "finished",
        "runs/sweeps/lr/a": "finished",
        "runs/boards/b/c": "finished",
        "runs/started": "unfinished",
        "runs/damaged": "damaged",
        "runs/locked": "being written",
    }, "the newest first"
    assert list(states)[0] == "runs/good" and list(states)[-1] == "runs/locked"
    files = contents(runs / "good")
    good, damaged = listed["runs"][0], listed["runs"][4]
    assert good["bytes"] == sum(map(len, files.values())) and good["step"] == 6
    assert 0 <= good["exact_match"] <= 1 and good["age_s"] > 86400
    assert damaged["problem"].startswith("runs/damaged/data.json: damaged")
    assert (
        len(lines) == 8
        and "free-running" in lines[7]
        and " d " in lines[1]
        and "0.2 MB" in lines[1]
    )
    assert "unfinished, no checkpoint" in lines[4] and "damaged: data.json: damaged" in lines[5]


def test_a_planted_fault_is_named(runs, command: Command, answers, monkeypatch):
    for name, fault in (("good", "no_causal"), ("started", seal("no_norm", bytes(8)))):
        config = runs / name / "config.yaml"
        config.write_text(config.read_text().replace("fault: null", f"fault: {fault}"))
    monkeypatch.setenv("COLUMNS", "200")
    listed = {run["run"]: run for run in json.loads(command("runs", "--json").out)["runs"]}
    assert listed["runs/good"]["fault"] == "no_causal"
    assert listed["runs/boards/b/c"]["fault"] is None
    for out in (command("runs").out, answers("n\n" * 6)):
        (good,) = re.findall("runs/good  .*", out)
        (started,) = re.findall("runs/started  .*", out)
        assert "finished; broken on purpose: no_causal" in good
        assert "unfinished, no checkpoint; a sealed exercise" in started
        assert "no_norm" not in out and out.count("on purpose") == 1


def test_a_run_without_its_config_is_damaged(runs, command: Command):
    (runs / "good/config.yaml").unlink()
    listed = json.loads(command("runs", "--json").out)["runs"]
    good = next(run for run in listed if run["run"] == "runs/good")
    assert good["state"] == "damaged" and "lacks" in good["problem"]


def test_what_runs_refuses(here, refused, command: Command, monkeypatch):
    assert "runs: no such folder" in refused("runs")
    assert "c.yaml: this is a file" in refused("runs", "c.yaml")
    assert "give one" in refused("runs", "--json", "--prune")
    (here / "runs").mkdir()
    assert command("runs") == (0, "", "runs: no runs here\n")
    assert json.loads(command("runs", "--json").out)["runs"] == []


def test_prune_without_a_terminal_deletes_nothing(runs, refused, monkeypatch):
    before = contents(runs)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    assert "no terminal" in refused("runs", "--prune")
    assert contents(runs) == before


def test_prune_takes_no_answer_that_was_typed_before_its_question(runs):
    import pty

    before = contents(runs)
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "toytrans", "runs", "--prune"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    out, answers = b"", iter([b"n\ny\n", b"q\n"])
    with contextlib.suppress(OSError):  # the other end is closed
        while chunk := os.read(ours, 4096):
            out += chunk
            if out.endswith(b"[y/N/q] "):
                os.write(ours, next(answers, b"q\n"))
    assert process.wait() == 0
    os.close(ours)
    assert contents(runs) == before and out.count(b"[y/N/q]") == 2


@pytest.mark.parametrize("typed", ["", "\n\n\n\n\n\n", "q\n", "n\nno\nx\nN\n \n\n", "Q\ny\n"])
def test_prune_deletes_nothing_that_was_not_asked_for(runs, answers, typed):
    before = contents(runs)
    answers(typed)
    assert contents(runs) == before


def test_prune_deletes_what_training_wrote_and_nothing_else(runs, answers):
    """In the order of the questions: locked, damaged, started, boards, sweeps, good."""
    (runs / "boards/b/c/result.json").write_text("{}")
    (runs / "sweeps/lr/a/checkpoints/step-6/note.txt").write_text("the one of the paper")
    os.utime(runs / "good/config.yaml")
    with open(runs / "locked/.toytrans-lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = contents(runs / "locked") | contents(runs / "good")
        out = answers("y\ny\ny\ny\nn\n")
    assert "kept: a training is writing here" in out
    assert contents(runs / "locked") | contents(runs / "good") == kept
    assert not (runs / "damaged").exists() and not (runs / "started").exists()
    assert os.listdir(runs / "boards/b/c") == ["result.json"] and "kept result.json" in out
    paper = runs / "sweeps/lr/a"
    assert sorted(os.listdir(paper)) == ["checkpoints", "config.yaml", "data.json"]
    assert os.listdir(paper / "checkpoints") == ["step-6"], "with what it takes to read it"
    assert len(os.listdir(paper / "checkpoints/step-6")) == 5
    assert "kept checkpoints/step-6, config.yaml, data.json" in out
    assert (runs / "lone/config.yaml").read_text() == "of: another program"


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "checkpoints/step-6"])
def test_prune_deletes_nothing_behind_a_link(runs, here, answers, name):
    for other in runs.iterdir():
        if other.name != "good":
            shutil.rmtree(other)
    entry, disk = runs / "good" / name, here / "disk"
    entry.rename(disk)
    entry.symlink_to(disk)
    before = contents(disk) if disk.is_dir() else {"": disk.read_bytes()}
    assert f"kept{':' if name == 'checkpoints' else ''} " in answers("y\n").partition("[y/N/q]")[2]
    assert before == (contents(disk) if disk.is_dir() else {"": disk.read_bytes()})
    assert entry.is_symlink()
    if name.startswith("checkpoints"):
        assert (runs / "good/config.yaml").exists(), "what is kept can be read"


def test_a_run_that_was_being_replaced_comes_back(runs, trained, answers):
    """A crash after --overwrite has set a run aside, before the first checkpoint of the new."""
    run = runs / "locked"
    before = contents(run)
    owned.set_aside(run)
    shutil.copy(trained / "config.yaml", run)
    shutil.copy(trained / "data.json", run)
    assert "kept the run before it, which is back" in answers("\n\n\n\n\ny\n")
    assert contents(run) == before


def test_a_copy_without_its_lock_that_cannot_be_read_is_kept(runs, answers):
    """A folder that may be another program's."""
    shutil.rmtree(runs / "locked")
    (runs / "damaged/.toytrans-lock").unlink()
    before = contents(runs)
    assert "kept: runs/damaged/data.json: damaged" in answers("y\nq\n")
    assert contents(runs) == before


def test_a_run_that_an_earlier_version_compiled_is_read(trained, here: Path, command: Command):
    """It is as good as before; in a new config the key is an error."""
    for name, value in (("old", "true"), ("off", "false"), ("odd", "3")):
        config = Path(shutil.copytree(trained, here / "runs" / name)) / "config.yaml"
        config.write_text(config.read_text().replace("\ntrain:", f"\ntrain:\n  compile: {value}"))
    listed = json.loads(command("runs", "--json").out)["runs"]
    states = {Path(run["run"]).name: run["state"] for run in listed}
    assert states == {"old": "finished", "off": "finished", "odd": "damaged"}

    said = r"runs/old/config\.yaml:\d+: train\.compile: true is ignored; .*\n"
    for words in (
        ("eval", "{}"),
        ("translate", "--run", "{}", "1 2"),
        ("check", "{}", "--only", "m"),
    ):
        old, off = (command(*(w.format(f"runs/{n}") for w in words)) for n in ("old", "off"))
        assert (old.code, old.out) == (off.code, off.out.replace("runs/off", "runs/old"))
        assert len(re.findall(said, old.err)) == 1 and "ignored" not in off.err, old.err

    resume = ("--out", "runs/old", "--resume", "--set", "train.max_steps=8")
    resumed = command("train", "c.yaml", *resume)
    assert resumed.code == 0 and re.search(said, resumed.err), resumed.err
    assert "ignored" not in command("eval", "runs/old").err, "the config was written anew"
    (here / "new.yaml").write_text(tiny_yaml(train={"compile": True}))
    refused = command("train", "new.yaml")
    assert refused.code == 2 and "compile: no longer exists" in refused.err
    assert "train.cuda_graphs" in refused.err and refused.err.startswith("toytrans: new.yaml:")
