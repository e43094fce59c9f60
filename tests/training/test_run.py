"""Run directories: what they hold, what a resume keeps, what eval and translate read."""

import json
import os
from pathlib import Path

import pytest
import yaml
from conftest import tiny_yaml


@pytest.fixture(autouse=True)
def config(here: Path) -> None:
    train = {"max_steps": 2, "eval_every": 1}
    (here / "copy.yaml").write_text(tiny_yaml(data={"test_examples": 40}, train=train))


TRAIN = ("train", "--config", "copy.yaml")


def test_a_run_without_a_checkpoint_is_not_the_newest(command):
    command(*TRAIN)
    command(*TRAIN)
    for path in Path("runs/copy-2/checkpoints").iterdir():
        path.rename(f"elsewhere-{path.name}")
    assert "runs/copy, step" in command("eval").out


def test_what_a_run_directory_holds(command):
    command(*TRAIN, "--out", "r")
    files = {"config.yaml", "data.json", "environment.json", "metrics.jsonl", "checkpoints.json"}
    assert set(os.listdir("r")) == files | {"checkpoints", ".toytrans-lock"}
    environment = json.loads(Path("r/environment.json").read_text())
    assert {"torch", "python", "device", "threads", "precision", "toytrans"} <= environment.keys()
    config = Path("r/config.yaml").read_text()
    assert "test_length: [1, 9]" in config and "valid_length: [1, 4]" in config
    for line in Path("r/metrics.jsonl").read_text().splitlines():
        json.loads(line)


NOT_OF_ROTARY = ("class", "max_positions")


