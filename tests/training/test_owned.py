"""Nothing of the user's is deleted or overwritten: older checkpoints, links, resumes."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import Command, tiny_yaml, trained_run

from toytrans.errors import UserError
from toytrans.training.owned import saved_steps
from toytrans.training.run import append_record
from toytrans.training.trainer import Trainer

TINY = tiny_yaml(train={"log_every": 2})
TRAIN = ("train", "--config", "c.yaml", "--out", "run")
LONGER = (*TRAIN, "--resume", "--set", "train.max_steps=14")
DIVERGES = ("--set", "train.lr=1e30", "--set", "train.clip_norm=null")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory, TINY)


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of six steps, with checkpoints 2 (if it is the best), 4 and 6."""
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(TINY)
    return Path(shutil.copytree(trained, "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def thesis(folder: Path) -> Path:
    """A user's folder with a file in it."""
    path = folder / "thesis/chapter.txt"
    path.parent.mkdir(parents=True)
    path.write_text("two years of work")
    return path


# What saving deletes -------------------------------------------------------------------------


def test_saving_deletes_nothing_but_checkpoints_of_its_own(run, command: Command):
    """Folders of the user's beside the checkpoints: a copy, another run's, one with a note."""
    folder = run / "checkpoints"
    mine = [thesis(folder), folder / "step-4-paper/weights.safetensors", folder / "notes.txt"]
    shutil.copytree(folder / "step-4", folder / "step-4-paper")
    (folder / "notes.txt").write_text("keep")
    shutil.copytree(folder / "step-4", folder / "step-1")  # a copy under another step's name
    (folder / "step-6/note.txt").write_text("the one of the paper")
    thesis(folder / ".step-99")
    assert command(*LONGER).code == 0
    assert all(path.exists() for path in mine)
    assert saved_steps(run)[-2:] == [12, 14] and 4 not in saved_steps(run), "its own ones go"
    assert (folder / "step-1/checkpoint.json").exists()
    assert len(os.listdir(folder / "step-6")) == 5, "a checkpoint with a note in it stays whole"
    assert (folder / ".step-99/thesis/chapter.txt").exists()


@pytest.mark.parametrize("target", ["../disk", ".."])
def test_nothing_is_deleted_through_a_link_that_leaves_the_run(run, command: Command, target):
    """Checkpoints on another disk; a foreign run whose checkpoints are what lies beside it."""
    if target == "..":
        for path in (run / "checkpoints").iterdir():
            path.rename(path.name)
        (run / "checkpoints").rmdir()
    else:
        (run / "checkpoints").rename("disk")
    (run / "checkpoints").symlink_to(target)
    there = (run / "checkpoints").resolve()
    before = contents(there)
    work = thesis(there)
    answer = command(*LONGER)
    assert answer.code == 0, answer.err
    assert f"the checkpoints are a link to {there}: old ones there are kept" in answer.err
    assert work.read_text() == "two years of work"
    steps = {path: raw for path, raw in before.items() if "step-" in path}
    after = contents(there)
    assert len(steps) >= 8 and all(after[path] == raw for path, raw in steps.items())


def test_a_link_within_the_run_is_no_obstacle(run, command: Command):
    (run / "checkpoints").rename(run / "ck")
    (run / "checkpoints").symlink_to("ck")
    assert command(*LONGER).code == 0
    assert saved_steps(run)[-2:] == [12, 14] and 4 not in saved_steps(run)


def test_a_folder_in_the_place_of_a_checkpoint_is_refused_and_stays(run, command: Command):
    work = thesis(run / "checkpoints/step-8")
    shutil.rmtree(run / "checkpoints/step-6")  # else 8 would be resumed from, and refused
    (run / "checkpoints/step-8").rename("step-8")
    resume = Trainer.resume

    def late(self: Trainer) -> list[str]:
        notes = resume(self)
        Path("step-8").rename(run / "checkpoints/step-8")
        return notes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "resume", late)
        answer = command(*LONGER)
    assert answer.code == 2 and "step-8: not written by this training; move it away" in answer.err
    assert work.exists() and 6 in saved_steps(run)


def test_a_checkpoint_that_cannot_be_read_now_is_kept(run, command: Command):
    """Another is written in its place when training passes its step again."""
    before = contents(run / "checkpoints/step-6")
    (run / "checkpoints/step-6/weights.safetensors").rename("away")
    answer = command(*LONGER)
    assert answer.code == 0 and "it is kept as step-6-unreadable" in answer.err
    Path("away").rename(run / "checkpoints/step-6-unreadable/weights.safetensors")
    kept = contents(run / "checkpoints/step-6-unreadable")
    assert list(kept.values()) == list(before.values())
    assert saved_steps(run)[-1] == 14


def test_without_its_record_nothing_is_deleted(run, command: Command):
    (run / "checkpoints.json").unlink()
    before = contents(run / "checkpoints")
    assert command(*LONGER).code == 0
    assert before.items() <= contents(run / "checkpoints").items() and saved_steps(run)[-1] == 14


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"format": 1, "sha256": {"6": 3}}', b"\xff"])
def test_a_damaged_manifest_stops_nothing(run, command: Command, raw: bytes):
    (run / "checkpoints.json").write_bytes(raw)
    assert command(*LONGER).code == 0
    assert set(json.loads((run / "checkpoints.json").read_text())["sha256"]) >= {"12", "14"}


# Whose run a resume takes ---------------------------------------------------------------------


def test_an_empty_out_is_refused(run, command: Command):
    answer = command("train", "--config", "c.yaml", "--out", "", "--resume")
    assert answer.code == 2 and "--out: empty" in answer.err


