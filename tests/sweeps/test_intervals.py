"""Intervals of means over seeds, by published values and by simulation."""

import math
from itertools import combinations

import pytest
import torch
from torch.distributions import Beta, Binomial

from toytrans.scores import wilson_interval
from toytrans.sweeps.intervals import Summary, difference_of, summarise, t_975

CASES, PAIRS = 300, 200


def test_the_interval_of_a_mean_is_students():
    """The example of Student 1908: extra hours of sleep by drug 2, ten patients."""
    hours = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = summarise(hours)
    assert found.runs == 10 and found.mean == pytest.approx(2.33)
    assert found.deviation == pytest.approx(2.002249, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((0.8976775, 3.7623225), abs=1e-6)
    assert summarise([0.5]) == (1, 0.5, None, None, None, None, None)


@pytest.mark.parametrize("freedom", [1, 2, 5, 10, 11, 30, 200])
def test_points_of_t_leave_2_5_percent_above(freedom: int):
    t, n = t_975(freedom), 100_000
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    below = sum((1 + ((k + 0.5) * t / n) ** 2 / freedom) ** (-(freedom + 1) / 2) for k in range(n))
    assert scale * below * t / n == pytest.approx(0.475, abs=1e-6)


def test_an_interval_is_that_of_the_pairs_or_of_the_seeds_whichever_is_wider():
    for share in (0.25, 0.5):
        found = summarise([share] * 3, 300)
        assert (found.low, found.high) == pytest.approx(wilson_interval(300 * share, 300))
    values = [0.42, 0.5, 0.58, 0.45, 0.55, 0.4, 0.6, 0.47, 0.53, 0.5]
    found, student = summarise(values, 10**6), summarise(values)
    assert (found.low, found.high) == pytest.approx((student.low, student.high), abs=1e-3)
    wide, mirrored = summarise([0.9, 1.0, 0.5], 3000), summarise([0.1, 0.0, 0.5], 3000)
    assert 0 < wide.low < wide.mean < wide.high < 1
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - wide.high, 1 - wide.low))


@pytest.mark.parametrize(
    ("values", "pairs"),
    [([1.0, 1.0, 1.0], 600), ([0.97, 1.0, 0.99, 1.0], 800), ([0.4, 0.6], 400), ([2.5, 2.0], None)],
)
def test_where_seeds_allow_no_interval_their_range_is_told(values, pairs):
    found = summarise(values, pairs)
    assert (found.spread, found.low, found.high) == ("range", min(values), max(values))


def shares(mean: float, spread: float, seeds: int) -> torch.Tensor:
    """Shares (CASES, seeds) of right pairs. spread: the deviation between seeds, in those of the
    share of one seed's pairs."""
    chance = torch.full((CASES, seeds), mean, dtype=torch.float64)
    if spread:
        size = PAIRS / spread**2 - 1
        chance = Beta(mean * size, (1 - mean) * size).sample((CASES, seeds)).clamp(0, 1)
    return Binomial(PAIRS, chance).sample() / PAIRS


def two_kinds(seeds: int) -> torch.Tensor:
    """Shares of seeds of which one half learns a task and the other does not."""
    learns = torch.rand(CASES, seeds, dtype=torch.float64) < 0.5
    return Binomial(PAIRS, torch.where(learns, 0.98, 0.05)).sample() / PAIRS


def covered(found: list[Summary], truth: float) -> float | None:
    """How many of the intervals that are given hold the truth. None where fewer than one study in
    ten has one, because the range is the rule there."""
    given = [each for each in found if each.spread == "95%"]
    if len(given) < len(found) / 10:
        return None
    return sum(each.low <= truth <= each.high for each in given) / len(given)


def assert_covered(rates: list[float | None], least: int) -> None:
    """93 to 97% on average, and nowhere less than 90."""
    known = [rate for rate in rates if rate is not None]
    assert len(known) >= least, "most cells have intervals"
    assert 0.93 <= sum(known) / len(known) <= 0.97 and min(known) >= 0.90, sorted(known)[:3]


