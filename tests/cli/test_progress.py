"""Commands that take long say on standard error what they are at."""

import re
import shutil
from pathlib import Path

import pytest
from conftest import Command, call, tiny_yaml

from toytrans.cli import terminal


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "c.yaml").write_text(tiny_yaml())
    assert call("train", str(folder / "c.yaml"), "--out", str(folder / "r")) == 0
    return folder / "r"


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (("eval", "r"), "now: r, 100%"),
        (("attention", "r"), "now: measuring heads, 0 of 9 pairs"),
        (("demo", "gradients"), "now: seed 2 of 3"),
        (("trace", "r"), "now: the model"),
        (("inspect-masks", "r"), "now: the model"),
        (("check", "r", "--only", "pads"), "now: pads"),
        (("runs", "."), r"now: \./r"),
    ],
)
def test_progress_comes_once_a_command_takes_long(
    run: Path, here: Path, command: Command, monkeypatch, arguments, lines
):
    """That of `check --resume` is proved in tests/training/test_crashes.py."""
    shutil.copytree(run, here / "r")
    monkeypatch.setattr(terminal, "PROGRESS_AFTER", 1e9)
    assert "now: " not in command(*arguments).err
    monkeypatch.setattr(terminal, "PROGRESS_AFTER", 0.0)
    answer = command(*arguments)
    assert answer.code in (0, 1) and re.search(f"^{lines}", answer.err, re.MULTILINE), answer.err
