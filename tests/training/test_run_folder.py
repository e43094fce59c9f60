"""The folders of runs: their names, and the claim of a new one. Locks: test_crashes.py."""

import os
from pathlib import Path

import pytest
from conftest import Command, tiny_yaml

TRAIN = ("train", "--config", "copy.yaml")


@pytest.fixture(autouse=True)
def config(here: Path) -> None:
    (here / "copy.yaml").write_text(tiny_yaml(train={"max_steps": 2}))


def test_runs_are_named_after_their_config_and_counted(command: Command):
    for expected in ("copy", "copy-2", "copy-3"):
        assert f"runs/{expected}: cpu, fp32" in command(*TRAIN).err
    assert sorted(os.listdir("runs")) == ["copy", "copy-2", "copy-3"]
    assert "runs/copy-3" in command("eval").out, "the newest run is taken"
    command(*TRAIN, "--resume", "--out", "runs/copy-2", "--set", "train.max_steps=3")
    assert "runs/copy-2, step" in command("eval").out, "the one written to last"
    assert "resumed at step 2" in command(*TRAIN, "--resume").err, "the last of this config"


def test_a_folder_that_another_training_has_just_made_is_left_to_it(command, monkeypatch):
    from toytrans.training import run_folder

    first = run_folder.choose_folder

    def outrun(*arguments, **options):
        path = first(*arguments, **options)
        if path.name == "copy":
            path.mkdir(parents=True)
        return path

    monkeypatch.setattr(run_folder, "choose_folder", outrun)
    assert command(*TRAIN).code == 0
    assert os.listdir("runs/copy") == [] and Path("runs/copy-2/config.yaml").is_file()
