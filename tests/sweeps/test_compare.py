"""`toytrans compare`: runs grouped by config, whatever they are given as."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, config_of, tiny_yaml
from rich.console import Console

from toytrans.cli.render.groups import print_groups
from toytrans.files import json_text
from toytrans.sweeps.groups import Member
from toytrans.sweeps.groups import group as grouped
from toytrans.sweeps.picture import draw

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


def comparison(command: Command, *words: str, code: int = 0) -> dict:
    answer = command("compare", *words, "--json")
    assert answer.code == code, answer.err
    return json.loads(answer.out, parse_constant=pytest.fail)


def test_runs_are_grouped_by_config_with_the_numbers_of_eval(runs, command: Command):
    about = comparison(command, *runs, *MATCH)
    assert [group["differs"] for group in about["groups"]] == [
        {"model.positions": "rotary"},
        {"model.positions": "anchored"},
    ]
    measured = json.loads(command("eval", *runs, *MATCH, "--json").out)
    assert measured["over_runs"] is None, "several configs have no common average"
    assert [group["paths"] for group in measured["groups"]] == [runs[:2], runs[2:]]
    for group, own in zip(about["groups"], measured["groups"], strict=True):
        mean = own["forced_exact_match"]["mean"]
        assert group["summaries"]["value"]["mean"] == pytest.approx(mean)
        mean = own["beyond"]["forced_exact_match"]["mean"]
        assert group["summaries"]["beyond"]["mean"] == pytest.approx(mean)
    (pair,) = [pair for pair in about["pairs"] if pair["part"] == "value"]
    assert (pair["first"], pair["second"], pair["runs"]) == (0, 1, 2)
    assert pair["ahead"] + pair["behind"] + pair["level"] == 2


def test_without_lengths_every_test_pair_is_decoded(runs, command: Command):
    about = comparison(command, runs[0])
    measured = json.loads(command("eval", runs[0], "--json").out)
    assert about["groups"][0]["runs"][0]["values"]["value"] == measured["exact_match"]
    assert about["groups"][0]["curve"] == [] and about["lengths"] is None
    shown = command("compare", runs[0]).out
    assert "test pairs, free-running" in shown and "difference over" not in shown


def test_a_folder_of_runs_is_all_of_them_each_once(runs, command: Command):
    about = comparison(command, "runs", runs[1])
    found = [run["run"] for group in about["groups"] for run in group["runs"]]
    assert sorted(found) == sorted(runs)


def test_curves_go_to_a_table_and_a_picture(runs, command: Command, refused):
    words = ("compare", *runs, *MATCH, "--csv", "c.csv", "--plot", "c.png")
    assert command(*words).code == 0
    rows = list(csv.DictReader(Path("c.csv").read_text().splitlines()))
    assert len(rows) == 4 * 7 and rows[0].keys() == {
        "run",
        "model.positions",
        "seed",
        "data_seed",
        "length",
        "part",
        "exact_match",
        "low",
        "high",
        "pairs",
    }
    assert sum(int(row["pairs"]) for row in rows if row["run"] == runs[0]) == 40
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    assert "--csv c.csv: exists already" in refused(*words)
    assert "end the name with .png or .svg" in refused("compare", *runs, "--plot", "c.pdf")
    assert command("compare", *runs, "--csv", "runs.csv").code == 0
    (row, *_) = csv.DictReader(Path("runs.csv").read_text().splitlines())
    assert row["exact_match_all"] and row["trouble"] == ""
    measured = json.loads(command("eval", runs[0], "--json").out)
    assert int(row["pairs"]) == measured["examples"] > 0


def test_a_picture_says_what_its_letters_stand_for():
    curves = [{}, dict.fromkeys(range(1, 5), 0.5)]
    for curve in curves:
        sections = {"positions": "rotary", "d_ff": 8, "d_model": 32, "norm": "post"}
        groups = grouped(
            Member(Path(str(number)), config, {"value": 0.5}, curve)
            for number, config in enumerate([config_of(), config_of(model=sections)])
        )
        picture = draw(groups, "", "svg").decode()
        words = re.findall("<!-- (.*?) -->", picture)
        assert any(line.startswith("B: ") and "d_ff 8" in line for line in words), words


def printed(members: list[Member]) -> str:
    """The tables of a comparison, 80 columns wide."""
    console = Console(width=80)
    with console.capture() as captured:
        print_groups(console, grouped(members), "test pairs")
    return captured.get()


def member(value: float, seed: int = 0, beyond: float | None = None, **sections: Any) -> Member:
    values = {"value": value, "in_range": value} | ({} if beyond is None else {"beyond": beyond})
    return Member(Path(f"run-{seed}"), config_of(seed=seed, **sections), values)


def test_differences_are_shown_in_range_and_beyond():
    """Two schemes that differ within the training lengths alone."""
    rotary = {"model": {"positions": "rotary"}}
    out = printed(
        [member(0.9 + seed / 100, seed, 0.0) for seed in (0, 1)]
        + [member(0.6 + seed / 100, seed, 0.0, **rotary) for seed in (0, 1)]
    )
    _, inside, beyond = out.split("difference over equal seeds")
    assert inside.startswith(", in range") and "+0.300" in inside
    assert beyond.startswith(", beyond") and "+0.000" in beyond
    assert "need two" not in out and "learned little" not in out


def test_pairs_that_are_not_shown_are_counted():
    sizes = (8, 16, 24, 32, 40, 48)
    out = printed([member(0.9, n, model={"d_ff": size}) for size in sizes for n in (0, 1)])
    assert "5 of 15 pairs, those of 8; `toytrans compare RUN ... --json` has all" in out
    fewer = [member(0.9, n, model={"d_ff": size}) for size in sizes[:5] for n in (0, 1)]
    assert "pairs, those of" not in printed(fewer)


def test_runs_of_one_seed_each_show_numbers_and_no_dashes():
    sizes = (8, 16, 24, 32, 40)
    out = printed([member(size / 100, 0, 0.0, model={"d_ff": size}) for size in sizes])
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == ["24"]]
    assert rows == [["24", "1", "0.240", "0"], ["24", "1", "0.000", "0"], ["24", "1", "0.240", "0"]]
    assert " - " not in out and "difference over" not in out
    assert out.count("they need two or more of a config") == 1


def test_names_of_several_keys_are_whole_in_eighty_columns():
    """They are letters, with a line for each above the tables."""
    configs = [{"positions": p, "n_decoder_layers": n} for p in ("rotary", "alibi") for n in (1, 2)]
    out = printed([member(0.9, seed, model=model) for model in configs for seed in range(9)])
    assert out.startswith("A: n_decoder_layers 1, positions rotary\nB: n_decoder_layers 2, ")
    rows = [line.split()[:2] for line in out.splitlines()]
    assert ["group", "runs"] in rows and ["A", "9"] in rows and rows.count(["A", "B"]) == 1


def test_own_code_is_named_by_its_path_from_here(here: Path):
    (here / "mine.py").write_text("class Slope: pass\n")
    own = {"model": {"positions": f"{here / 'mine.py'}:Slope"}}
    names = {each.name for each in grouped([member(0.9), member(0.8, **own)])}
    assert names == {config_of().model.positions, "mine.py:Slope"}


def test_what_the_numbers_cannot_say_is_said():
    runs = [member(0.9), member(0.09, model={"positions": "rotary"})]
    out = printed(runs)
    assert "learned little, exact match in range: rotary 0.090; train longer" in out
    assert "sd, 95% and differences are over seeds: they need two or more" in out
    assert "learned little" not in printed([member(0.0, fault="no_causal")])


def test_broken_and_unfinished_runs_are_marked_and_not_averaged(runs, command: Command):
    """Unfinished, diverged, damaged weights, a config that cannot be read, and one sound run."""
    more = ("--set", "model.positions=rotary", "--set", "train.lr=1e30", "--seed", "7")
    assert command("train", "c.yaml", *more, "--out", "runs/diverged").code == 1
    config = Path("runs/rotary-1/config.yaml")
    config.write_text(config.read_text().replace("max_steps: 6", "max_steps: 9"))
    for weights in Path("runs/anchored-0").glob("checkpoints/*.safetensors"):
        weights.write_bytes(b"\0" * 99)
    Path("runs/anchored-1/config.yaml").write_text("{")
    answer = command("compare", "runs")
    assert answer.code == 0, answer.err
    lines = [line for line in answer.out.splitlines() if line.startswith("not counted: ")]
    reasons = {line.split()[2].rstrip(":"): line for line in lines}
    assert set(reasons) == {
        "runs/rotary-1",
        "runs/anchored-0",
        "runs/anchored-1",
        "runs/diverged",
    }
    assert "unfinished: step 6 of 9" in reasons["runs/rotary-1"]
    assert "diverged by step" in reasons["runs/diverged"]
    assert (
        "wrong checksum" in reasons["runs/anchored-0"]
        and "config.yaml" in reasons["runs/anchored-1"]
    )
    about = comparison(command, "runs")
    averaged = [group["summaries"]["value"] for group in about["groups"]]
    assert [summary and summary["runs"] for summary in averaged].count(1) == 1
    assert averaged.count(None) == len(averaged) - 1
    assert [each["run"] for each in about["unread"]] == ["runs/anchored-1"]


def test_where_no_run_can_be_counted_the_exit_code_is_1(runs, command: Command):
    shutil.rmtree("runs/rotary-0/checkpoints")
    answer = command("compare", "runs/rotary-0")
    assert answer.code == 1 and "not counted: runs/rotary-0" in answer.out


@pytest.mark.parametrize("name", ["nothing", "empty", "c.yaml", "../../..", "\0"])
def test_what_is_no_run_is_refused(name, here: Path, refused):
    Path("empty").mkdir()
    if name == "../../..":
        Path("a/b").mkdir(parents=True)
        name = "a"
    assert "not a run, a folder of runs or the name of a sweep" in refused("compare", name)


def test_a_sweep_by_its_name_ends_like_the_sweep(here: Path, command: Command):
    """The same code: the same table, from the results as they lie, and with other lengths anew."""
    words = ("sweep", "c.yaml", "--seeds", "0:0", "--set", "train.lr=1e-3,1e30", *MATCH)
    swept = command(*words)
    assert swept.code == 1
    named = command("compare", "c")
    assert named.out == swept.out and named.code == 0
    assert command("compare", "runs/sweeps/c").out == swept.out
    other = comparison(command, "c", "--lengths", "1:5", "--examples", "20")
    assert [row["lengths"] for row in other["groups"][0]["curve"]] == [[n, n] for n in range(1, 6)]


def test_a_result_of_another_measure_is_not_taken_for_this_one(runs, command: Command):
    path = Path(runs[0])
    values = {"asked": {"lengths": None, "pairs": 3, "decode": None}, "value": 0.9}
    zeros = dict.fromkeys(("loss", "exact_match", "forced_exact_match", "token_accuracy"), 0.0)
    taken = values | zeros | {"free_token_accuracy": 0.0, "by_length": {}}
    (path / "result.json").write_text(json_text({"measures": {"test": taken}}))
    about = comparison(command, runs[0])
    assert about["groups"][0]["runs"][0]["values"]["value"] < 0.9
