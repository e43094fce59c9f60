"""`toytrans eval` and `toytrans translate`: several runs, lengths, and which run is taken."""

import importlib
import json
import re
from pathlib import Path

import pytest
from conftest import Command, call, tiny_yaml

from toytrans.evaluation import Scores
from toytrans.training import measured

DATA = {"test_examples": 40}
CONFIG = tiny_yaml(data=DATA, train={"max_steps": 2})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    config = folder / "copy.yaml"
    config.write_text(CONFIG)
    paths = [str(folder / name) for name in ("a", "b", "c")]
    for seed, path in enumerate(paths):
        train = ("train", "--config", str(config), "--out", path)
        assert call(*train, "--set", f"seed={seed}") == 0
    return paths


def test_a_run_that_is_named_twice_is_measured_once(runs, command: Command, monkeypatch):
    monkeypatch.chdir(Path(runs[0]).parent)
    name = Path(runs[0]).name
    once = json.loads(command("eval", name, f"./{name}", runs[0], "--json").out)
    assert once["seed"] == 0, "the document of one run"


def test_the_newest_run_is_named_with_what_is_missing(command: Command, here: Path):
    assert command("train", "c.yaml", "--set", "train.max_steps=3").code == 0
    assert command("translate", "1").err == "run: runs/c, the newest\n"
    config = here / "runs/c/config.yaml"
    config.write_text(config.read_text().replace("max_steps: 3", "max_steps: 9"))
    answer = command("translate", "1")
    assert answer.err == "run: runs/c, the newest; training is unfinished: step 3 of 9\n"
    assert command("translate", "runs/c", "1").err == "", "it was named by the user"


def test_four_hundred_lengths_fit_eighty_columns(runs, command: Command, monkeypatch):
    """They are measured once, decoded to 9 tokens at most, and shown in both ways."""
    monkeypatch.setenv("COLUMNS", "80")
    greedy = importlib.import_module("toytrans.model.decoding.greedy")
    limits = greedy.token_limits
    monkeypatch.setattr(greedy, "token_limits", lambda *given: limits(*given).clamp(max=9))
    measure, found = measured.measure, []

    def once(*given) -> Scores:
        if not found:
            found.append(measure(*given))
        return found[0]

    monkeypatch.setattr(measured, "measure", once)
    options = ("--lengths", "1:400", "--examples", "40", "--decode", "1")
    out = command("eval", runs[0], *options).out
    assert max(map(len, out.splitlines())) <= 80 and out.count("\n") < 100
    assert "…" not in out and "\x1b" not in out
    assert re.search(r"^ +2\d\d-2\d\d ", out, re.M)
    document = json.loads(command("eval", runs[0], *options, "--json").out)
    assert len(document["by_length"]) > 30, "each length in JSON"
    assert document["examples"] == 40 >= document["decoded"] == len(document["by_length"])


def test_a_narrow_terminal_cuts_no_number(runs, command: Command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    for some in (runs[:1], runs):
        answer = command("eval", *some, "--metric", "loss")
        assert answer.code == 0 and "\u2026" not in answer.out
        assert re.search(r" \d\.\d{3,4} +\d\.\d{3,4}(\.\.| +)\d\.\d{3,4} ", answer.out)


def test_lengths_may_be_those_of_targets(command: Command, here: Path):
    """SCAN's way: training targets of 2 to 5 symbols, tested on longer ones of as short sources."""
    rows = [(f"w{a}", " ".join(["x"] * a)) for a in range(2, 9)]
    Path("train.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows[:4]) + "w6 w7 w8\tx x\n")
    Path("test.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows))
    files = {"train": "train.tsv", "valid": "train.tsv", "test": "test.tsv"}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}, train={"max_steps": 2}))
    assert command("train", "--config", "c.yaml", "--out", "r").code == 0
    found = json.loads(command("eval", "r", "--length-of", "tgt", "--json").out)
    assert [row["length"] for row in found["by_length"]] == [2, 3, 4, 5, 6, 7, 8]
    assert (found["length_of"], found["train_length"]) == ("tgt", [2, 5])
    assert (found["in_range"]["examples"], found["beyond"]["examples"]) == (4, 3)
    some = json.loads(command("eval", "r", "--length-of", "tgt", "--lengths", "6:7", "--json").out)
    assert [row["length"] for row in some["by_length"]] == [6, 7]
    assert "per target length" in command("eval", "r", "--length-of", "tgt").out
    refused = command("eval", "r", "--length-of", "tgt", "--lengths", "20:30")
    assert refused.code == 2 and "no target of such a length" in refused.err
    Path("train.tsv").unlink()
    gone = command("eval", "r", "--length-of", "tgt")
    assert gone.code == 2 and "train.tsv" in gone.err and gone.err.count("\n") == 1
