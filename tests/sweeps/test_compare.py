"""`toytrans eval RUN...`: runs grouped by config, whatever they are given as."""

import contextlib
import csv
import io
import json
import math
import re
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from conftest import Command, config_of, tiny_yaml

from toytrans.cli.terminal import show
from toytrans.config.load import flatten
from toytrans.measure import Measure
from toytrans.measurement import Result, SpanNumbers
from toytrans.metrics import COUNTS, OF_PAIRS
from toytrans.scores import wilson_interval
from toytrans.sweeps.comparison import Comparison
from toytrans.sweeps.groups import Member, differences, group
from toytrans.sweeps.intervals import t_975

MATCH = ("--lengths", "1:7", "--examples", "40")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of two configs and two seeds, made by `train`."""
    from conftest import call

    folder = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("c.yaml").write_text(tiny_yaml())
        for scheme in ("rotary", "anchored"):
            for seed in ("0", "1"):
                words = ("--seed", seed, "--set", f"model.positions={scheme}")
                assert call("train", "c.yaml", *words, "--out", f"runs/{scheme}-{seed}") == 0
    return folder / "runs"


@pytest.fixture
def runs(trained: Path, here: Path) -> list[str]:
    shutil.copytree(trained, here / "runs")
    return [f"runs/{scheme}-{seed}" for scheme in ("rotary", "anchored") for seed in (0, 1)]


def comparison(command: Command, *words: str) -> dict:
    answer = command("eval", *words, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out, parse_constant=pytest.fail)


def test_runs_are_grouped_by_config_with_the_numbers_of_each(runs, command: Command):
    about = comparison(command, "runs", runs[1], *MATCH)  # a folder, and one of it
    differs = [group["differs"] for group in about["groups"]]
    assert differs == [{"model.positions": "anchored"}, {"model.positions": "rotary"}]
    found = [run["run"] for group in about["groups"] for run in group["runs"]]
    assert sorted(found) == sorted(runs), "each once"
    alone = [json.loads(command("eval", run, *MATCH, "--json").out) for run in runs]
    for found, own in zip(about["groups"], (alone[2:], alone[:2]), strict=True):
        for name, summaries in found["summaries"].items():
            for part in ("all", "beyond"):
                mean = fmean(run["parts"][part][name] for run in own)
                assert summaries[part]["mean"] == pytest.approx(mean)
        for place, row in enumerate(found["by_length"]):
            rows = [run["by_length"][place] for run in own]
            assert row["shortest"] == row["longest"] == rows[0]["shortest"]
            mean = fmean(each["numbers"]["free_exact_match"] for each in rows)
            assert row["mean"] == pytest.approx(mean)
    (pair,) = [pair for pair in about["differences"] if pair["part"] == "all"]
    assert (pair["first"], pair["second"], pair["runs"]) == (0, 1, 2)
    assert pair["ahead"] + pair["behind"] + pair["level"] == 2


@pytest.mark.parametrize(
    ("words", "said", "key"),
    [
        (("--split", "valid"), "valid pairs", "free_exact_match"),
        (("--beam", "2", "--checkpoint", "last"), "beam 2, checkpoint last", "free_exact_match"),
        (("--length-of", "tgt", "--decode", "1"), "by target length", "forced_exact_match"),
    ],
)
def test_runs_are_compared_on_whatever_one_run_is_measured_on(words, said, key, runs, command):
    alone = json.loads(command("eval", runs[0], *words, "--json").out)
    about = comparison(command, *runs[:2], *words)
    assert about["metric"] == key
    assert about["groups"][0]["runs"][0]["parts"] == alone["parts"]
    shown = command("eval", *runs[:2], *words, "--metric", "loss").out
    assert said in shown and f"{alone['parts']['in_range']['loss']:.4f}" in shown


def test_given_pairs_are_compared_at_their_lengths(runs, command: Command, refused):
    Path("few.tsv").write_text("1\t1\n1 2\t1 2\n")
    given = comparison(command, *runs, "--pairs", "few.tsv")
    assert [each["shortest"] for each in given["groups"][0]["by_length"]] == [1, 2]
    message = refused("eval", *runs, "--pairs", "nothing.tsv")
    assert "nothing.tsv: no such file" in message, "told once for all runs"


def test_numbers_go_to_a_table_and_a_picture(runs, command: Command, refused):
    words = ("eval", *runs, *MATCH, "--csv", "c.csv", "--plot", "c.png")
    answer = command(*words)
    assert answer.code == 0 and answer.err.endswith("wrote c.csv\nwrote c.png\n")
    rows = list(csv.DictReader(Path("c.csv").read_text().splitlines()))
    mine = [row for row in rows if row["run"] == runs[0] and row["shortest"]]
    loss = [row for row in mine if row["metric"] == "loss"]
    assert [int(row["shortest"]) for row in loss] == [*range(1, 8)]
    assert sum(int(row["pairs"]) for row in loss) == 40
    measured = json.loads(command("eval", runs[0], *MATCH, "--json").out)
    for name in ("forced_token_accuracy", "free_symbol_error_rate"):
        values = [float(row["value"]) for row in mine if row["metric"] == name]
        assert values == [each["numbers"][name] for each in measured["by_length"]]
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    assert "c.csv: exists already" in refused(*words)
    assert "end the name with .png or .svg" in refused("eval", *runs, "--plot", "c.pdf")


# What is shown, of made-up runs ---------------------------------------------------------------

ROTARY, ALIBI = {"model": {"positions": "rotary"}}, {"model": {"positions": "alibi"}}


def numbers(share: float) -> dict[str, Any]:
    """Ten pairs of which a share is right; an eighth of it in symbols is wrong, say."""
    values: dict[str, Any] = dict.fromkeys(COUNTS, 10) | dict.fromkeys(OF_PAIRS, share)
    values |= {name: min(share, 1.0) for name, metric in OF_PAIRS.items() if metric.is_share}
    values["free_symbol_error_rate"] = share / 8
    return values | {"free_less_forced_exact_match": 0.0, "intervals": {}}


def member(
    value: float, seed: int = 0, *, beyond: float | None = None, difference: float = 0.0, **sections
) -> Member:
    """A run whose exact match is a value, trained on lengths 1 to 6."""
    config = config_of(seed=seed, **sections)
    parts, lengths = {"in_range": numbers(value), "all": numbers(value)}, [(1, "in_range", value)]
    parts["all"]["free_less_forced_exact_match"] = difference
    if beyond is not None:
        parts["beyond"] = numbers(beyond)
        lengths.append((7, "beyond", beyond))
    result = Result(
        run=f"run-{seed}",
        measure=Measure(),
        fingerprint="",
        step=9,
        checkpoint="step 9",
        seed=seed,
        data_seed=config.data_seed,
        fault=config.fault,
        of_files=False,
        trained_on=None,
        train_length=(1, 6),
        steps=9,
        seconds=9.0,
        parameters=9,
        parts=parts,
        by_length=[
            SpanNumbers(shortest=n, longest=n, part=part, numbers=numbers(share))
            for n, part, share in lengths
        ],
    )
    return Member(Path(f"run-{seed}"), config, result, stated=flatten(sections))


def compared(members: list[Member], metric: str = "free_exact_match") -> Comparison:
    return Comparison(Measure(), metric, group(members))


def printed(members: list[Member], metric: str = "free_exact_match") -> str:
    """The tables of a comparison, 80 columns wide."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for table in compared(members, metric).tables():
            show(table)
    return out.getvalue()


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