def test_a_saved_config_says_what_applies_to_the_run(command):
    """It trains the same run again; one that spells out what does not apply is the same config."""
    command(*TRAIN, "--out", "r", "--set", "model.positions=rotary")
    path = Path("r/config.yaml")
    saved = yaml.safe_load(path.read_text())
    assert saved["model"].keys().isdisjoint(NOT_OF_ROTARY)
    assert saved["model"]["positions"] == "rotary" and saved["model"]["score_cap"] == 0
    assert command("train", "--config", str(path), "--out", "again").code == 0
    first, again = (
        [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
        for run in ("r", "again")
    )
    assert [row["loss"] for row in first] == [row["loss"] for row in again]
    found = command("eval", "r", "--json").out
    nulls = "".join(f"  {name}: null\n" for name in NOT_OF_ROTARY)
    path.write_text(path.read_text().replace("model:\n", f"model:\n{nulls}"))
    assert command("eval", "r", "--json").out == found
    more = ("--set", "model.positions=rotary", "--set", "train.max_steps=3")
    assert command(*TRAIN, "--out", "r", *more, "--resume").code == 0
    assert yaml.safe_load(path.read_text())["model"] == saved["model"]


def test_auto_precision_stays_what_it_was_when_resumed(command, monkeypatch):
    from toytrans.training import devices

    auto = ("--set", "train.precision=auto")
    monkeypatch.setattr(devices, "NARROW", 0)
    monkeypatch.setattr(devices, "has_bf16_products", lambda _: False)
    assert "cpu, fp32" in command(*TRAIN, *auto).err
    monkeypatch.setattr(devices, "has_bf16_products", lambda _: True)
    again = command(*TRAIN, *auto, "--resume", "--set", "train.max_steps=3")
    assert again.code == 0 and "cpu, fp32" in again.err
    assert "cpu, bf16" in command(*TRAIN, *auto).err


def test_a_resume_keeps_every_record_that_can_be_read(command):
    more = ("--set", "train.log_every=1", "--set", "train.max_steps=6")
    command(*TRAIN, "--out", "r", *more)
    metrics = Path("r/metrics.jsonl")
    lines = metrics.read_bytes().splitlines(keepends=True)
    again = lines[0]  # a step that was there before
    metrics.write_bytes(b"".join([*lines[:2], b"{\x00\n", again, *lines[3:], b'{"step": 7, "lo']))
    assert command(*TRAIN, "--out", "r", *more, "--resume").code == 0
    assert metrics.read_bytes() == b"".join([*lines[:2], *lines[3:]])


def test_other_training_data_is_refused_on_resume(command):
    Path("a.tsv").write_text("".join(f"{k}\t{k}\n" for k in range(40)))
    Path("files.yaml").write_text(tiny_yaml(data={"files": {"train": "a.tsv"}}))
    train = ("train", "--config", "files.yaml", "--out", "r")
    assert command(*train).code == 0
    before = Path("r/data.json").read_text()
    with Path("a.tsv").open("a") as file:
        file.write("1\t2\n")
    again = command(*train, "--resume", "--set", "train.max_steps=3")
    assert again.code == 2 and "not that of the saved run" in again.err
    assert Path("r/data.json").read_text() == before
    assert (
        "not the file that the run was trained on" in command("eval", "r", "--split", "valid").err
    )


def test_eval_prints_the_documents_keys(command):
    command(*TRAIN, "--out", "r")
    found = json.loads(command("eval", "r", "--json", "--lengths", "3:8").out)
    summary = ["examples", "exact_match", "low", "high", "token_accuracy", "loss"]
    parts = ["in_range", "beyond", "by_length"]
    assert {"split", "checkpoint", *summary, *parts} <= found.keys()
    assert found["in_range"].keys() == found["beyond"].keys() >= set(summary)
    lengths = [row["length"] for row in found["by_length"]]
    assert lengths == sorted(lengths) and set(lengths) <= set(range(3, 9))
    assert {"length", *summary[:-1]} <= found["by_length"][0].keys()
    assert sum(row["examples"] for row in found["by_length"]) == found["examples"] == 40
    inside = json.loads(command("eval", "r", "--json", "--lengths", "1:4").out)
    assert "beyond" not in inside and inside["in_range"]["examples"] == 40


def test_eval_of_files_equals_eval_of_the_split_they_hold(command, tmp_path):
    import toytrans
    from toytrans.data.open import open_dataset
    from toytrans.data.pairs import all_pairs

    command(*TRAIN, "--out", "r")
    run = toytrans.load("r")
    pairs = all_pairs(open_dataset(run.config), "test")
    for name, ids in (("s.txt", pairs.src), ("t.txt", pairs.tgt)):
        lines = (" ".join(run.vocabulary.decode(row)) for row in ids.tolist())
        Path(name).write_text("\n".join(lines) + "\n")
    split = json.loads(command("eval", "r", "--json").out)
    files = json.loads(
        command("eval", "r", "--json", "--src-file", "s.txt", "--tgt-file", "t.txt").out
    )
    assert files.pop("split") == "files" and split.pop("split") == "test"
    assert files == split
    sides = [Path(name).read_text().splitlines() for name in ("s.txt", "t.txt")]
    Path("p.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in zip(*sides, strict=True)))
    pairs = json.loads(command("eval", "r", "--json", "--pairs", "p.tsv").out)
    assert pairs.pop("split") == "files" and pairs == split
    beam = json.loads(command("eval", "r", "--json", "--beam", "3", "--examples", "5").out)
    assert beam["examples"] == 5


def test_tables_name_the_lengths_that_were_measured(command):
    command(*TRAIN, "--set", "data.train_length=[3,4]", "--out", "r")
    out = command("eval", "r", "--lengths", "2:6", "--examples", "200").out
    for words in ("test 2 to 2, below", "test 3 to 4 ", "test 5 to 6, beyond", "test, all"):
        assert words in out
    assert "\x1b" not in out, "no colours in a pipe"


def test_tasks_shows_the_dictionary_of_a_config(command):
    Path("words.yaml").write_text("seed: 5\ndata: {task: lexicon, symbols: 3}\n")
    out = command("tasks", "--config", "words.yaml").out
    assert "of seed 5" in out
    from toytrans.data.tasks.lexicon import dictionary, vocabulary

    symbols = vocabulary(3, 5).symbols
    for word, entry in enumerate(dictionary(3, 5)[:-1].tolist()):
        assert f"{word} = {' '.join(symbols[k] for k in entry if k >= 0)}" in " ".join(out.split())
    assert command("tasks", "copy", "--config", "words.yaml").code == 2


def test_a_raised_limit_goes_on_and_nothing_derived_changes(command):
    assert command(*TRAIN, "--out", "r").code == 0
    before = Path("r/config.yaml").read_text()
    again = command(*TRAIN, "--out", "r", "--resume", "--set", "train.max_steps=40")
    assert again.code == 0 and "resumed at step 2" in again.err
    assert Path("r/config.yaml").read_text() == before.replace("max_steps: 2", "max_steps: 40")
    steps = [json.loads(line)["step"] for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)) and steps[-1] == 40


def test_resuming_nothing_starts_at_step_zero_and_says_so(command):
    done = command(*TRAIN, "--resume")
    assert "no checkpoint to resume from; starting at step 0" in done.err
    assert os.listdir("runs") == ["copy"]


def test_a_run_whose_checkpoints_are_all_damaged_is_left_as_it_is(command):
    command(*TRAIN, "--out", "r")
    for path in Path("r/checkpoints").glob("*/weights.safetensors"):
        path.write_bytes(b"")
    before = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    again = command(*TRAIN, "--out", "r", "--resume", "--set", "train.max_steps=9")
    assert again.code == 2 and "none of its checkpoints can be read" in again.err
    assert before == {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
