"""scripts/rivals.py runs: every measurement but the trainings, which are sweeps."""

import pytest
from conftest import script


def test_rivals_are_measured(monkeypatch: pytest.MonkeyPatch):
    rivals = script("rivals")
    monkeypatch.setattr(rivals, "LENGTHS", (8,))
    monkeypatch.setattr(rivals, "ROUNDS", 1)
    speeds = rivals.speeds()
    assert speeds.keys() == rivals.KINDS.keys() and all(speed > 0 for (speed,) in speeds.values())
    assert [rivals.path(kind, 4) for kind in rivals.KINDS] == [1, 4, 2]
    assert all(len(rivals.reach(kind, 1, 5)) == 5 for kind in rivals.KINDS)
