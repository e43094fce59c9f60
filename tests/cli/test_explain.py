"""`toytrans explain` and `toytrans new`: every name is explained, a new config trains as it is."""

import json
import re
from pathlib import Path

import pytest
from conftest import Command

import toytrans
from toytrans.checks.rules import CHECKS
from toytrans.config.faults import FAULTS
from toytrans.config.load import load_config
from toytrans.data.tasks import TASKS
from toytrans.glossary import card, keys
from toytrans.new_config import new_config
from toytrans.resolve import resolve

pytestmark = pytest.mark.usefixtures("here")
NAMED = {"tasks": sorted(TASKS), "faults": FAULTS}
NAMED["checks"] = tuple(CHECKS)
NAMED["keys"] = tuple(dict.fromkeys(key.path for key in keys()))


@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_new_config_is_that_of_its_task_alone(here: Path, task: str):
    (here / "new.yaml").write_text(new_config(task))
    (here / "bare.yaml").write_text(
        f"data: {{task: {task}}}\ntrain: {{eval_every: 100, stop_at_exact_match: 0.99}}\n"
    )
    new, bare = (resolve(load_config(here / name)) for name in ("new.yaml", "bare.yaml"))
    assert new == bare
    assert all(len(line) <= 100 for line in new_config(task).splitlines())


def test_a_new_config_trains_as_it_is(command: Command, refused):
    assert command("new", "sort").out == new_config("sort")
    assert "task: reverse" in command("new").out
    written = command("new", "sort", "--out", "sort.yaml")
    assert written.code == 0 and "toytrans train sort.yaml" in written.err
    assert Path("sort.yaml").read_text() == new_config("sort")
    few = ("train.max_steps=2", "data.valid_examples=20", "data.test_examples=20")
    done = command("train", "sort.yaml", *(word for one in few for word in ("--set", one)))
    assert done.code == 0, done.err
    assert "did you mean sort?" in refused("new", "srt")


def test_every_key_is_described_and_explained(command: Command):
    every = list(keys())
    assert len(every) > 50 and len({key.path for key in every}) == len(every)
    for key in every:
        assert key.type and card(key.path)["meaning"] == key.meaning
        assert key.default or key.type == "section", key.path
    shown = " ".join(command("explain", "train.lr").out.split())
    assert all(words in shown for words in ("train.lr", "default 0.003", "range > 0"))
    section = command("explain", "data").out
    assert "symbols" in section and "max_steps" not in section


def test_the_lists_name_everything(command: Command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    overview = command("explain").out
    for kind, names in NAMED.items():
        listed = command("explain", kind).out, toytrans.explain(kind)
        for name in names:
            assert all(re.search(rf"^{name} ", text, re.M) for text in listed), name
            assert name in overview, name


def test_every_key_task_fault_and_check_is_explained():
    for name in (name for names in NAMED.values() for name in names):
        first, *lines = toytrans.explain(name).splitlines()
        assert first == name and len(lines) >= 2
        assert all(line.startswith("  ") for line in lines), name


def test_the_card_of_a_config_is_that_of_its_task(command: Command):
    assert "The target is the source." in command("explain", "c.yaml").out
    schema = json.loads(command("explain", "schema").out)
    assert schema["properties"].keys() >= {"seed", "data", "model", "train"}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("lr", "did you mean train.lr?"),
        ("revrese", "did you mean reverse?"),
        ("zzz", "`toytrans explain` lists all keys"),
        ("two\nlines", "two\\nlines"),
        ("none.py:f", "none.py: no such file"),
    ],
)
def test_an_unknown_name_is_refused(refused, name: str, answer: str):
    message = refused("explain", name)
    assert answer in message and message.rstrip("\n").isprintable()