def test_runs_that_differ_in_either_seed_are_one_group():
    members = [member(0.1), member(0.3, 1), member(0.8, data={"seed": 5}), member(0.5, **ALIBI)]
    found, _ = group(members)
    assert found.by_seed("free_exact_match") == {(0, 0): 0.1, (0, 5): 0.8, (1, 1): 0.3}
    assert "seeds 0 0/5 1" in printed(members)


def test_names_of_groups(here: Path):
    (here / "mine.py").write_text(
        "from toytrans.model.positions.base import Positions\nclass Slope(Positions): pass\n"
    )
    own = {"model": {"positions": f"{here / 'mine.py'}:Slope"}}
    for sections, names in (
        ({"fault": "no_causal"}, ["none", "no_causal"]),
        (own, [config_of().model.positions, "mine.py:Slope"]),
        ({"model": {"d_ff": 8, "norm": "post"}}, ["A", "B"]),
    ):
        assert [each.name for each in group([member(0.9), member(0.1, **sections)])] == names


def test_a_letter_stays_whichever_runs_of_a_sweep_are_there():
    shapes = [{"d_ff": width, "norm": norm} for width in (8, 16) for norm in ("pre", "post")]
    members = [
        member(0.5, model=shape)._replace(labels={f"model.{key}": of for key, of in shape.items()})
        for shape in shapes
    ]
    every = [each.varied for each in members]
    assert [each.name for each in group(members, every)] == ["A", "B", "C", "D"]
    assert [each.name for each in group([members[3], members[0]], every)] == ["D", "A"]
    stranger = member(0.5, model={"d_ff": 24, "norm": "post"})
    assert [each.name for each in group([stranger, members[2]], every)] == ["E", "C"]


