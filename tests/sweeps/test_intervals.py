"""Intervals of means over seeds, by published values and by simulation."""

import math

import pytest
import torch
from torch.distributions import Beta, Binomial

from toytrans.scores import wilson_interval
from toytrans.sweeps.intervals import Summary, difference_of, summarise, t_975

CASES, PAIRS = 2000, 200


def test_the_interval_of_a_mean_is_students():
    """The example of Student 1908: extra hours of sleep by drug 2, ten patients."""
    hours = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = summarise(hours)
    assert found.runs == 10 and found.mean == pytest.approx(2.33)
    assert found.deviation == pytest.approx(2.002249, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((0.8976775, 3.7623225), abs=1e-6)
    assert summarise([0.5]) == (1, 0.5, None, None, None, None)


@pytest.mark.parametrize("freedom", [1, 2, 5, 10, 11, 30, 200])
def test_points_of_t_leave_2_5_percent_above(freedom: int):
    t, n = t_975(freedom), 100_000
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    below = sum((1 + ((k + 0.5) * t / n) ** 2 / freedom) ** (-(freedom + 1) / 2) for k in range(n))
    assert scale * below * t / n == pytest.approx(0.475, abs=1e-6)


def test_an_interval_is_that_of_the_pairs_or_of_the_seeds_whichever_is_wider():
    for share in (0.0, 0.25, 1.0):
        found = summarise([share] * 3, 300)
        assert (found.low, found.high) == pytest.approx(wilson_interval(300 * share, 300))
    values = [0.42, 0.5, 0.58, 0.45, 0.55, 0.4, 0.6, 0.47, 0.53, 0.5]
    found, student = summarise(values, 10**6), summarise(values)
    assert (found.low, found.high) == pytest.approx((student.low, student.high), abs=1e-3)
    wide, mirrored = summarise([0.9, 1.0, 0.5], 3000), summarise([0.1, 0.0, 0.5], 3000)
    assert 0 < wide.low < wide.mean < wide.high < 1
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - wide.high, 1 - wide.low))


def shares(mean: float, spread: float, seeds: int) -> torch.Tensor:
    """Shares (CASES, seeds) of right pairs. spread: the deviation between seeds, in those of the
    share of one seed's pairs."""
    chance = torch.full((CASES, seeds), mean, dtype=torch.float64)
    if spread:
        size = PAIRS / spread**2 - 1
        chance = Beta(mean * size, (1 - mean) * size).sample((CASES, seeds)).clamp(0, 1)
    return Binomial(PAIRS, chance).sample() / PAIRS


def covered(found: list[Summary], truth: float) -> float:
    return sum(each.low <= truth <= each.high for each in found) / len(found)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_an_interval_covers_the_truth_in_95_of_100_cases(seeds: int):
    """Where seeds differ no more than their pairs do, a few seeds are covered more often. Intervals
    of a share and of its complement are mirror images."""
    torch.manual_seed(seeds)
    most, pairs = {3: 0.995, 5: 0.985, 10: 0.98}[seeds], seeds * PAIRS
    cases = [(mean, spread) for mean in (0.5, 0.9, 0.95) for spread in (0.0, 1.0, 2.0)]
    for mean, spread in [*cases, (0.98, 1.0), (0.995, 0.0)]:
        values = shares(mean, spread, seeds).tolist()
        rate = covered([summarise(each, pairs) for each in values], mean)
        assert 0.93 <= rate <= (0.97 if spread == 2.0 else most), (mean, spread)
    for first, second in ((0.5, 0.5), (0.9, 0.7), (0.99, 0.99)):
        for spread in (0.0, 2.0):
            both = torch.stack([shares(mean, spread, seeds) for mean in (first, second)], -1)
            found = [difference_of(values, (pairs, pairs)) for values in both.tolist()]
            assert 0.93 <= covered(found, first - second) <= 0.995, (first, second, spread)


def test_groups_that_agree_at_every_seed_may_differ_by_what_their_pairs_allow():
    """Newcombe 1998, table II: 56 of 70 less 48 of 80, method 10."""
    found = difference_of([(56 / 70, 48 / 80)] * 2, (70, 80))
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    ones = difference_of([(1.0, 1.0)] * 3, (300, 300))
    assert ones.low < 0 < ones.high
