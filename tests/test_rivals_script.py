"""scripts/rivals.py runs: every measurement but the trainings, which are sweeps."""

import pytest
from conftest import script


def test_rivals_are_measured(monkeypatch: pytest.MonkeyPatch):
    rivals = script("rivals")
    monkeypatch.setattr(rivals, "LENGTHS", (8,))
    monkeypatch.setattr(rivals, "ROUNDS", 1)
    speeds = rivals.speeds()
    assert speeds.keys() == rivals.NETWORKS.keys()
    assert all(speed > 0 for (speed,) in speeds.values())
    assert [rivals.path(name, 4) for name in rivals.NETWORKS] == [1, 4, 2]
    assert all(len(rivals.reach(name, 1, 5)) == 5 for name in rivals.NETWORKS)
