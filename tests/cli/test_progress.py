"""Commands that take long say on standard error what they are at."""

import re
from pathlib import Path

import pytest
from conftest import Command

from toytrans.cli import terminal


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("eval runs/c", "now: runs/c, 100%"),
        ("trace runs/c", "now: the model"),
        ("check runs/c --only pads --quick", "now: pads"),
        ("runs .", "now: ./runs/c"),
    ],
)
def test_progress_comes_once_a_command_takes_long(
    run: Path, command: Command, monkeypatch, arguments, line
):
    monkeypatch.setattr(terminal, "PROGRESS_AFTER", 0.0)
    answer = command(*arguments.split())
    assert answer.code in (0, 1) and re.search(f"^{line}", answer.err, re.MULTILINE), answer.err
    if arguments == "runs .":
        monkeypatch.setattr(terminal, "PROGRESS_AFTER", 1e9)
        assert "now: " not in command(*arguments.split()).err
