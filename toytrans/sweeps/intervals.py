"""Means over seeds with 95% intervals that count both the seeds and the finite pairs.

The interval of a mean proportion is Wilson's, on an effective number of pairs (Korn and Graubard
1998, Survey Methodology 24:193; with Wilson's interval: Franco, Little, Louis and Slud 2019, J.
Survey Statistics and Methodology 7:334). That is how many independent pairs would vary as the seeds
do, reduced for the few seeds by the squared ratio of the points of the normal and Student's t. It
is at most the number of pairs that were measured. Means of losses and other numbers that are no
proportions have Student's interval.

Where so few seeds allow no such interval, a summary has their range, and says so. Near 0 and 1 a
rare seed may be far off, and seeds that have not met one look just as seeds of which there is none.
tests/sweeps/test_intervals.py tells by simulation how often intervals that are given hold the mean.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from toytrans.scores import Z_975, wilson_interval

FEWEST = 3
"""Seeds of an interval, at least."""

MIDDLE = 0.1, 0.9
"""Where the mean of proportions has an interval."""

T_975 = [12.706205, 4.302653, 3.182446, 2.776445, 2.570582]
T_975 += [2.446912, 2.364624, 2.306004, 2.262157, 2.228139]
"""97.5% points of Student's t, for 1 to 10 degrees of freedom."""


class Summary(NamedTuple):
    """Mean and standard deviation, and from where to where: low and high are the ends of the 95%
    interval of the mean, or the range of the seeds, as `spread` says; all None where one value has
    none.

    pairs: that the values rest on; None = they are no proportions.
    """

    runs: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    spread: Literal["95%", "range"] | None
    pairs: int | None = None


def summarise(values: Sequence[float], pairs: int | None = None) -> Summary:
    """The values of some seeds. pairs: as in `Summary`."""
    mean, runs = fmean(values), len(values)
    if runs < 2:
        return Summary(runs, mean, None, None, None, None, pairs)
    deviation = stdev(values)
    if runs < FEWEST or (pairs is not None and not MIDDLE[0] <= mean <= MIDDLE[1]):
        return Summary(runs, mean, deviation, min(values), max(values), "range", pairs)
    half = t_975(runs - 1) * deviation / sqrt(runs)
    if pairs is None:
        return Summary(runs, mean, deviation, mean - half, mean + half, "95%")
    effective = float(pairs)
    if half > 0:
        effective = min(effective, mean * (1 - mean) * (Z_975 / half) ** 2)
    low, high = wilson_interval(mean * effective, effective)
    return Summary(runs, mean, deviation, low, high, "95%", pairs)


def difference_of(
    values: Sequence[tuple[float, float]], pairs: tuple[int, int] = (0, 0)
) -> Summary:
    """The values of two groups at equal seeds, the first less the second.

    The interval is Student's of the differences. With pairs, those that the values of either rest
    on, it is no narrower than that of two independent shares of so many pairs, which joins the
    Wilson intervals of both (Newcombe 1998, Statistics in Medicine 17:873, method 10).
    """
    found = summarise([ours - theirs for ours, theirs in values])
    if 0 in pairs or found.spread != "95%" or found.low is None or found.high is None:
        return found
    ours, theirs = (fmean(column) for column in zip(*values, strict=True))
    if not all(MIDDLE[0] <= mean <= MIDDLE[1] for mean in (ours, theirs)):
        differences = [a - b for a, b in values]
        ends = min(differences), max(differences)
        return found._replace(low=ends[0], high=ends[1], spread="range", pairs=min(pairs))
    low, high = wilson_interval(ours * pairs[0], pairs[0])
    low_2, high_2 = wilson_interval(theirs * pairs[1], pairs[1])
    below = found.mean - sqrt((ours - low) ** 2 + (high_2 - theirs) ** 2)
    above = found.mean + sqrt((high - ours) ** 2 + (theirs - low_2) ** 2)
    ends = max(-1.0, min(found.low, below)), min(1.0, max(found.high, above))
    return found._replace(low=ends[0], high=ends[1], pairs=min(pairs))


def t_975(freedom: int) -> float:
    """The 97.5% point of Student's t, to 1e-5; beyond 10 degrees of freedom by its expansion in
    1 / freedom (Abramowitz and Stegun 1964, 26.7.5)."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    x = Z_975
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term / freedom**power for power, term in enumerate(terms, 1))
