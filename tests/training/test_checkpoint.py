"""Checkpoints: what is kept, what is verified, what is deleted."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import Command
from killed import train_and_kill

from toytrans.errors import UserError
from toytrans.training.checkpoint import (
    Progress,
    load_checkpoint,
    pick_steps,
    save_checkpoint,
    saved_steps,
)
from toytrans.training.run import Run

LONGER = ("train", "c.yaml", "--resume", "--set", "train.max_steps=10")
LAST = Path("runs/c/checkpoints/step-6.safetensors")


def save(run: Path, step: int, best: int | None = None) -> None:
    progress = Progress(step=step, best_step=best)
    save_checkpoint(run, progress, {"weights/x": torch.tensor([step])})


def test_the_newest_two_and_the_best_are_kept(tmp_path: Path):
    for step, best in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 2)):
        save(tmp_path, step, best)
    assert saved_steps(tmp_path) == [2, 4, 5]
    assert [pick_steps(tmp_path, which) for which in ("best", "last", "4")] == [[2], [5], [4]]
    with pytest.raises(UserError, match="no checkpoint 999"):
        pick_steps(tmp_path, "9" * 5000)


@pytest.mark.usefixtures("here")
def test_three_kills_change_nothing():
    """Resumed training is the training that was not interrupted; tests/slow has more kills."""
    train_and_kill(kills=3, seed=0)


def test_weights_that_are_tied_are_stored_once(run: Path):
    _, tensors = load_checkpoint(run, 6)
    assert "weights/output.weight" not in tensors and "weights/src_embedding.weight" in tensors


def test_saving_deletes_what_it_has_listed_and_nothing_else(run: Path, command: Command):
    """A copy under another step's name, a changed one, a link and a note stay."""
    folder = LAST.parent
    shutil.copy(LAST, folder / "step-1.safetensors")
    with (folder / "step-4.safetensors").open("ab") as file:
        file.write(b" ")
    shutil.copy(LAST, "mine")
    (folder / "step-3.safetensors").symlink_to("../../../mine")
    (folder / "notes.txt").write_text("keep")
    assert command(*LONGER).code == 0
    kept = [f"step-{step}.safetensors" for step in (1, 3, 4, 8, 10)]
    assert {*kept, "notes.txt"} == set(os.listdir(folder)), "its own checkpoint 6 is gone"
    assert Path("mine").exists()


def test_without_its_list_nothing_is_deleted(run: Path, command: Command):
    (run / "checkpoints.json").write_bytes(b'{"6": 3}')
    assert command(*LONGER).code == 0
    assert saved_steps(run) == [4, 6, 8, 10]


def test_a_file_in_the_place_of_a_checkpoint_stays(tmp_path: Path):
    mine = tmp_path / "checkpoints/step-2.safetensors"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(UserError, match="not written by this training; move it away"):
        save(tmp_path, 2)
    assert mine.read_text() == "mine" and os.listdir(mine.parent) == [mine.name]


def test_a_checkpoint_cut_anywhere_is_named_with_the_one_before(run: Path, command: Command):
    raw = LAST.read_bytes()
    for length in range(0, len(raw), 4001):
        LAST.write_bytes(raw[:length])
        with pytest.raises(UserError, match=r"cut short or changed .*step 4 is used"):
            load_checkpoint(run, 6)
    before = LAST.read_bytes(), (run / "metrics.jsonl").read_bytes()
    answer = command(*LONGER)
    assert answer.code == 2 and f"{LAST}: cut short" in answer.err
    assert "move it away, then step 4 is used" in answer.err
    assert (LAST.read_bytes(), (run / "metrics.jsonl").read_bytes()) == before
    LAST.rename("away")
    answer = command(*LONGER)
    assert answer.code == 0 and "resumed at step 4" in answer.err
    assert [record["step"] for record in Run.open(run).records] == list(range(1, 11))


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "too large"])
def test_what_is_no_file_or_has_no_end_hangs_nothing(run: Path, refused, command: Command, kind):
    LAST.unlink()
    if kind == "pipe":
        os.mkfifo(LAST)
    elif kind == "folder":
        LAST.mkdir()
    elif kind == "device":
        LAST.symlink_to("/dev/zero")
    else:
        LAST.touch()
        os.truncate(LAST, 300 * 10**9)
        assert kind in refused(*LONGER) and kind in refused("eval", "--checkpoint", "last")
        assert kind in " ".join(command("doctor", "runs/c").out.split())
    assert "step 4 is used" in refused("eval")
    assert "move it away" in refused(*LONGER)
    for words in (("runs", "."), ("report", "runs/c")):
        assert command(*words).code == 0


def test_a_run_of_0_3_is_refused_in_one_line(run: Path, refused):
    (run / "checkpoints/step-4").mkdir()
    for words in (("eval",), LONGER, ("doctor", "runs/c")):
        assert "runs/c: a run of toytrans 0.3, whose checkpoints are folders" in refused(*words)
