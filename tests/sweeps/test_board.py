"""Boards: what they say, how they train, and the results that are kept."""

import csv
import json
import math
from pathlib import Path
from statistics import fmean

import pytest
from conftest import ROOT, Command

from toytrans.resolve import resolve
from toytrans.sweeps import board as boards
from toytrans.sweeps.board import board_names, config_of, load_board, plan_board
from toytrans.sweeps.trial import by_names

NAMES = ["chomsky", "joeynmt", "ontanon", "scan", "sockeye", "t2t"]
SCAN_FILES = [f"tasks_{x}_{name}.txt" for x in ("train", "test") for name in ("simple", "length")]

TINY = """
title: a tiny board
source: nowhere
knows: nothing
config:
  data: {symbols: 4, train_length: [1, 3], test_length: [1, 4], valid_examples: 20}
  model: {positions: anchored, norm: pre, d_model: 16, n_heads: 4, d_ff: 16, n_decoder_layers: 1}
  train: {max_steps: 20}
control:
  model: {positions: sinusoidal}
tasks:
  copy: {data: {task: copy}}
measures:
  copy:
    short: {lengths: [1, 4], examples: 20, decode: null, published: {somebody: 0.25}, aim: 0.5}
    perplexity: {lengths: [1, 4], examples: 20, decode: null, metric: perplexity}
    long: {lengths: [9, 9], examples: 10, decode: 2, metric: free_token_accuracy, control: 5}
    ours alone: {lengths: [3, 3], examples: 7, control: 0}
"""
BOTH = TINY.replace("measures:", "  reverse: {data: {task: reverse}}\nmeasures:")
BOTH += TINY[TINY.index("  copy:\n") :].replace("copy", "reverse")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small board, which is where commands run."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(boards, "FOLDER", tmp_path)
    monkeypatch.setattr(boards, "SEEDS", (0, 1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scan_files(tmp_path: Path) -> Path:
    for name in SCAN_FILES:
        (tmp_path / name).write_text("IN: walk OUT: I_WALK\n")
    return tmp_path


def rows_of(name: str) -> list[dict]:
    """The rows of the results that are kept."""
    kept = json.loads((ROOT / f"results/{name}.json").read_text())
    return [dict(zip(kept["columns"], row, strict=True)) for row in kept["rows"]]


@pytest.mark.parametrize("name", NAMES)
def test_every_board_trains_one_model_beside_a_sinusoidal_one(name, scan_files):
    assert name in board_names()
    board, trials = load_board(name), plan_board(name, scan_files).trials
    assert len(trials) == len({each.path for each in trials}) == 10 * len(board.tasks)
    ours = [each.config for each in trials if each.about["config"] == "ours"]
    assert len({config.model.model_dump_json() for config in ours}) == 1, "one model for all tasks"
    for one, other in zip(trials[::2], trials[1::2], strict=True):
        assert [each.about["config"] for each in (one, other)] == ["ours", "control"]
        assert one.about["task"] == other.about["task"]
        assert one.config.data == other.config.data, "the same data"
        like = other.config.train.model_copy(update={"lr": one.config.train.lr})
        assert one.config.train == like, "the same budget"
        assert other.config.model.positions == "sinusoidal" != one.config.model.positions
    for measure in (measure for each in trials for measure in each.measures):
        assert (measure.examples is None) == (measure.lengths is None), "all of a file"
        assert measure.examples is None or measure.examples >= 4
    assert {each.config.seed for each in trials} == {0, 1, 2, 3, 4}


def agree(kept, now) -> bool:
    """Whether two values are equal; of sections the keys that both have."""
    if isinstance(kept, dict) and isinstance(now, dict):
        return all(kept[key] == now[key] for key in kept.keys() & now.keys())
    return kept == now


@pytest.mark.parametrize("name", NAMES)
def test_kept_results_are_those_of_the_board_as_it_is(name, scan_files):
    kept, board = json.loads((ROOT / f"results/{name}.json").read_text()), load_board(name)
    assert (kept["knows"], kept["notes"]) == (board.knows, list(board.notes))
    whole = [row for row in rows_of(name) if row["part"] == "all" and row["metric"] == "loss"]
    found = {(r["task"], r["config"], r["seed"], r["measure"]): r["pairs"] for r in whole}
    wanted = {
        (*each.about.values(), each.config.seed, key): measure.examples
        for each in plan_board(name, scan_files).trials
        for key, asked in board.measures[each.about["task"]].items()
        if (measure := asked.of(each.about["config"])) in each.measures
    }
    assert found.keys() == wanted.keys() and len(found) == len(whole)
    assert all(pairs is None or found[key] == pairs for key, pairs in wanted.items())
    for label, saved in kept["configs"].items():
        task, kind = label.split(", ")
        now = by_names(resolve(config_of(board, task, kind, 0, scan_files)))
        for section in ("data", "model", "train"):
            shared = saved[section].keys() & now[section].keys()
            shared -= {key for key in shared if ".py:" in str(now[section][key])}  # was built in
            assert all(agree(saved[section][key], now[section][key]) for key in shared)


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


def test_boards_tasks_and_files_that_are_not_there_are_refused(tiny, command: Command, refused):
    (tiny / "tiny.yaml").write_text(BOTH)
    assert json.loads(command("board", "--json").out) == {"tiny": ["copy", "reverse"]}
    assert "copy, reverse" in command("board").out
    assert "no board 't2'; there are tiny" in refused("board", "t2")
    message = refused("board", "tiny", "copy", "shift")
    assert "tiny has no task 'shift'; it has 'copy', 'reverse'" in message
    board = TINY.replace("task: copy", "files: {train: t.txt, test: t.txt}")
    (tiny / "tiny.yaml").write_text(board.replace("knows:", "files_from: them\nknows:"))
    for words, said in (((), "this board needs t.txt: "), (("--data", "."), "t.txt: no such file")):
        message = refused("board", "tiny", *words)
        assert said in message and "they come from them; name their folder with --data" in message


def test_a_board_trains_writes_its_table_and_is_not_trained_twice(tiny, command: Command):
    answer = command("board", "tiny", "--json")
    assert answer.code == 0, answer.err
    measures = json.loads(answer.out)["tasks"]["copy"]
    folder = tiny / "runs/boards/tiny"
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))

    def values(config: str, measure: str, metric: str) -> list[tuple[float, str]]:
        wanted = (config, measure, metric, "all")
        mine = [r for r in rows if (r["config"], r["measure"], r["metric"], r["part"]) == wanted]
        return [(float(row["value"]), row["pairs"]) for row in mine]

    def printed(measure: str) -> list[list[float]]:
        groups = measures[measure]["groups"]
        return [
            [run["parts"]["all"][measures[measure]["metric"]] for run in each["runs"]]
            for each in groups
        ]

    assert printed("short")[0] == [v for v, _ in values("ours", "short", "free_exact_match")]
    losses = [math.exp(loss) for loss, _ in values("control", "short", "loss")]
    assert printed("perplexity")[1] == pytest.approx(losses)
    long = values("control", "long", "free_token_accuracy")
    assert printed("long")[1] == [v for v, _ in long] and long[0][1] == "2"
    assert values("control", "long", "loss")[0][1] == "5"
    assert len(printed("ours alone")) == 1 and not values("control", "ours alone", "loss")
    again = command("board", "tiny")
    assert "4 runs (4 finished)" in again.err
    title = "copy: free-running exact match, all: test pairs of lengths 1 to 4, checkpoint last"
    assert f"{title} (aim 0.5)" in again.out
    lines = [line.split() for line in again.out.splitlines()]
    assert {line[1] for line in lines if line[:1] == ["ours"]} == {"2"}, "runs"
    assert "published: somebody 0.250" in again.out
    (run, *_) = folder.glob("copy-ours-s0-*")
    short, long = json.loads((run / "eval.json").read_text())[:2]
    (run / "eval.json").unlink()
    (tiny / "tiny.yaml").write_text(
        TINY.replace("examples: 10, decode: 2", "examples: 20, decode: 3")
    )
    assert "(4 going on)" in command("board", "tiny").err
    changed = json.loads((run / "eval.json").read_text())
    assert short in changed and long not in changed, "measured to the same numbers"
    (tiny / "tiny.yaml").write_text(BOTH)
    answer = command("board", "tiny", "reverse")
    assert answer.code == 0 and "\nreverse: " in answer.out and "\ncopy: " not in answer.out
    table = json.loads((folder / "table.json").read_text())
    both = {row[table["columns"].index("task")] for row in table["rows"]}
    assert both == {"copy", "reverse"}, "the numbers of other tasks stay"
