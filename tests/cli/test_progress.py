"""Commands that take long say on standard error what they are at."""

import re
from collections.abc import Iterator

import pytest
from conftest import Command, call

from toytrans.cli import common


@pytest.fixture
def trained(here) -> Iterator[None]:
    assert call("train", "c.yaml", "--out", "r") == 0
    yield


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (("eval", "r"), "now: r, 100%"),
        (("attention", "r"), "now: measuring heads, 0 of 9 pairs"),
        (("gradients", "--seeds", "2"), "now: seed 2 of 2"),
        (("trace", "--run", "r"), "now: what the model computes"),
        (("inspect-masks", "--run", "r"), "now: the model"),
        (("check", "r", "--only", "a"), r"now: \(a\)"),
        (("check", "--config", "c.yaml", "--resume", "--kills", "2"), "now: killed 1 times of 2"),
        (("runs", "."), r"now: \./r"),
    ],
)
def test_progress_comes_once_a_command_takes_long(
    trained, command: Command, monkeypatch, arguments, lines
):
    if "--resume" not in arguments:  # that one starts processes, which takes long
        monkeypatch.setattr(common, "PROGRESS_AFTER", 1e9)
        assert "now: " not in command(*arguments).err
    monkeypatch.setattr(common, "PROGRESS_AFTER", 0.0)
    answer = command(*arguments)
    assert answer.code in (0, 1) and re.search(f"^{lines}", answer.err, re.MULTILINE), answer.err
