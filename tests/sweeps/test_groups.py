"""Groups of runs: what sets them apart, means over seeds, pairs of equal seeds."""

import math

import pytest
from members import member

from toytrans.sweeps.comparison import group, pairs_of
from toytrans.sweeps.intervals import t_975

ROTARY, ALIBI = {"model": {"positions": "rotary"}}, {"model": {"positions": "alibi"}}


def test_runs_are_grouped_by_config_and_both_seeds_are_seeds():
    runs = [member(0.1, 0, **ROTARY), member(0.3, 1, **ROTARY), member(0.5, 0, **ALIBI)]
    rotary, alibi = group([*runs, member(0.8, 0, data={"seed": 4}, **ALIBI)])
    assert rotary.differs == {"model.positions": "rotary"} and alibi.name == "alibi"
    assert rotary.summary().mean == pytest.approx(0.2)
    assert alibi.by_seed() == {(0, 0): 0.5, (0, 4): 0.8}


def test_a_run_in_trouble_is_in_its_group_and_not_in_its_mean():
    lost = member(0.9, 2, problem="diverged")
    (found,) = group([member(0.2, 0), member(0.4, 1), lost])
    assert len(found.members) == 3 and len(found.counted) == 2
    assert found.summary().mean == pytest.approx(0.3)
    (alone,) = group([lost])
    assert alone.summary() is None and alone.curve() == {}


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ([{"model": {"positions": "anchored"}}, ROTARY], ["model.positions"]),  # and its score_cap
        ([ROTARY, ROTARY | {"data": {"train_length": [1, 9]}}], ["data.train_length"]),
        ([ROTARY, ROTARY | {"data": {"test_length": [1, 99]}}], ["data.test_length"]),
        (
            [ROTARY, {"model": {"positions": "anchored", "score_cap": 5.0}}, ALIBI],
            ["model.positions", "model.score_cap"],
        ),
        ([ROTARY], []),
    ],
)
def test_keys_that_follow_from_others_set_nothing_apart(sections, keys):
    groups = group([member(0.1, **each) for each in sections])
    assert [list(each.differs) for each in groups] == [keys] * len(sections)


def test_names_of_groups():
    sound, broken = group([member(0.9), member(0.1, fault="no_causal")])
    assert (sound.name, broken.name, sound.values) == ("none", "no_causal", "fault none")
    sections = {"model": {"positions": "rotary", "d_ff": 8, "d_model": 32, "norm": "post"}}
    first, second = group([member(0.1), member(0.2, **sections)])
    assert (first.name, second.name) == ("A", "B") and "d_ff 8" in second.values


def test_pairs_are_of_equal_seeds_alone():
    first, second = group(
        [member(v, seed, **ROTARY) for seed, v in enumerate([0.5, 0.6, 0.7, 0.7])]
        + [member(v, seed, **ALIBI) for seed, v in ((1, 0.5), (2, 0.8), (3, 0.7), (9, 0.0))]
    )
    ((*both, difference, wins),) = pairs_of([first, second])
    assert both == [first, second] and [*wins.values()] == [1, 1, 1]
    assert (difference.runs, difference.mean) == (3, pytest.approx(0.0, abs=1e-9))
    assert difference.low == pytest.approx(-t_975(2) * 0.1 / math.sqrt(3))
    lonely = group([member(0.1, 77, **ROTARY)])[0]
    assert not list(pairs_of([lonely, second]))


def test_a_curve_is_over_the_runs_that_have_such_pairs():
    (found,) = group([member(0, 0, curve={1: 0.2, 2: 0.4}), member(0, 1, curve={2: 0.8})])
    curve = {(span.low, span.high): summary for span, summary in found.curve().items()}
    assert [curve[n, n].runs for n in (1, 2)] == [1, 2]
    assert [curve[n, n].mean for n in (1, 2)] == pytest.approx([0.2, 0.6])