def test_pairs_are_of_equal_seeds_alone():
    first, second = group(
        [member(v, seed, **ROTARY) for seed, v in enumerate([0.5, 0.6, 0.7, 0.7])]
        + [member(v, seed, **ALIBI) for seed, v in ((1, 0.5), (2, 0.8), (3, 0.7), (9, 0.0))]
    )
    (found,) = differences([first, second], "free_exact_match")
    assert (found.first, found.second) == (first, second)
    assert (found.ahead, found.behind, found.level) == (1, 1, 1)
    assert (found.summary.runs, found.summary.mean) == (3, pytest.approx(0.0, abs=1e-9))
    assert found.summary.low == pytest.approx(-t_975(2) * 0.1 / math.sqrt(3))
    alone = group([member(0.1, 77, **ROTARY)])
    assert not list(differences([*alone, second], "free_exact_match"))


@pytest.mark.parametrize(
    ("metric", "ahead"), [("loss", 0), ("free_exact_match", 2), ("free_symbol_error_rate", 0)]
)
def test_ahead_is_who_is_better(metric, ahead):
    """Of a loss and of errors that is the lower one."""
    groups = group(
        [member(v, n, **how) for v, how in ((0.9, ROTARY), (0.1, ALIBI)) for n in (0, 1)]
    )
    (found,) = differences(groups, metric)
    assert (found.ahead, found.behind) == (ahead, 2 - ahead)


def test_differences_are_shown_in_range_and_beyond():
    """Two schemes that differ within the training lengths alone: the rest is a line."""
    out = printed(
        [member(0.9 + seed / 100, seed, beyond=0.1) for seed in (0, 1)]
        + [member(0.6 + seed / 100, seed, beyond=0.1, **ROTARY) for seed in (0, 1)]
    )
    _, inside, beyond = out.split("difference over equal seeds")
    assert inside.startswith(", in range") and "+0.300" in inside
    assert beyond.startswith(", beyond") and "+0.000" in beyond


@pytest.mark.parametrize(("metric", "least"), [("loss", 0.0), ("perplexity", 1.0)])
def test_an_interval_ends_at_the_least_value(metric: str, least: float):
    (both,) = compared([member(least + 0.4 * n, n) for n in range(3)], metric).groups
    summary = both.summary(metric)
    assert summary is not None and summary.low == least < summary.mean < summary.high


def test_runs_of_one_seed_each_show_numbers_and_no_dashes():
    out = printed([member(n / 100, 0, beyond=n / 50, model={"d_ff": n}) for n in (8, 16, 24)])
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == ["24"]]
    errors = ("0.0300", "0.0600", "0.0300")
    assert [row[2] for row in rows] == [*errors], "beside exact match"
    assert [row[3] for row in rows] == ["0.240", "0.480", "0.240"]
    assert " - " not in out and "difference over" not in out


def test_many_groups_have_letters_and_some_of_their_pairs():
    """In pictures too. A run that decodes otherwise than it predicts is named."""
    configs = [{"positions": p, "n_decoder_layers": n} for p in ("rotary", "alibi") for n in (1, 2)]
    members = [member(0.9, seed, model=model) for model in configs for seed in range(9)]
    out = printed([*members, member(0.5, 9, difference=0.25, model=configs[0])])
    assert "free-running differs by +0.250" in out and out.count("differs by") == 1
    assert out.startswith("A: n_decoder_layers 1, positions rotary\nB: n_decoder_layers 2, ")
    rows = [line.split()[:2] for line in out.splitlines()]
    assert ["group", "runs"] in rows and ["B", "9"] in rows and rows.count(["A", "B"]) == 1
    assert "JSON has all" not in out
    words = re.findall(">([^<>]+)</text>", compared(members).picture("", "svg").decode())
    assert any(line.startswith("B: n_decoder_layers 2") for line in words)
    sizes = [member(0.9, n, model={"d_ff": 8 * k}) for k in range(1, 7) for n in (0, 1)]
    assert "(5 of 15 pairs of groups; JSON has all)" in printed(sizes)


