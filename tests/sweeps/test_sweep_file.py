"""Sweep files: what they say, how they train, the boards that come with the package, and the
results of boards that are kept."""

import csv
import json
import math
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from conftest import ROOT, Command, tiny_yaml

import toytrans
from toytrans.sweeps.plan import folder_name, plan
from toytrans.sweeps.sweep_file import BOARDS, board_names, plan_of, plan_of_file
from toytrans.sweeps.trial import by_names

NAMES = ["chomsky", "joeynmt", "ontanon", "scan", "sockeye", "t2t"]
SCAN_FILES = [f"tasks_{x}_{name}.txt" for x in ("train", "test") for name in ("simple", "length")]

TINY = """
title: a tiny board
source: nowhere
notes: [one thing is different]
base:
  data: {symbols: 4, train_length: [1, 3], test_length: [1, 4], valid_examples: 20}
  model: {positions: anchored, norm: pre, d_model: 16, n_heads: 4, d_ff: 16, n_decoder_layers: 1}
  train: {max_steps: 20}
grid:
  task: {copy: {data.task: copy}, backwards: {data.task: reverse}}
  model.positions: [anchored, sinusoidal]
seeds: [3]
measures:
  short: {lengths: [1, 4], examples: 20, published: {somebody: 0.25}, aim: 0.5}
  perplexity: {lengths: [1, 4], examples: 20, metric: perplexity, only: {task: [copy]}}
  long: {lengths: [9, 9], examples: 10, decode: 2, metric: free_token_accuracy}
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small sweep file, which is where commands run."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_groups_keep_their_letters_when_a_sweep_grows(here: Path):
    """The runs of before stay first, whatever the last call has asked for."""
    for rates in ([0.1], [0.01, 0.1], [0.001]):
        asked = replace(plan_of(Path("c.yaml")), grid={"train.lr": rates})
        assert list(plan(Path("sweep"), asked).train([])) == []
    saved = json.loads(Path("sweep/sweep.json").read_text())["runs"]
    assert [labels["train.lr"] for labels in saved.values()] == [0.1, 0.01, 0.001]


OWN = """
def same(source):
    return source
