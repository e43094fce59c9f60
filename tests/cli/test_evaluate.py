"""`toytrans eval` and `toytrans translate`: several runs, lengths, and which run is taken."""

import json
import re
import shutil
from pathlib import Path

from conftest import Command, tiny_yaml


def test_a_run_that_is_named_twice_is_measured_once(run: Path, command: Command):
    once = json.loads(command("eval", "runs/c", "./runs/c", str(run.resolve()), "--json").out)
    assert once["seed"] == 0, "the document of one run"


def test_the_newest_run_is_named_with_what_is_missing(run: Path, command: Command):
    assert command("translate", "1").err == "run: runs/c, the newest\n"
    config = run / "resolved.yaml"
    config.write_text(config.read_text().replace("max_steps: 6", "max_steps: 9"))
    answer = command("translate", "1")
    assert answer.err == "run: runs/c, the newest; training is unfinished: step 6 of 9\n"
    assert command("translate", "runs/c", "1").err == "", "it was named by the user"


def test_a_narrow_terminal_cuts_no_number(run: Path, command: Command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    for seed in ("1", "2"):
        assert command("train", "c.yaml", "--seed", seed).code == 0
    for some in ("runs/c", "runs"):
        answer = command("eval", some, "--metric", "loss")
        assert answer.code == 0 and "…" not in answer.out
        assert re.search(r" \d\.\d{3,4} +\d\.\d{3,4}(\.\.| +)\d\.\d{3,4} ", answer.out)


def test_lengths_may_be_those_of_targets(here: Path, command: Command, refused):
    """SCAN's way: training targets of 2 to 5 symbols, tested on longer ones of as short sources."""
    rows = [(f"w{a}", " ".join(["x"] * a)) for a in range(2, 9)]
    Path("train.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows[:4]) + "w6 w7 w8\tx x\n")
    Path("test.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows))
    files = {"train": "train.tsv", "valid": "train.tsv", "test": "test.tsv"}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}, train={"max_steps": 2}))
    assert command("train", "c.yaml", "--out", "r").code == 0
    by_target = ("eval", "r", "--length-of", "tgt")
    found = json.loads(command(*by_target, "--json").out)
    assert [row["shortest"] for row in found["by_length"]] == [2, 3, 4, 5, 6, 7, 8]
    assert (found["measure"]["length_of"], found["train_length"]) == ("tgt", [2, 5])
    assert [found["parts"][part]["pairs"] for part in ("in_range", "beyond")] == [4, 3]
    some = json.loads(command(*by_target, "--lengths", "6:7", "--json").out)
    assert [row["shortest"] for row in some["by_length"]] == [6, 7]
    assert "per target length" in command(*by_target).out
    assert "no target of such a length" in refused(*by_target, "--lengths", "20:30")
    Path("train.tsv").unlink()
    assert "train.tsv" in refused(*by_target)


def test_every_output_can_be_saved(here: Path, command: Command, refused):
    """In the order of the pairs, with what `translate` says of each source, and its score."""
    rows = [(f"w{a}", " ".join(["x", "y"] * a)) for a in range(1, 7)]
    Path("a.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows))
    files = {"train": "a.tsv", "valid": "a.tsv"}
    train = {"max_steps": 40, "eval_every": 40, "lr": 0.02}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}, train=train))
    trained = command("train", "c.yaml", "--out", "r")
    (measure,) = re.findall(r"toytrans (eval r.*)", trained.out)
    assert command(*measure.split()).code == 0, "what is printed as next works without test data"
    assert "measure --split valid or --pairs FILE" in refused("eval", "r")

    given = ("eval", "r", "--split", "valid")
    measured = json.loads(command(*given, "--save", "o.jsonl", "--json").out)
    saved = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert [(line["source"], line["target"]) for line in saved] == rows
    Path("s.txt").write_text("".join(f"{line['source']}\n" for line in saved))
    outputs = command("translate", "r", "--file", "s.txt").out.splitlines()
    assert [line["output"] for line in saved] == outputs
    assert [line["right"] for line in saved] == [
        line["output"] == t for line, (_, t) in zip(saved, rows, strict=True)
    ]
    assert sum(line["right"] for line in saved) == round(
        measured["parts"]["all"]["free_exact_match"] * len(rows)
    )
    assert all(line["score"] < 0 for line in saved)

    command(*given, "--save", "some.jsonl", "--lengths", "1:1", "--decode", "2")
    assert len(Path("some.jsonl").read_text().splitlines()) == 2
    assert "exists already" in refused(*given, "--save", "o.jsonl")
    assert command("train", "c.yaml", "--out", "s", "--set", "train.max_steps=1").code == 0
    assert "name one" in refused("eval", "r", "s", "--split", "valid", "--save", "n.jsonl")


def test_a_symbol_that_is_read_as_unknown_is_named(here: Path, command: Command, refused):
    Path("a.tsv").write_text("a b\tb a\nb a\ta b\nc a\ta c\n" * 4)
    files = {"train": "a.tsv", "valid": "a.tsv", "unknown": "symbol"}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}, train={"max_steps": 1}))
    assert command("train", "c.yaml", "--out", "r").code == 0
    answer = command("translate", "r", "a b", "a x y")
    assert answer.err == "argument 2: read as <unk>: 'x', 'y'\n"
    assert len(answer.out.splitlines()) == 2
    Path("new.tsv").write_text("a x\tx a\na b\tb a\n")
    measured = json.loads(command("eval", "r", "--pairs", "new.tsv", "--json").out)
    everything = measured["parts"]["all"]
    assert everything["pairs"] == 2 and everything["with_unknown"] == 1
    said = "1 of 2 targets have symbols that training lacks and can never match, so exact match is "
    for words in (("r",), ("r", "r2")):
        shutil.copytree("r", "r2", dirs_exist_ok=True)
        assert f"{said}at most 0.500" in command("eval", *words, "--pairs", "new.tsv").out
    command("train", "c.yaml", "--out", "s", "--set", "data.files.unknown=error")
    assert "symbol 'x' is not in the vocabulary" in refused("translate", "s", "a x")