@pytest.mark.parametrize(("metric", "label"), [("loss", "loss in nats"), ("steps", "exact match")])
def test_pictures_are_drawn_against_length(metric: str, label: str):
    """A metric of whole runs has none."""
    found = compared([member(0.9, seed, beyond=0.8) for seed in (0, 1)], metric)
    words = re.findall(">([^<>]+)</text>", found.picture("", "svg").decode())
    assert any(line.startswith("source length") for line in words)
    assert any(label in line for line in words)


def test_the_band_of_one_run_is_the_interval_of_its_pairs(monkeypatch: pytest.MonkeyPatch):
    drawn: list[dict[str, list[tuple[float, ...]]]] = []
    draw = lambda axes, lines, trained: drawn.append(lines)  # noqa: E731
    monkeypatch.setattr("toytrans.sweeps.comparison.draw_lengths", draw)
    compared([member(0.9, beyond=0.5)]).picture("")
    ends = [(1, 0.9, *wilson_interval(9, 10)), (7, 0.5, *wilson_interval(5, 10))]
    assert drawn == [{"all": ends}]


# Which runs ----------------------------------------------------------------------------------


def test_broken_and_unfinished_runs_are_marked_and_not_averaged(runs, command: Command):
    """Unfinished, diverged, damaged weights, a config that cannot be read, and one sound run."""
    more = ("--set", "model.positions=rotary", "--set", "train.lr=1e30", "--seed", "7")
    assert command("train", "c.yaml", *more, "--out", "runs/diverged").code == 1
    config = Path("runs/rotary-1/resolved.yaml")
    config.write_text(config.read_text().replace("max_steps: 6", "max_steps: 9"))
    for weights in Path("runs/anchored-0").glob("checkpoints/*.safetensors"):
        weights.write_bytes(b"\0" * 99)
    Path("runs/anchored-1/resolved.yaml").write_text("{")
    answer = command("eval", "runs")
    assert answer.code == 0, answer.err
    lines = [line for line in answer.out.splitlines() if line.startswith("not counted: ")]
    reasons = {line.split()[2].rstrip(":"): line for line in lines}
    said = {
        "runs/rotary-1": "unfinished: step 6 of 9",
        "runs/anchored-0": "step-6.safetensors",
        "runs/anchored-1": "resolved.yaml",
        "runs/diverged": "diverged: loss not finite by step",
    }
    assert reasons.keys() == said.keys()
    assert {run: reasons[run] for run in said if said[run] not in reasons[run]} == {}
    about = comparison(command, "runs")
    averaged = [group["summaries"]["free_exact_match"]["all"] for group in about["groups"]]
    assert [summary["runs"] for summary in averaged if summary] == [1]
    assert [each["run"] for each in about["unread"]] == ["runs/anchored-1"]
    Path("runs/killed").mkdir()
    Path("runs/killed/failed.json").write_text('{"reason": "killed", "traceback": ""}')
    counts = {"counted": 1, "unfinished": 1, "diverged": 1, "failed": 2, "cannot be read": 1}
    assert comparison(command, "runs")["counts"] == counts
    assert command("eval", "runs/rotary-1", "runs/diverged").code == 1, "none can be counted"


def test_what_is_no_run_is_refused(runs, refused):
    Path("empty").mkdir()
    Path("a/b").mkdir(parents=True)
    for name in ("nothing", "empty", "c.yaml", "a"):
        assert "run directory" in refused("eval", runs[0], name)


def test_a_sweep_is_compared_as_it_compares_itself(here: Path, command: Command):
    """The same code: the same table, from the results as they lie, and with other lengths anew."""
    words = ("sweep", "c.yaml", "--seeds", "0:0", "--set", "train.lr=1e-3,1e30", *MATCH)
    swept = command(*words)
    assert swept.code == 1
    named = command("eval", "runs/sweeps/c")
    assert named.out == swept.out and named.code == 0
    (lost,) = [line for line in named.out.splitlines() if line.startswith("not counted: ")]
    assert "diverged" in lost and lost.count("runs/sweeps/c/lr=1e+30,seed=0") == 1
    runs = sorted(map(str, Path("runs/sweeps/c").glob("lr=*")))
    assert command("eval", *runs).out == swept.out, "its runs alone have the numbers it has kept"
    other = comparison(command, "runs/sweeps/c", "--lengths", "1:5", "--examples", "20")
    curve: list[dict[str, Any]] = other["groups"][0]["by_length"]
    assert [row["shortest"] for row in curve] == [*range(1, 6)]