"""


def test_the_config_of_a_run_with_own_code_is_swept_where_its_code_is_trusted(
    here: Path, command: Command, refused
):
    Path("got").mkdir()
    Path("got/own.py").write_text(OWN)
    Path("got/config.yaml").write_text(tiny_yaml(data={"task": "own.py:same"}))
    Path("got/resolved.yaml").write_text("")
    words = ("sweep", "got/config.yaml", "--dry-run")
    assert "--trust-code" in refused(*words)
    answer = command(*words, "--trust-code")
    assert answer.code == 0 and " --trust-code " in answer.out, answer.err


@pytest.fixture
def scan_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in SCAN_FILES:
        Path(name).write_text("IN: walk OUT: I_WALK\nIN: run OUT: I_RUN\n")
    return tmp_path


def test_a_sweep_file_trains_measures_and_is_not_trained_twice(tiny: Path, command: Command):
    answer = command("sweep", "tiny.yaml", "--json")
    assert answer.code == 0, answer.err
    measures = json.loads(answer.out)["measures"]
    assert measures["short"]["published"] == {"somebody": 0.25}
    folder = tiny / "runs/sweeps/tiny"
    names = {path.name for path in folder.iterdir() if path.is_dir()}
    assert "task=copy,positions=anchored,seed=3" in names and len(names) == 4
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))

    def printed(measure: str, name: str) -> list[float]:
        runs = (run for each in measures[measure]["groups"] for run in each["runs"])
        return sorted(run["parts"]["all"][name] for run in runs)

    def written(measure: str, name: str, of: str = "run") -> list[float]:
        wanted = (of, measure, name, "all")
        mine = [r for r in rows if (r["of"], r["measure"], r["metric"], r["part"]) == wanted]
        return sorted(float(row["value"]) for row in mine)

    assert printed("short", "free_exact_match") == written("short", "free_exact_match")
    assert len(printed("short", "loss")) == 4 and len(printed("perplexity", "loss")) == 2
    losses = [math.exp(loss) for loss in written("perplexity", "loss")]
    assert printed("perplexity", "perplexity") == pytest.approx(losses)
    means = [each["summaries"]["free_exact_match"]["all"] for each in measures["short"]["groups"]]
    found = written("short", "free_exact_match", of="group")
    assert found == pytest.approx(sorted(each["mean"] for each in means)) and len(found) == 4
    again = command("sweep", "tiny.yaml")
    assert "4 runs (4 done)" in again.err
    assert again.out.startswith("a tiny board (nowhere)\none thing is different\n")
    assert "\nshort\n" in again.out and "published: somebody 0.250" in again.out
    shown = again.out[again.out.index("\nshort\n") :].replace("aim: 0.500\n", "")
    shown = shown.replace("published: somebody 0.250\n", "")
    assert command("eval", "runs/sweeps/tiny").out == shown, "eval shows the same"
    (trained,) = folder.glob("task=copy,positions=anchored,seed=3")
    steps = (trained / "metrics.jsonl").read_bytes()
    more = TINY.replace("examples: 10, decode: 2", "examples: 20, decode: 3")
    (tiny / "tiny.yaml").write_text(more)
    assert "(4 only to be measured)" in command("sweep", "tiny.yaml").err
    assert (trained / "metrics.jsonl").read_bytes() == steps, "measured again, and not trained"


def test_each_run_has_a_command_that_trains_it_alone(tiny: Path, command: Command):
    """As for an array of a scheduler: the whole command finds nothing left to do."""
    few = ("sweep", "tiny.yaml", "--set", "task=copy", "--out", "runs/array")
    lines = command(*few, "--dry-run").out.splitlines()
    assert len(lines) == 2 and not Path("runs").exists(), "nothing is written"
    for line in lines:
        assert command(*shlex.split(line)[1:]).code == 0
    assert command(*few, "--dry-run").out == ""
    assert "2 runs (2 done)" in command(*few).err
    saved = json.loads(Path("runs/array/sweep.json").read_text())
    assert saved["runs"]["task=copy,positions=sinusoidal,seed=3"] == {
        "task": "copy",
        "model.positions": "sinusoidal",
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: {data: {task: copy}}\nsets: 3\n", "s.yaml:2: sets: unknown key; did you mean"),
        ("base: {data: {task: copy}}\nseeds: many\n", "s.yaml:2: seeds: "),
        ("base: nothing.yaml\n", "nothing.yaml: no such file and no shipped config"),
        ("base: {data: {task: coppy}}\n", "did you mean copy?"),
        ("base: copy\ngrid: {model.position: [rotary]}\n", "model.position: unknown key"),
        ("base: copy\nmeasures: {a: {metric: exact}}\n", "metric 'exact'"),
        ("base: copy\nmeasures: {a: {length: 3}}\n", "s.yaml:2: measures.a.length: unknown key"),
    ],
)
def test_a_file_that_says_something_wrong_is_refused(text, said, tiny: Path, refused):
    Path("s.yaml").write_text(text)
    assert said in refused("sweep", "s.yaml")


def test_a_name_of_a_dimension_is_chosen_and_others_are_refused(tiny: Path, command, refused):
    out = command("sweep", "tiny.yaml", "--set", "task=backwards", "--dry-run").out
    assert "task=copy" not in out and out.count("task=backwards") == 2
    assert "did you mean copy?" in refused("sweep", "tiny.yaml", "--set", "task=coppy")


def test_paths_in_a_sweep_file_start_from_its_folder(tiny: Path, command: Command):
    """Of data, of code and of the base, wherever the command runs."""
    study = tiny / "study"
    study.mkdir()
    (study / "own.py").write_text("def f(source):\n    return source[::-1]\n")
    (study / "a.tsv").write_text("1 2\t2 1\n2 1\t1 2\n")
    (study / "base.yaml").write_text(tiny_yaml(data={"symbols": None}))
    grid = "{kind: {code: {data.task: own.py:f}, file: {data.task: null, data.symbols: null, "
    grid += "data.train_length: null, data.files.train: a.tsv, data.files.valid: a.tsv}}}"
    (study / "s.yaml").write_text(f"base: base.yaml\ngrid: {grid}\n")
    planned = plan(tiny / "out", plan_of_file(study / "s.yaml"))
    code, file = (trial.config for trial in planned.trials)
    assert code.data.task == f"{study}/own.py:f"
    assert file.data.files is not None and file.data.files.train == f"{study}/a.tsv"


def test_lists_of_python_stay_lists_and_a_string_one_string(tiny: Path, monkeypatch):
    folder = tiny / "a,b"
    folder.mkdir()
    (folder / "t.py").write_text("def f(source):\n    return source\n")
    made: dict[str, Any] = {}

    def planned(folder: Path, asked: Any) -> Any:
        made["trials"] = plan(folder, asked).trials
        raise StopIteration

    monkeypatch.setattr("toytrans.api.plan", planned)
    config = {"data": {"task": "copy", "train_length": [1, 3]}}
    grid = {"data.task": [f"{folder}/t.py:f", "copy"], "data.train_length": [[1, 2], (1, 3)]}
    with pytest.raises(StopIteration):
        toytrans.sweep(config, grid=grid)
    assert [trial.config.data.task for trial in made["trials"]].count(f"{folder}/t.py:f") == 2
    assert {trial.config.data.train_length for trial in made["trials"]} == {(1, 2), (1, 3)}
    for wrong, said in (
        ({"grid": {"model.positions": "rotary"}}, "grid: model.positions: 'rotary'; give a list"),
        ({"grid": {"model.positions": []}}, "grid: model.positions: none; give a list"),
        ({"seeds": 3}, "seeds: 3; give whole numbers from 0"),
    ):
        with pytest.raises(toytrans.UserError, match=said.replace("(", r"\(")):
            toytrans.sweep(config, **wrong)


def test_folders_are_named_after_what_varies():
    assert folder_name({"lr": 0.003, "seed": 0}) == "lr=0.003,seed=0"
    assert folder_name({"train_length": [1, 20], "seed": 1}) == "train_length=_1_20,seed=1"
    assert folder_name({"task": "/data/my tasks.py:f", "a": None}) == "task=my_tasks.py_f,a=none"
    assert len(folder_name(dict.fromkeys(map(str, range(99)), "long" * 9))) <= 150


# The boards that come with the package ----------------------------------------------------------


def board(name: str) -> Any:
    return plan(Path("out"), plan_of_file(BOARDS / f"{name}.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_board_trains_one_model_beside_a_sinusoidal_one(name, scan_files):
    assert name in board_names()
    trials = board(name).trials
    of = {kind: [t for t in trials if t.labels["config"] == kind] for kind in ("ours", "control")}
    assert len(of["ours"]) == len(of["control"]) == len(trials) / 2
    assert len({each.config.model.model_dump_json() for each in of["ours"]}) == 1
    for one, other in zip(of["ours"], of["control"], strict=True):
        assert one.labels.get("task") == other.labels.get("task")
        assert one.config.data == other.config.data, "the same data"
        like = other.config.train.model_copy(update={"lr": one.config.train.lr})
        assert one.config.train == like, "the same budget"
        assert other.config.model.positions == "sinusoidal" != one.config.model.positions
    for measure in (measure for each in trials for measure in each.measures):
        assert measure.checkpoint == "last", "test pairs choose nothing"
        assert (measure.examples is None) == (measure.lengths is None), "all of a file"
    assert {each.config.seed for each in trials} == {0, 1, 2, 3, 4}


def rows_of(name: str) -> list[dict]:
    """The rows of the results that are kept."""
    kept = json.loads((ROOT / f"results/{name}.json").read_text())
    return [dict(zip(kept["columns"], row, strict=True)) for row in kept["rows"]]


def agree(kept, now) -> bool:
    """Whether two values are equal; of sections the keys that both have."""
    if isinstance(kept, dict) and isinstance(now, dict):
        return all(kept[key] == now[key] for key in kept.keys() & now.keys())
    return kept == now


@pytest.mark.parametrize("name", NAMES)
def test_kept_results_are_those_of_the_board_as_it_is(name, scan_files):
    """The same configs, and as many pairs."""
    kept, planned = json.loads((ROOT / f"results/{name}.json").read_text()), board(name)
    found: dict[tuple, set[int]] = {}
    for row in rows_of(name):
        if (row["part"], row["metric"]) == ("all", "loss"):
            found.setdefault((row["task"], row["config"], row["seed"]), set()).add(row["pairs"])
    wanted: dict[tuple, set[int]] = {}
    for each in planned.trials:
        key = (each.labels.get("task", "reverse"), each.labels["config"], each.config.seed)
        wanted[key] = {measure.examples for measure in each.measures}
        now, label = by_names(each.settings), f"{key[0]}, {key[1]}"
        for section in ("data", "model", "train"):
            saved = kept["configs"][label][section]
            shared = saved.keys() & now[section].keys()
            shared -= {key for key in shared if ".py:" in str(now[section][key])}  # was built in
            assert all(agree(saved[key], now[section][key]) for key in shared), (label, section)
    assert found.keys() == wanted.keys()
    assert all(wanted[key] in ({None}, pairs) for key, pairs in found.items())


def test_the_numbers_of_the_page_are_those_that_are_kept():
    """The first number of a cell of anchored or sinusoidal is the mean of a measure's seeds."""
    page = (ROOT / "docs/results.md").read_text()
    table = page[page.index("| board, task |") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) > 20
    known = {"odds first": "odds_first", "bucket sort": "bucket_sort"}
    for line in table:
        name, _, _, ours, control, _ = (cell.strip() for cell in line.strip("|").split("|"))
        board, task = name.split(",")[0].split(" ", 1)
        task = "sort 400" if "10 symbols" in name else known.get(task, task)
        for kind, cell in (("ours", ours), ("control", control)):
            wanted, values = (task, kind, "all"), dict[tuple, list[float]]()
            for row in rows_of(board):
                if (row["task"], row["config"], row["part"]) == wanted:
                    values.setdefault((row["measure"], row["metric"]), []).append(row["value"])
            means = {f"{fmean(v):.{digits}f}" for v in values.values() for digits in (3, 4)}
            for part in cell.split("; converged")[0].split(";"):
                number = part.split()[0]
                assert number == "-" or number in means, (name, kind, number, means)


def test_a_file_that_a_board_names_is_missing_with_its_remedy(tiny: Path, refused):
    """It is looked for where the command runs, because nobody's data lie in the package."""
    message = refused("sweep", "scan", "--set", "task=length")
    assert "tasks_train_length.txt: no such file; it comes from github.com/" in message
    shutil.copy(BOARDS / "scan.yaml", tiny / "mine.yaml")
    assert str(tiny) not in refused("sweep", "mine.yaml"), "below the working directory"
