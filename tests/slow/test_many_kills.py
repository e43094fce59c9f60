"""Is anything lost when training is killed?"""

import pytest
from killed import train_and_kill

KILLS = 40

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("here")
def test_many_kills_change_nothing():
    train_and_kill(KILLS, seed=1)