def test_a_config_takes_no_run_of_another_config(run, command: Command):
    """exp-2.yaml's first run has the name that exp.yaml's second would have."""
    for name in ("exp.yaml", "exp-2.yaml"):
        Path(name).write_text(TINY)
    assert command("train", "--config", "exp-2.yaml").code == 0
    before = contents(Path("runs/exp-2"))
    assert "runs/exp-3: " in command("train", "--config", "exp.yaml").err, "a free name"
    answer = command("train", "--config", "exp.yaml", "--resume")
    assert answer.code == 0 and "runs/exp-3: " in answer.err
    assert contents(Path("runs/exp-2")) == before


def test_a_diverged_run_leaves_its_records_where_there_was_none(run, command: Command):
    answer = command("train", "--config", "c.yaml", "--out", "new", *DIVERGES)
    assert answer.code == 1 and Path("new/metrics.jsonl").exists()


# Links ---------------------------------------------------------------------------------------

NAMES = ("config.yaml", "data.json", "environment.json", "metrics.jsonl", "checkpoints.json")


@pytest.mark.parametrize("name", NAMES)
def test_no_file_is_written_through_a_link_of_its_name(run, command: Command, name: str):
    diary = Path("diary")
    diary.write_bytes((run / name).read_bytes())
    before = diary.read_bytes()
    (run / name).unlink()
    (run / name).symlink_to("../diary")
    answer = command(*LONGER)
    assert answer.code == 2 and f"{name}: is a link, and nothing is written" in answer.err
    assert diary.read_bytes() == before and (run / name).is_symlink()


@pytest.mark.parametrize("name", [".toytrans-lock", "metrics.jsonl"])
def test_no_file_is_made_through_a_link_that_leads_nowhere(run, command: Command, name):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to("../new")
    answer = command(*LONGER)
    assert answer.code == 2 and not Path("new").exists()


def test_no_record_is_appended_through_a_link(run):
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("../diary")
    with pytest.raises(UserError, match="is a link, and nothing is written through it"):
        append_record(run, {"step": 1})
    assert not Path("diary").exists()


def test_no_draft_of_a_checkpoint_is_written_through_a_link(run, command: Command):
    work = thesis(Path("."))
    (run / "checkpoints/.step-8").symlink_to("../../thesis")
    answer = command(*LONGER)
    assert answer.code == 2 and ".step-8: not a draft of this run; move it away" in answer.err
    assert os.listdir("thesis") == ["chapter.txt"] and work.exists()


# Resumes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", [(), ("--out", "new"), ("--out", "empty")])
def test_a_training_that_wrote_nothing_blocks_no_name(run, command: Command, monkeypatch, out):
    Path("empty").mkdir()

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("toytrans.training.session._environment", fails)
        assert command("train", "--config", "c.yaml", *out).code == 70
    assert not Path("runs/c").exists() and not Path("new").exists()
    assert os.listdir("empty") == []
    assert command("train", "--config", "c.yaml", *out).code == 0


@pytest.mark.parametrize(
    "goal", ["train.stop_at_exact_match=0.0", "train.patience=1", "train.max_seconds=0.01"]
)
def test_a_run_that_reached_its_goal_takes_no_step_more(run, command: Command, goal: str):
    train = ("train", "--config", "c.yaml", "--out", "new", "--set", "train.max_steps=100")
    train = (*train, "--set", goal, "--set", "train.eval_every=2")
    assert command(*train).code == 0
    before = contents(Path("new"))
    records = before["new/metrics.jsonl"]
    assert 0 < records.count(b"\n") < 50, "it stopped early"
    for _ in range(2):
        assert command(*train, "--resume").code == 0
        after = contents(Path("new"))
        assert after["new/metrics.jsonl"] == records
        assert {p for p in after if "checkpoints" in p} == {p for p in before if "checkpoints" in p}


FILES = tiny_yaml(data={"files": {"train": "a.tsv", "valid": "b.tsv"}}, train={"log_every": 2})


def test_a_project_that_has_moved_goes_on(run, command: Command, monkeypatch):
    Path("old").mkdir()
    monkeypatch.chdir("old")
    for name in ("a.tsv", "b.tsv"):
        Path(name).write_text("".join(f"{k}\t{k}\n" for k in range(40)))
    Path("f.yaml").write_text(FILES)
    train = ("train", "--config", "f.yaml", "--out", "r")
    assert command(*train).code == 0
    Path("../old").rename("../new")
    monkeypatch.chdir("../new")
    again = command(*train, "--resume", "--set", "train.max_steps=8")
    assert again.code == 0 and "resumed at step 6" in again.err and "not the one" not in again.err
    with Path("b.tsv").open("a") as file:
        file.write("1\t1\n")
    again = command(*train, "--resume", "--set", "train.max_steps=10")
    assert again.code == 0 and "the validation file is not the one of before" in again.err
    Path("a.tsv").write_text("1\t1\n" * 40)
    again = command(*train, "--resume", "--set", "train.max_steps=12")
    assert again.code == 2 and "not that of the saved run" in again.err


def test_another_machine_is_named_where_a_run_goes_on(run, command: Command):
    path = run / "environment.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"threads": 64, "torch": "2.11.0"}))
    again = command(*LONGER)
    assert again.code == 0
    (line,) = [line for line in again.err.splitlines() if "its numbers may differ" in line]
    assert "torch 2.11.0 -> " in line and "threads 64 -> " in line and "processor" not in line
    assert "may differ" not in command(*LONGER, "--set", "train.max_steps=16").err
