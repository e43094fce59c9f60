"""Checkpoints: what is kept, what is verified, what is deleted."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch
from conftest import Command, tiny_yaml, trained_run

from toytrans.errors import UserError
from toytrans.training.checkpoint import (
    Checkpoint,
    Progress,
    load_checkpoint,
    pick_step,
    read_progress,
    save_checkpoint,
    saved_steps,
)
from toytrans.training.run import RunFolder

CONFIG = tiny_yaml(train={"max_steps": 4})
LONGER = ("train", "c.yaml", "--out", "run", "--resume", "--set", "train.max_steps=8")
LAST = Path("run/checkpoints/step-4.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory, CONFIG)


@pytest.fixture
def run(trained: Path, here: Path) -> Path:
    """A run with the checkpoints 2 and 4."""
    return Path(shutil.copytree(trained, "run"))


def of_step(step: int, best: int | None = None) -> Checkpoint:
    parts = [{"x": torch.tensor([step])} for _ in range(3)]
    return Checkpoint(Progress(step=step, best_step=best), *parts)


def test_the_newest_two_and_the_best_are_kept(tmp_path: Path):
    for step, best in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 2)):
        save_checkpoint(tmp_path, of_step(step, best))
    assert saved_steps(tmp_path) == [2, 4, 5]
    assert [pick_step(tmp_path, which) for which in ("best", "last", "4")] == [2, 5, 4]
    assert {"2", "4", "5"} <= set(json.loads((tmp_path / "checkpoints.json").read_text()))
    with pytest.raises(UserError, match="no checkpoint 999"):
        pick_step(tmp_path, "9" * 5000)


def test_a_checkpoint_holds_what_was_saved(tmp_path: Path):
    tensors = {"a.b/c": torch.randn(2, 3), "n": torch.tensor(7), "bytes": torch.arange(9).byte()}
    progress = Progress(step=3, pairs_used=99, best_loss=0.25, window={"tokens": 12, "loss": 0.1})
    save_checkpoint(tmp_path, Checkpoint(progress, tensors, {"t": torch.ones(3, 2).T}, {}))
    found = load_checkpoint(tmp_path, 3)
    assert found.progress == read_progress(tmp_path, 3) == progress
    assert all(torch.equal(found.weights[name], tensors[name]) for name in tensors)
    assert torch.equal(found.optimizer["t"], torch.ones(2, 3))


def test_weights_are_stored_once_and_must_fit(run: Path):
    weights = load_checkpoint(run, 4).weights
    assert "output.weight" not in weights and "src_embedding.weight" in weights
    text = (run / "config.yaml").read_text().replace("d_model: 16", "d_model: 32")
    (run / "config.yaml").write_text(text)
    with pytest.raises(UserError, match="has shape .* do not belong together"):
        RunFolder.open(run).load("last")


# What is deleted ---------------------------------------------------------------------------------


def test_saving_deletes_what_it_has_listed_and_nothing_else(run: Path, command: Command):
    """A copy under another step's name, a changed one, a link and a note stay."""
    folder = LAST.parent
    shutil.copy(LAST, folder / "step-1.safetensors")
    with (folder / "step-2.safetensors").open("ab") as file:
        file.write(b" ")
    shutil.copy(LAST, "mine")
    (folder / "step-3.safetensors").symlink_to("../../mine")
    (folder / "notes.txt").write_text("keep")
    assert command(*LONGER).code == 0
    kept = [f"step-{step}.safetensors" for step in (1, 2, 3, 6, 8)]
    assert {*kept, "notes.txt"} == set(os.listdir(folder)), "its own checkpoint 4 is gone"
    assert Path("mine").exists()


@pytest.mark.parametrize("raw", [None, b"", b"[]", b'{"4": 3}', b"\xff"])
def test_without_its_list_nothing_is_deleted(run: Path, command: Command, raw: bytes | None):
    (run / "checkpoints.json").unlink()
    if raw is not None:
        (run / "checkpoints.json").write_bytes(raw)
    assert command(*LONGER).code == 0
    assert saved_steps(run) == [2, 4, 6, 8]
    assert command("eval", "run", "--checkpoint", "2").code == 0


def test_a_file_in_the_place_of_a_checkpoint_stays(tmp_path: Path):
    mine = tmp_path / "checkpoints/step-2.safetensors"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(UserError, match="not written by this training; move it away"):
        save_checkpoint(tmp_path, of_step(2))
    assert mine.read_text() == "mine" and os.listdir(mine.parent) == [mine.name]


# What is verified --------------------------------------------------------------------------------


def test_a_checkpoint_cut_anywhere_is_named_with_the_one_before(run: Path, command: Command):
    raw = LAST.read_bytes()
    for length in range(0, len(raw), 4001):
        LAST.write_bytes(raw[:length])
        with pytest.raises(UserError, match=r"cut short or changed .*take it with --checkpoint 2"):
            load_checkpoint(run, 4)
    before = LAST.read_bytes(), (run / "metrics.jsonl").read_bytes()
    answer = command(*LONGER)
    assert answer.code == 2 and f"{LAST}: cut short" in answer.err
    assert "move it away, then --resume goes on from step 2" in answer.err
    assert (LAST.read_bytes(), (run / "metrics.jsonl").read_bytes()) == before
    LAST.rename("away")
    answer = command(*LONGER)
    assert answer.code == 0 and "resumed at step 2" in answer.err
    assert [record["step"] for record in RunFolder.open(run).records] == list(range(1, 9))


def header(metadata: dict[str, str]) -> bytes:
    raw = json.dumps({"__metadata__": metadata}).encode()
    return struct.pack("<Q", len(raw)) + raw


PROGRESS = json.dumps({"step": 4, "window": {}})


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\xff" * 100, "damaged"),
        (header({}), "damaged"),
        (header({"format": "2", "progress": "{}"}), "it is of step 0"),
        (header({"format": "2", "progress": '{"step": 1e999}'}), "damaged"),
        (header({"format": "99", "progress": PROGRESS}), "damaged"),
        (header({"format": "2", "progress": PROGRESS}), ".bias_table is missing"),
    ],
)
def test_a_file_that_training_never_writes_is_one_line(run: Path, refused, raw: bytes, words: str):
    """Without its checksum, too."""
    (run / "checkpoints.json").unlink()
    LAST.write_bytes(raw)
    assert words in refused("eval", "run", "--checkpoint", "last")
    assert str(LAST) in refused(*LONGER)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")],
    ids=["pipe", "folder", "device"],
)
def test_what_is_no_file_hangs_nothing(run: Path, refused, command: Command, make):
    LAST.unlink()
    make(LAST)
    for words in ((), ("--checkpoint", "last")):
        assert "take it with --checkpoint 2" in refused("eval", "run", *words)
    assert "move it away" in refused(*LONGER)
    for words in (("runs", "."), ("report", "run")):
        assert command(*words).code == 0


@pytest.mark.usefixtures("in_time")
def test_a_file_that_is_larger_than_its_model_is_refused_unread(run, refused, command: Command):
    os.truncate(LAST, 300 * 10**9)
    assert "too large for its model" in refused("eval", "run", "--checkpoint", "last")
    assert "too large for its model" in refused(*LONGER)
    assert "too large for its model" in " ".join(command("doctor", "run").out.split())


def test_a_run_of_0_3_is_refused_in_one_line(run: Path, refused):
    (run / "checkpoints/step-4").mkdir()
    for words in (("eval", "run"), LONGER, ("doctor", "run")):
        assert "run: a run of toytrans 0.3, whose checkpoints are folders" in refused(*words)
