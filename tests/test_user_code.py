"""Whose code runs: that which the user named or has trained with, not that which a run names."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command, tiny_yaml

import toytrans
from toytrans import user_code
from toytrans.data import open_source
from toytrans.errors import UserError

CONFIG = tiny_yaml(data={"task": "own.py:f"})

MARK = "from pathlib import Path\nPath('ran').touch()\ndef f(s): return s\n"
"""Code that leaves a trace when it runs."""


@pytest.fixture(autouse=True)
def strangers_run(here: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> Path:
    """A run whose code this user has not named: trained, then forgotten."""
    monkeypatch.setenv("XDG_STATE_HOME", str(here.parent / "state"))
    monkeypatch.setattr(user_code, "_trusted", set())
    (here / "own.py").write_text(MARK)
    assert command("train", "c.yaml", "--out", "r").code == 0
    assert (here / "ran").exists()
    forget(here, monkeypatch)
    return here / "r"


def forget(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process, or another user, knows."""
    user_code._trusted.clear()
    user_code._files.clear()
    (here / "ran").unlink(missing_ok=True)


def test_ones_own_run_needs_no_flag(command: Command, here: Path):
    assert command("eval", "r").code == 0
    assert (here / "ran").exists()


def test_a_strangers_run_is_refused_until_it_is_trusted(
    refused: Callable[..., str], command: Command, here: Path
):
    (here.parent / "state" / "toytrans" / "trusted").unlink()
    assert "own.py:f: code that a run names" in refused("eval", "r")
    assert "--trust-code" in refused("inspect-masks", "r")
    assert command("translate", "r", "1 2").code == 0
    shown = " ".join(command("doctor", "r").out.split())
    assert "data not read: own.py:f: code that a run names" in shown
    assert not (here / "ran").exists(), "nothing of it has run"
    assert command("eval", "r", "--trust-code").code == 0
    assert (here / "ran").exists()
    assert "code that a run names" in refused("eval", "r"), "the flag is of one command"


def test_changed_code_is_not_what_was_trusted(refused: Callable[..., str], here: Path):
    (here / "own.py").write_text(MARK + "# changed\n")
    assert "code that a run names" in refused("eval", "r")
    assert not (here / "ran").exists()


def test_another_name_in_a_trusted_file_is_not_trusted(refused: Callable[..., str], here: Path):
    config = here / "r" / "config.yaml"
    config.write_text(config.read_text().replace("own.py:f", "own.py:Path"))
    assert "own.py:Path: code that a run names" in refused("eval", "r")


def test_a_module_is_not_imported_to_be_refused(refused: Callable[..., str], here: Path):
    (here / "evil").mkdir()
    (here / "evil" / "__init__.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    (here / "evil" / "tasks.py").write_text("def f(s): return s\n")
    config = here / "r" / "config.yaml"
    config.write_text(config.read_text().replace(f"{here}/own.py:f", "evil.tasks:f"))
    assert "evil.tasks:f: code that a run names" in refused("eval", "r")
    assert not (here / "ran").exists()


def test_python_asks_too(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(here.parent / "nobody"))
    run = toytrans.load("r", device="cpu")
    with pytest.raises(UserError, match="trust_code=True"):
        open_source(run.config, run.facts)
    run = toytrans.load("r", device="cpu", trust_code=True)
    assert open_source(run.config, run.facts).facts == run.facts


def test_a_run_being_resumed_cannot_bring_code_along(refused: Callable[..., str], here: Path):
    (here / "other.py").write_text(MARK)
    config = here / "r" / "config.yaml"
    config.write_text(config.read_text().replace("own.py:f", "other.py:g"))
    assert "cannot resume with other settings" in refused(
        "train", "c.yaml", "--out", "r", "--resume"
    )
    assert not (here / "ran").exists()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root writes anywhere")
def test_where_nothing_can_be_noted_the_flag_is_needed(
    command: Command, refused: Callable[..., str], here: Path, monkeypatch: pytest.MonkeyPatch
):
    sealed = here / "sealed"
    sealed.mkdir(mode=0o500)
    monkeypatch.setenv("XDG_STATE_HOME", str(sealed))
    assert command("train", "c.yaml", "--out", "s").code == 0
    forget(here, monkeypatch)
    assert "--trust-code" in refused("eval", "s")


def test_a_damaged_list_trusts_nothing(refused: Callable[..., str], here: Path):
    (here.parent / "state" / "toytrans" / "trusted").write_bytes(b"\xff\0" * 1000)
    assert "--trust-code" in refused("eval", "r")


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
