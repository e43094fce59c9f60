"""Resumed training is the training that was not interrupted; tests/slow has more kills."""

import pytest
from killed import train_and_kill


@pytest.mark.usefixtures("here")
def test_four_kills_change_nothing():
    train_and_kill(kills=4, seed=0)