GRID = [(mean, spread) for mean in (0.3, 0.5, 0.8, 0.98) for spread in (0.0, 1.0, 2.0, 4.0)]
"""Means, and how far seeds differ, in deviations of one seed's pairs: docs/sweeps.md states it."""


def test_intervals_of_means_hold_the_truth_as_often_as_they_say():
    torch.manual_seed(0)
    rates = []
    for seeds in (3, 5, 10):
        cells = [(mean, shares(mean, spread, seeds)) for mean, spread in GRID]
        cells.append((0.515, two_kinds(seeds)))
        for mean, values in cells:
            found = [summarise(each, seeds * PAIRS) for each in values.tolist()]
            rates.append(covered(found, mean))
    assert_covered(rates, 36)


def test_intervals_of_differences_hold_the_truth_as_often_as_they_say():
    torch.manual_seed(1)
    rates = []
    for seeds in (3, 5, 10):
        groups = [(mean, shares(mean, spread, seeds)) for mean, spread in GRID[2::3]]
        groups += [(1.0, torch.ones(CASES, seeds)), (0.515, two_kinds(seeds))]
        for (first, ours), (second, theirs) in combinations(groups, 2):
            both = torch.stack([ours, theirs], -1).tolist()
            found = [difference_of(values, (seeds * PAIRS, seeds * PAIRS)) for values in both]
            rates.append(covered(found, first - second))
    assert_covered(rates, 9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [101, 102])
def test_intervals_hold_the_truth_on_a_wider_grid_with_other_numbers(seed: int):
    """More means, and differences of every two groups. Too wide an interval is no mistake here, so
    that only the least coverage is asked."""
    torch.manual_seed(seed)
    means, differences = list[float | None](), list[float | None]()
    further = [(mean, spread) for mean in (0.15, 0.9) for spread in (0.0, 1.0, 2.0, 4.0)]
    for seeds in (3, 5, 10):
        groups = [(mean, shares(mean, spread, seeds)) for mean, spread in GRID]
        groups.append((0.515, two_kinds(seeds)))
        more = [(mean, shares(mean, spread, seeds)) for mean, spread in further]
        for mean, values in groups + more:
            found = [summarise(each, seeds * PAIRS) for each in values.tolist()]
            means.append(covered(found, mean))
        for (first, ours), (second, theirs) in combinations(groups, 2):
            both = torch.stack([ours, theirs], -1).tolist()
            found = [difference_of(each, (seeds * PAIRS, seeds * PAIRS)) for each in both]
            differences.append(covered(found, first - second))
    for rates in (means, differences):
        known = [rate for rate in rates if rate is not None]
        assert len(known) > 50 and sum(known) / len(known) >= 0.93 and min(known) >= 0.88


def test_intervals_of_losses_hold_the_truth_as_often_as_they_say():
    """Normal, and lognormal with deviations of the logarithm up to 0.4."""
    torch.manual_seed(2)
    rates = []
    for seeds in (3, 5, 10):
        draws = torch.randn(3 * CASES, seeds, dtype=torch.float64)
        rates.append(covered([summarise(each) for each in (5 + draws).tolist()], 5.0))
        for spread in (0.1, 0.2, 0.4):
            values = (draws * spread).exp().tolist()
            rates.append(covered([summarise(each) for each in values], math.exp(spread**2 / 2)))
    assert_covered(rates, 12)


def test_groups_that_agree_at_every_seed_may_differ_by_what_their_pairs_allow():
    """Newcombe 1998, table II: 56 of 70 less 48 of 80, method 10."""
    found = difference_of([(56 / 70, 48 / 80)] * 3, (70, 80))
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    ones = difference_of([(1.0, 1.0)] * 5, (300, 300))
    assert (ones.spread, ones.low, ones.high) == ("range", 0.0, 0.0)
