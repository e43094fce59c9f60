"""Sinusoidal positions against the formula."""

import math

import pytest

from toytrans.model.positions.sinusoidal import sinusoids


def test_sinusoids_follow_the_paper():
    table = sinusoids(2, 3, 6)
    for row in range(3):
        for i in range(3):
            angle = (row + 2) / 10_000 ** (2 * i / 6)
            assert table[row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
