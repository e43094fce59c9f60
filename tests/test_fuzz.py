"""A short run of scripts/fuzz.py, always the same cases; and whether it would notice a bug."""

from collections.abc import Iterator

import pytest
from conftest import script

fuzz = script("fuzz")


@pytest.fixture(scope="module", autouse=True)
def place() -> Iterator[None]:
    with fuzz.workplace(), fuzz.bounded_memory():
        yield


@pytest.mark.parametrize(("kind", "cases"), [("configs", 80), ("data files", 80)])
def test_random_files_are_answered(kind: str, cases: int) -> None:
    counts = fuzz.fuzz(kind, cases, 0, 20.0)
    assert counts.total() >= cases
    assert counts["accepted"] and counts["refused"], "either occurs"


@pytest.mark.parametrize(("kind", "cases"), [("command lines", 60), ("run folders", 40)])
def test_random_commands_are_answered(kind: str, cases: int) -> None:
    counts = fuzz.fuzz(kind, cases, 0, 20.0)
    assert counts["accepted"] and counts["refused"], "either occurs"


def broken(*_: object) -> None:
    raise ZeroDivisionError("ours")


def test_a_bug_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "load_config", broken)
    with pytest.raises(ZeroDivisionError):
        fuzz.fuzz("configs", 3, 0, 20.0)
    monkeypatch.setattr("toytrans.cli.tasks._list", broken)
    with pytest.raises(AssertionError, match="internal error"):
        fuzz.check_command(["explain"])
