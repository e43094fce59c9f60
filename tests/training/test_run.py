"""A run: what its folder holds, what a resume keeps, what readers see of it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import Command, tiny_yaml

from toytrans.training import devices
from toytrans.training.run import Run, state_of

CONFIG = tiny_yaml(train={"max_steps": 2, "eval_every": 1})
TRAIN = ("train", "c.yaml", "--out", "r")
FILES = tiny_yaml(data={"files": {"train": "a.tsv", "valid": "b.tsv"}}, train={"log_every": 2})
pytestmark = pytest.mark.usefixtures("here")


def steps() -> list[int]:
    return [record["step"] for record in Run.open(Path("r")).records]


def test_what_a_run_directory_holds(command: Command):
    command(*TRAIN)
    files = {"config.yaml", "resolved.yaml", "data.json", "environment.json"}
    files |= {"metrics.jsonl", "checkpoints.json", "checkpoints", "snapshots"}
    assert set(os.listdir("r")) == files
    run = Run.open(Path("r"))
    expected = {"torch", "python", "device", "threads", "precision", "toytrans", "config"}
    assert expected <= run.environment.keys()
    assert (run.steps, run.unfinished) == ([1, 2], "")
    assert run.facts.train_length == (1, 4)
    assert run.settings.data.test_length == (1, 9)
    state = state_of(run.path)
    assert str(state) == "finished" and state.exact_match is not None


def test_a_run_that_goes_on_from_step_0_has_a_checkpoint(command: Command):
    command(*TRAIN, "--set", "train.max_steps=0")
    resolved = Path("r/resolved.yaml").read_text()
    Path("r/resolved.yaml").write_text(resolved.replace("max_steps: 0", "max_steps: 2"))
    assert str(state_of(Path("r"))) == "unfinished, step 0 of 2"


def test_both_saved_configs_train_the_run_again(command: Command):
    command(*TRAIN, "--set", "model.positions=rotary")
    given, resolved = (
        yaml.safe_load(Path(f"r/{n}.yaml").read_text()) for n in ("config", "resolved")
    )
    assert given["model"]["positions"] == resolved["model"]["positions"] == "rotary"
    assert "score_cap" not in given["model"] and resolved["model"]["score_cap"] == 0
    assert command("train", "r/config.yaml", "--out", "again").code == 0
    assert command("train", "r/resolved.yaml", "--out", "and-again").code == 0
    runs = (Run.open(Path(run)).records for run in ("r", "again", "and-again"))
    first, *others = ([row["loss"] for row in records] for records in runs)
    assert others == [first, first]


def test_max_steps_may_be_lowered_below_a_warm_up_that_followed_from_it(command: Command):
    """A training of 300 steps warms up for 100. Interrupted early, it may end after 40."""
    train = ("train", "c.yaml", "--out", "r", "--set", "train.max_seconds=0.05")
    assert command(*train, "--set", "train.max_steps=300").code == 0
    assert 0 < len(steps()) < 40, "it was stopped early"
    again = ("--resume", "--set", "train.max_steps=40")
    done = command("train", "c.yaml", "--out", "r", *again)
    assert done.code == 0, done.err
    assert steps()[-1] == 40


def test_a_raised_limit_goes_on_and_nothing_derived_changes(command: Command, refused):
    """The saved config is the config: the file that it came from may be gone."""
    command(*TRAIN)
    before = Path("r/config.yaml").read_text()
    Path("c.yaml").unlink()
    answer = command("train", "--out", "r", "--resume", "--set", "train.max_steps=9")
    assert answer.code == 0 and "resumed at step 2" in answer.err
    assert Path("r/config.yaml").read_text() == before.replace("max_steps: 2", "max_steps: 9")
    assert steps() == list(range(1, 10))
    said = refused("train", "--out", "r", "--resume", "--set", "train.lr=1")
    assert "cannot resume with other settings: train.lr (0.003 -> 1" in said
    assert "no such run directory" in refused("train", "--out", "none", "--resume")
    assert "no config" in refused("train", "--out", "r")


@pytest.mark.parametrize(
    "goal", ["train.stop_at_exact_match=0.0", "train.patience=1", "train.max_seconds=0.1"]
)
def test_a_run_that_reached_its_goal_takes_no_step_more(command: Command, goal: str):
    train = (*TRAIN, "--set", "train.max_steps=500", "--set", goal, "--set", "train.eval_every=2")
    assert command(*train).code == 0
    taken, saved = steps(), os.listdir("r/checkpoints")
    assert 0 < len(taken) < 500, "it stopped early"
    assert command(*train, "--resume").code == 0
    assert (steps(), os.listdir("r/checkpoints")) == (taken, saved)


def test_auto_precision_stays_what_it_was(command: Command, monkeypatch: pytest.MonkeyPatch):
    auto = ("--set", "train.precision=auto")
    monkeypatch.setattr(devices, "NARROW", 0)
    monkeypatch.setattr(devices, "has_bf16_products", lambda _: False)
    assert "cpu, fp32" in command(*TRAIN, *auto).err
    monkeypatch.setattr(devices, "has_bf16_products", lambda _: True)
    again = command(*TRAIN, *auto, "--resume", "--set", "train.max_steps=3")
    assert again.code == 0 and "cpu, fp32" in again.err


def test_a_project_that_has_moved_goes_on_with_the_same_files_alone(
    here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    (here / "old").mkdir()
    monkeypatch.chdir(here / "old")
    for name in ("a.tsv", "b.tsv"):
        Path(name).write_text("".join(f"{k}\t{k}\n" for k in range(40)))
    Path("c.yaml").write_text(FILES)
    assert command(*TRAIN).code == 0
    (here / "old").rename(here / "new")
    monkeypatch.chdir(here / "new")
    again = command(*TRAIN, "--resume", "--set", "train.max_steps=8")
    assert again.code == 0 and "resumed at step 6" in again.err and "changed" not in again.err
    with Path("b.tsv").open("a") as file:
        file.write("1\t1\n")
    again = command(*TRAIN, "--resume", "--set", "train.max_steps=10")
    assert again.code == 0 and "changed since it was trained: data.files.valid" in again.err
    Path("a.tsv").write_text("1\t1\n" * 40)
    before = Path("r/data.json").read_text()
    again = command(*TRAIN, "--resume", "--set", "train.max_steps=12")
    assert again.code == 2 and "not that of the saved run" in again.err
    assert Path("r/data.json").read_text() == before


def test_another_machine_is_named_where_a_run_goes_on(command: Command):
    command(*TRAIN)
    path = Path("r/environment.json")
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"threads": 64, "torch": "2.11.0"}))
    again = command(*TRAIN, "--resume", "--set", "train.max_steps=3")
    (line,) = [line for line in again.err.splitlines() if "its numbers may differ" in line]
    assert "torch 2.11.0 -> " in line and "threads 64 -> " in line and "processor" not in line
    assert "may differ" not in command(*TRAIN, "--resume", "--set", "train.max_steps=4").err


def test_records_are_appended_and_those_of_a_resume_replace_those_of_before(command: Command):
    command(*TRAIN, "--set", "train.max_steps=6")
    metrics = Path("r/metrics.jsonl")
    before = metrics.read_bytes()
    Path("r/checkpoints/step-6.safetensors").unlink()
    newest = Run.open(Path("r")).steps[-1]
    metrics.write_bytes(before[:-20])  # as a kill may leave it
    assert Run.open(Path("r")).damaged_lines == 0, "a last line that was cut is normal"
    assert command(*TRAIN, "--set", "train.max_steps=6", "--resume").code == 0
    assert metrics.read_bytes().startswith(before[:-20] + b"\n"), "only appended to"
    again = Run.open(Path("r"))
    assert steps() == [1, 2, 3, 4, 5, 6] and again.damaged_lines == 1
    written = [json.loads(line) for line in before.splitlines()]
    assert again.records[:newest] == written[:newest]
    assert [row["loss"] for row in again.records] == [row["loss"] for row in written]


def test_lines_that_hold_no_record_are_skipped_and_counted(command: Command):
    command(*TRAIN)
    first, last = Path("r/metrics.jsonl").read_bytes().splitlines()
    for line in (
        *(b"", b"\xff", b"{}", b"[]", b'{"step": "6"}', b'{"step": -1}'),
        *(b'{"step": 6, "loss": {}}', b'{"step": 6, "loss": NaN}'),
        *(b"[" * 9_000, b'{"step": ' + b"9" * 9_000 + b"}"),
    ):
        Path("r/metrics.jsonl").write_bytes(b"\n".join([first, line, last, b'{"step": 9}', b"{"]))
        run = Run.open(Path("r"))
        assert [record["step"] for record in run.records] == [1, 2, 9], line
        assert run.damaged_lines == 1, line


@pytest.mark.usefixtures("in_time")
def test_records_without_end_are_refused(command: Command):
    command(*TRAIN)
    os.truncate("r/metrics.jsonl", 300 * 10**9)
    assert "r/metrics.jsonl: larger than" in command("doctor", "r").err


# A model that was saved beside its config --------------------------------------------------------


@pytest.fixture
def saved(run: Path, command: Command) -> Path:
    """The export of a run and its config in one folder, runs/saved."""
    folder = Path("runs/saved")
    folder.mkdir()
    out = ("--out", str(folder / "model.safetensors"))
    assert command("export", str(run), "--format", "safetensors", *out).code == 0
    shutil.copy(run / "config.yaml", folder)
    return folder


def test_a_saved_model_is_a_run_of_one_checkpoint(run: Path, saved: Path, command: Command):
    """It says what the run says, everywhere but of its training."""
    step = Run.open(run).step
    assert Run.open(saved).steps == [step]
    for words in (
        ("eval", "--json"),
        ("translate", "1 2 3"),
        ("check", "--only", "pads", "--json"),
    ):
        theirs, its = (command(words[0], str(path), *words[1:]) for path in (run, saved))
        said = [answer.out.replace("saved", "c") for answer in (its, theirs)]
        if words[0] == "eval":  # whose document also says how long the training took, say
            said = [json.loads(text)["parts"] for text in said]
        assert its.code == theirs.code and said[0] == said[1], its.err
    assert command("runs").out.count("finished") == 2
    assert "does not say what it was trained with" in command("eval", str(saved)).err


def test_no_training_writes_to_a_saved_model(saved: Path, refused):
    for more in ((), ("--resume",)):
        assert "holds a saved model" in refused("train", "c.yaml", "--out", str(saved), *more)
    assert sorted(os.listdir(saved)) == ["config.yaml", "model.safetensors"]


def test_damaged_saved_models(saved: Path, refused):
    file = saved / "model.safetensors"
    sound = file.read_bytes()
    for raw in (b"", sound[:40], sound[:-8], b"\xff" * 4096):
        file.write_bytes(raw)
        assert f"{file}: " in refused("eval", str(saved))
    file.write_bytes(sound)
    config = (saved / "config.yaml").read_text()
    (saved / "config.yaml").write_text(config.replace("d_model: 16", "d_model: 32"))
    assert "the two do not belong together" in refused("eval", str(saved))
    (saved / "config.yaml").write_text("data: 3")
    assert "config.yaml" in refused("eval", str(saved))
