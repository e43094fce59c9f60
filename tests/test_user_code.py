"""Whose code runs: what the command line or a config of the user's names, and what they trust, each
time anew."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from conftest import Command, tiny_yaml

CONFIG = tiny_yaml(data={"task": "own.py:f"}, train={"max_steps": 2})

MARK = "from pathlib import Path\nPath('ran').touch()\n"
"""Code that leaves a trace when it runs."""

TASK = f"{MARK}def f(s): return s\n"


@pytest.fixture(autouse=True)
def own(here: Path, command: Command) -> Path:
    """A run with own code."""
    (here / "own.py").write_text(TASK)
    done = command("train", "c.yaml", "--out", "r")
    assert done.code == 0, done.err
    assert (here / "ran").exists(), "what a config of the user's names runs"
    (here / "ran").unlink()
    return here / "r"


def edit_config(run: Path, before: str, after: str) -> None:
    for name in ("config.yaml", "resolved.yaml"):
        text = (run / name).read_text()
        assert before in text
        (run / name).write_text(text.replace(before, after))


def test_code_that_a_run_names_needs_trust_each_time(command: Command, refused):
    remedy = "own.py:f: code that a run names runs with --trust-code alone (trust_code=True in"
    assert remedy in refused("eval", "r")
    assert remedy in refused("inspect-masks", "r")
    assert command("translate", "r", "1 2").code == 0, "it needs no task"
    assert "data not read own.py:f: code that a run" in " ".join(command("doctor", "r").out.split())
    assert not Path("ran").exists()
    assert command("eval", "r", "--trust-code").code == 0
    assert Path("ran").exists()
    assert remedy in refused("eval", "r"), "nothing is kept"


def test_a_module_is_no_place_of_code(here: Path, own: Path, refused):
    (here / "lib").mkdir()
    (here / "lib" / "__init__.py").write_text(MARK)
    (here / "lib" / "t.py").write_text("def f(s): return s\n")
    remedy = "'lib.t:f' names a module, not a file; name a file whose one line is `from lib.t"
    edit_config(own, f"{here}/own.py:f", "lib.t:f")
    for words in (
        ("train", "c.yaml", "--set", "data.task=lib.t:f"),
        ("explain", "lib.t:f"),
        ("check", "--model", "lib.t:f"),
        ("eval", "r", "--trust-code"),
    ):
        assert remedy in refused(*words)
    assert not Path("ran").exists()


def test_what_was_hashed_is_what_ran(command: Command):
    """A file that changes while it is run: the run has the bytes that ran."""
    later = f"{TASK}Path('changed').touch()\n"
    again = f"from pathlib import Path\nPath(__file__).write_text({later!r})\n{TASK}"
    Path("own.py").write_text(again)
    assert command("train", "c.yaml", "--out", "s").code == 0
    assert Path("own.py").read_text() == later
    known = json.loads(Path("s/environment.json").read_text())["code_sha256"]
    assert known == {"data.task": hashlib.sha256(again.encode()).hexdigest()}
    assert not Path("changed").exists()


def test_a_resumed_run_cannot_bring_code_along(own: Path, command: Command, refused):
    Path("other.py").write_text(TASK)
    resume = ("train", "c.yaml", "--out", "r", "--resume", "--set", "train.max_steps=3")
    assert command(*resume).code == 0, "the config names its code"
    os.remove("ran")
    Path("own.py").write_text("def f(s): return s\n")
    edit_config(own, "own.py:f", "other.py:g")
    assert "cannot resume with other settings" in refused(*resume)
    assert not Path("ran").exists()


def test_a_config_finds_the_code_beside_it_and_an_option_that_of_the_working_directory(
    here: Path, command: Command
):
    (here / "lab").mkdir()
    (here / "lab/own.py").write_text("def f(s): return s[::-1]\n")
    (here / "lab/c.yaml").write_text(CONFIG)
    for run, folder, more in (
        ("beside", here / "lab", ()),
        ("given", here, ("--set", "data.task=own.py:f")),
    ):
        assert command("train", "lab/c.yaml", "--out", run, *more).code == 0
        assert f"{folder}/own.py:f" in (here / run / "config.yaml").read_text()
