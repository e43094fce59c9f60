"""Whose code runs: what the command line or a config of the user's names, and what they trust, each
time anew. Each command here is a process of its own."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from conftest import tiny_yaml
from forked import COMMAND, Ended, Forked

import toytrans
from toytrans import user_code
from toytrans.data.open import open_dataset
from toytrans.errors import UserError

CONFIG = tiny_yaml(data={"task": "own.py:f"})

MARK = "from pathlib import Path\nPath('ran').touch()\n"
"""Code that leaves a trace when it runs."""

TASK = f"{MARK}def f(s): return s\n"


def toytrans_(*words: str, **environment: str) -> Ended:
    """A command in a process that knows nothing of those before it."""
    return Forked(COMMAND, *words, environment=os.environ | environment).ended()


def refusal(*words: str, **environment: str) -> str:
    """The one line of a command that is refused before it runs any code."""
    Path("ran").unlink(missing_ok=True)
    done = toytrans_(*words, **environment)
    assert done.code == 2 and done.out == "", done
    assert done.err.startswith("toytrans: ") and done.err.count("\n") == 1, done.err
    assert not Path("ran").exists(), "code has run"
    return done.err


def edit_config(run: Path, before: str, after: str) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    assert before in text
    config.write_text(text.replace(before, after))


@pytest.fixture(autouse=True)
def run(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with own code, in a home folder of its own."""
    (here / "home").mkdir()
    monkeypatch.setenv("HOME", str(here / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    (here / "own.py").write_text(TASK)
    done = toytrans_("train", "c.yaml", "--out", "r", "--set", "train.max_steps=2")
    assert done.code == 0, done.err
    assert (here / "ran").exists(), "what a config of the user's names runs"
    return here / "r"


def test_code_that_a_run_names_needs_trust_each_time(here: Path):
    remedy = "own.py:f: code that a run names runs with --trust-code alone (trust_code=True in"
    assert remedy in refusal("eval", "r")
    assert "--trust-code" in refusal("inspect-masks", "r")
    assert toytrans_("translate", "r", "1 2").code == 0, "it needs no task"
    doctor = toytrans_("doctor", "r")
    assert "data not read: own.py:f: code that a run names" in " ".join(doctor.out.split())
    assert not (here / "ran").exists()
    assert toytrans_("eval", "r", "--trust-code").code == 0
    assert (here / "ran").exists()
    assert not list((here / "home").rglob("*trust*")), "nothing is kept"
    for value in ("", "0", "1"):
        assert "--trust-code" in refusal("eval", "r", TOYTRANS_TRUST_CODE=value)


def test_a_helper_does_not_run_before_a_refusal(here: Path):
    (here / "own.py").write_text("from helper import f\n")
    (here / "helper.py").write_text("def f(s): return s\n")
    assert toytrans_("train", "c.yaml", "--out", "s", "--set", "train.max_steps=2").code == 0
    (here / "helper.py").write_text(TASK)
    assert "own.py:f: code that a run names" in refusal("eval", "s")


def test_a_module_is_no_place_of_code(here: Path, run: Path):
    (here / "lib").mkdir()
    (here / "lib" / "__init__.py").write_text(MARK)
    (here / "lib" / "t.py").write_text("def f(s): return s\n")
    remedy = (
        "'lib.t:f' names a module, not a file; name a file whose one line is `from lib.t import"
    )
    for words in (
        ("train", "c.yaml", "--set", "data.task=lib.t:f"),
        ("explain", "lib.t:f"),
        ("check", "--model", "lib.t:f"),
    ):
        assert remedy in refusal(*words)
    edit_config(run, f"{here}/own.py:f", "lib.t:f")
    assert remedy in refusal("eval", "r")
    assert remedy in refusal("eval", "r", "--trust-code")


def test_what_was_hashed_is_what_ran(here: Path):
    """A file that changes while it is run: the run names the bytes that ran."""
    again = "from pathlib import Path\nPath(__file__).write_text('changed = 1')\n" + TASK
    (here / "own.py").write_text(again)
    assert toytrans_("train", "c.yaml", "--out", "s", "--set", "train.max_steps=2").code == 0
    assert (here / "own.py").read_text() == "changed = 1"
    known = json.loads((here / "s" / "environment.json").read_text())["code_sha256"]
    assert known == {"data.task": hashlib.sha256(again.encode()).hexdigest()}


def test_the_runs_of_a_sweep_run_the_code_that_it_has_hashed(here: Path):
    """The file changes after the sweep has read it, and before its runs start."""
    later = f"{TASK}Path('changed').touch()\n"
    (here / "own.py").write_text(
        f"from pathlib import Path\nPath(__file__).write_text({later!r})\n{TASK}"
    )
    done = toytrans_("sweep", "c.yaml", "--out", "s", "--set", "train.max_steps=2")
    assert done.code == 0, done.err
    assert (here / "own.py").read_text() == later
    assert not (here / "changed").exists()


def test_a_resumed_run_cannot_bring_code_along(here: Path, run: Path):
    (here / "other.py").write_text(TASK)
    resume = ("train", "c.yaml", "--out", "r", "--resume", "--set", "train.max_steps=3")
    assert toytrans_(*resume).code == 0, "the config names its code"
    (here / "own.py").write_text("def f(s): return s\n")
    edit_config(run, "own.py:f", "other.py:g")
    assert "cannot resume with other settings" in refusal(*resume)


def test_python_asks_too(here: Path):
    run = toytrans.load("r", device="cpu")
    with pytest.raises(UserError, match="trust_code=True"):
        open_dataset(run.config, run.facts)
    run = toytrans.load("r", device="cpu", trust_code=True)
    assert open_dataset(run.config, run.facts).facts == run.facts


def test_trust_ends_with_its_block(here: Path):
    (here / "other.py").write_text(TASK)
    reference = user_code.absolute("other.py:f")
    with user_code.trusting(True):
        assert user_code.load(reference)([1]) == [1]
    with pytest.raises(UserError, match="trust_code=True"):
        user_code.load(reference)


def test_the_exit_of_a_signal_is_no_fault_of_the_code_that_runs(here: Path):
    (here / "own.py").write_text(
        "from toytrans.training.signals import exit_if_signalled\n"
        "def signalled(): exit_if_signalled([15])\n"
        "def leaving(): exit(15)\n"
    )
    for name, fault in (("signalled", None), ("leaving", "SystemExit: 15 (own.py:3)")):
        reference = user_code.absolute(f"own.py:{name}")
        user_code.trust([reference])
        with pytest.raises(SystemExit) as stop:
            user_code.load(reference)()
        assert user_code.fault_in_user_code(stop.value) == fault


def test_a_config_finds_the_code_beside_it_and_an_option_that_of_the_working_directory(here: Path):
    (here / "lab").mkdir()
    (here / "lab/own.py").write_text("def f(s): return s[::-1]\n")
    (here / "lab/c.yaml").write_text(CONFIG)
    train = ("train", "lab/c.yaml", "--set", "train.max_steps=2", "--out")
    assert toytrans_(*train, "beside").code == 0
    assert (
        toytrans_("train", "lab/c.yaml", "--out", "given", "--set", "data.task=own.py:f").code == 0
    )
    for run, folder in (("beside", here / "lab"), ("given", here)):
        assert f"{folder}/own.py:f" in (here / run / "config.yaml").read_text()
