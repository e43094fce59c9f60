"""`toytrans sweep`: from a grid to tables and files, whatever happens on the way."""

import csv
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, tiny_yaml

import toytrans
from toytrans.config.load import load_config
from toytrans.errors import UserError
from toytrans.sweeps import outcomes, processes, sweep, trial
from toytrans.sweeps.failures import Failure, keep_failure, read_failure
from toytrans.sweeps.measure import ExactMatch
from toytrans.sweeps.processes import attempt, run_trials
from toytrans.training.run_folder import locked

TWO = ("--set", "model.positions=rotary,anchored")


def planned(*sets: str, seeds: range = range(2), measure: ExactMatch | None = None, name="c"):
    """The sweep of c.yaml that the command plans."""
    return sweep.plan(
        name,
        Path("runs/sweeps", name),
        lambda changes: load_config(Path("c.yaml"), changes),
        sets,
        seeds,
        measure,
    )


def train_here(*sets: str, **given: Any) -> sweep.Sweep:
    """The same sweep, trained in this process, which spares the start of others."""
    made = planned(*sets, **given)
    with made.held():
        for each in made.waiting():
            attempt(each)
    return made


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of a sweep of two position schemes and two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "c.yaml").write_text(tiny_yaml())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train_here(TWO[1])
    return folder / "runs"


@pytest.fixture
def trained(done: Path, here: Path) -> sweep.Sweep:
    """That sweep, in a folder of its own."""
    shutil.copytree(done, here / "runs")
    return planned(TWO[1])


def results(name: str = "c") -> dict:
    return json.loads(Path(f"results/sweeps/{name}.json").read_text(), parse_constant=pytest.fail)


def table(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path("results/sweeps", name).read_text().splitlines()))


def test_a_sweep_trains_compares_and_is_not_trained_twice(here: Path, command: Command):
    """In processes of its own, and each run is the run of `train` with the same values."""
    words = ("sweep", "c.yaml", "--seeds", "3:4", *TWO, "--lengths", "1:9", "--examples", "40")
    answer = command(*words)
    assert answer.code == 0, answer.err
    lines = [line for line in answer.err.splitlines() if "/4 model.positions=" in line]
    assert len(lines) == 4 and all(
        "teacher-forced exact match: in range 0." in line for line in lines
    )
    about = results()
    assert about["grid"] == {"model.positions": ["rotary", "anchored"]}
    assert (about["seeds"], about["lengths"], about["examples"]) == ([3, 4], [1, 9], 40)
    assert about["machine"]["torch"] and about["machine"]["threads"]
    groups = about["groups"]
    assert [group["differs"] for group in groups] == [
        {"model.positions": "rotary"},
        {"model.positions": "anchored"},
    ]
    for group in groups:
        values = [run["values"]["value"] for run in group["runs"]]
        assert [run["seed"] for run in group["runs"]] == [3, 4]
        summary = group["summaries"]["value"]
        assert summary["runs"] == 2 and summary["mean"] == pytest.approx(sum(values) / 2)
        assert [row["lengths"] for row in group["curve"]] == [[n, n] for n in range(1, 10)]
    rows = table("c.csv")
    assert [(row["model.positions"], row["seed"]) for row in rows] == [
        ("rotary", "3"),
        ("rotary", "4"),
        ("anchored", "3"),
        ("anchored", "4"),
    ]
    lengths = table("c-lengths.csv")
    assert sum(int(row["pairs"]) for row in lengths) == 4 * 40
    assert len(lengths) == 4 * 9 and {int(row["length"]) for row in lengths} == {*range(1, 10)}
    assert Path("results/sweeps/c.png").read_bytes().startswith(b"\x89PNG")
    again = command(*words)
    assert "4 of 4 runs are there already" in again.err and again.out == answer.out
    assert "seeds 3 4" in again.out and "difference over equal seeds" in again.out
    run = groups[0]["runs"][1]
    alone = command("train", "c.yaml", "--seed", "4", "--set", "model.positions=rotary")
    assert alone.code == 0
    weights = "checkpoints/step-6/weights.safetensors"
    assert Path(run["run"], weights).read_bytes() == Path("runs/c", weights).read_bytes()
    measured = json.loads(
        command("eval", "runs/c", "--lengths", "1:9", "--examples", "40", "--json").out
    )
    assert run["values"]["value"] == measured["forced_exact_match"]
    assert run["values"]["beyond"] == measured["beyond"]["forced_exact_match"]


def test_a_sweep_that_goes_on_says_from_where(trained, command: Command):
    first, second, third, _ = trained.trials
    for each in (second, third):
        (each.path / "result.json").unlink()
    shutil.rmtree(third.path)
    answer = command("sweep", "c.yaml", "--seeds", "0:2", *TWO)
    assert answer.code == 0
    said = answer.err.splitlines()
    assert "6 runs: seeds 0, 1, 2" in said
    finished, going, starting = said[said.index("6 runs: seeds 0, 1, 2") + 1 :][:3]
    anchored = [f"model.positions=anchored seed {seed}" for seed in range(3)]
    rotary = [f"model.positions=rotary seed {seed}" for seed in range(3)]
    assert finished == f"finished: {rotary[0]}, {anchored[1]}"
    assert going == f"goes on: {anchored[0]} from step 6"
    assert starting == f"starts: {rotary[1]}, {rotary[2]}, {anchored[2]}"
    help = command("sweep", "--help").out
    assert "0:2 is 0, 1 and 2" in " ".join(help.replace("│", " ").split())


def test_a_mistake_in_the_base_file_is_told_once(here: Path, refused):
    text = Path("c.yaml").read_text().replace("eval_every", "checkpoint_every")
    Path("c.yaml").write_text(text)
    message = refused("sweep", "c.yaml", "--seeds", "0:2", *TWO)
    assert message.count("checkpoint_every") == 1 and "combinations" not in message
    assert message.endswith("did you mean train.keep_checkpoints?\n")


def test_a_larger_grid_adds_trials(trained, here: Path):
    more = ("model.positions=rotary,anchored,alibi", "model.d_ff=32,16")
    larger = planned(*more, seeds=range(3))
    assert len(larger.trials) == 18 and len(larger.waiting()) == 14
    assert {each.path.name for each in trained.trials} < {each.path.name for each in larger.trials}
    (change,) = larger.changes()
    assert "model.positions: rotary, anchored -> rotary, anchored, alibi" in change
    assert "model.d_ff: - -> 32, 16; seeds: 0:1 -> 0:2" in change


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        (("--seeds", "0:1", "--set", "model.positions=anchored"), 2),
        (("--seeds", "1", *TWO), 2),
        (("--set", "train.lr=1e-3,1e-2"), 4),
    ],
)
def test_a_grid_without_a_run_that_has_a_result_is_refused(words, lost, trained, refused):
    before = (trained.folder / "sweep.json").read_bytes()
    message = refused("sweep", "c.yaml", *words)
    assert f"runs/sweeps/c: {lost} of its runs have results and are not in this grid" in message
    assert "add to --seeds 0:1 --set model.positions=rotary,anchored, or give ano" in message
    assert (trained.folder / "sweep.json").read_bytes() == before


def test_seeds_with_gaps_are_told_as_python_takes_them(trained):
    before = json.loads((trained.folder / "sweep.json").read_text())
    many = {"run": "of-another-seed", "seed": 5, "config": 0}
    changes = {"seeds": [0, 1, 5], "trials": [*before["trials"], many]}
    (trained.folder / "sweep.json").write_text(json.dumps(before | changes))
    with pytest.raises(UserError, match="; add to seeds 0, 1, 5 --set"):
        planned("model.positions=anchored")


def test_a_run_without_a_result_may_leave_the_grid(trained, command: Command):
    shutil.rmtree(trained.trials[-1].path)
    shutil.rmtree(trained.trials[-2].path)
    answer = command("sweep", "c.yaml", "--seeds", "0", *TWO)
    assert answer.code == 0 and "2 of 2 runs are there already" in answer.err
    assert "runs/sweeps/c: seeds: 0:1 -> 0\n" in answer.err and len(table("c.csv")) == 2


@pytest.mark.parametrize("train", ["train.tsv", ["train.src", "train.tgt"]])
def test_other_data_of_the_same_name_are_refused(train: str | list[str], here: Path):
    Path("train.tsv").write_text("1 2\t2 1\n")
    Path("train.src").write_text("1 2\n")
    Path("train.tgt").write_text("2 1\n")
    files = {"train": train, "valid": train, "test": train}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}))
    train_here(seeds=range(1))
    Path("train.tsv").write_text("1 2\t1 2\n")
    Path("train.tgt").write_text("1 2\n")
    with pytest.raises(UserError, match="1 of its runs have results and are of other code or data"):
        planned(seeds=range(1))


@pytest.mark.parametrize(
    "data",
    [
        {"task": "own.py:f"},
        {"files": {"train": "a.tsv", "test": "a.tsv"}},
        {"files": {"train": ["a.src", "a.tgt"], "test": ["a.src", "a.tgt"]}},
    ],
)
def test_a_sweep_goes_on_where_its_folder_was_moved(data, here: Path, monkeypatch):
    before, after = here / "before", here / "after"
    before.mkdir()
    monkeypatch.chdir(before)
    Path("own.py").write_text("def f(s): return s[:]\n")
    Path("a.tsv").write_text("1 2\t2 1\n2 1\t1 2\n")
    Path("a.src").write_text("1 2\n2 1\n")
    Path("a.tgt").write_text("2 1\n1 2\n")
    Path("c.yaml").write_text(tiny_yaml(data={"symbols": None, **data}))
    train_here(seeds=range(1))
    before.rename(after)
    monkeypatch.chdir(after)
    larger = planned()
    assert [each.config.seed for each in larger.waiting()] == [1]
    assert larger.changes() == ["runs/sweeps/c: seeds: 0 -> 0:1"]
    if "task" in data:
        Path("own.py").write_text("def f(s): return s[::-1]\n")
        with pytest.raises(UserError, match="have results and are of other code or data files"):
            planned()


def test_another_config_of_the_same_name_is_refused(trained, refused):
    words = ("sweep", "c.yaml", "--seeds", "0:1", *TWO)
    Path("c.yaml").write_text(Path("c.yaml").read_text().replace("max_steps: 6", "max_steps: 8"))
    message = refused(*words)
    assert "its config differs: train.max_steps (6 -> 8); set it back, or give another" in message
    assert len(list(trained.folder.glob("*-s*"))) == 4


def test_other_lengths_are_measured_anew_and_nothing_is_trained(trained, monkeypatch):
    monkeypatch.setattr(trial.Trainer, "train", lambda trainer: iter(()))
    again = planned(TWO[1], measure=ExactMatch((1, 8), 80))
    assert "lengths: - -> 1:8, examples: - -> 80, so every run is m" in again.changes()[0]
    again = train_here(TWO[1], measure=ExactMatch((1, 8), 80))
    assert all(member.curve.keys() == set(range(1, 9)) for member in again.members())


def test_every_results_file_is_of_the_same_measure(trained, command: Command):
    words = ("sweep", "c.yaml", "--seeds", "0:1", *TWO)
    assert command(*words, "--lengths", "1:8", "--examples", "80").code == 0
    lengths = Path("results/sweeps/c-lengths.csv")
    assert lengths.exists()
    answer = command(*words)
    assert "lengths: 1:8 -> -" in answer.err and not lengths.exists()


def test_seeds_of_data_are_a_grid_like_any_other(here: Path, command: Command):
    train_here("data.seed=5,6", seeds=range(2))
    answer = command("sweep", "c.yaml", "--seeds", "0:1", "--set", "data.seed=5,6")
    assert answer.code == 0 and "seeds 0/5 0/6 1/5 1/6" in answer.out
    assert len(results()["groups"]) == 1


# Failures ------------------------------------------------------------------------------------


def test_failures_are_kept_and_shown_and_stop_no_other(here: Path, command: Command):
    """One that diverges, one whose folder holds something else, one that is sound."""
    made = planned("train.lr=1e-3,1e30,2e-3", seeds=range(1))
    blocked = made.trials[2].path
    with made.held():
        blocked.mkdir(parents=True)
        (blocked / "thesis").write_text("mine")
    words = ("sweep", "c.yaml", "--seeds", "0:0", "--set", "train.lr=1e-3,1e30,2e-3")
    answer = command(*words)
    assert answer.code == 1, answer.err
    assert "train.lr=1e30 seed 0: failed: training diverged: the loss is not finite" in answer.err
    assert "train.lr=2e-3 seed 0: failed: " in answer.err and "not a run directory" in answer.err
    assert "/3 train.lr=1e-3 seed 0: free-running exact match: in" in answer.err
    assert answer.out.count("not counted: ") == 2 and "0 of 1" in answer.out
    troubles = [group["runs"][0]["trouble"] for group in results()["groups"]]
    assert troubles[0] is None and "diverged" in troubles[1] and "left alone" in troubles[2]
    assert set(results()["groups"][1]["summaries"].values()) == {None}
    assert os.listdir(blocked) == ["thesis"], "nothing is written beside it"
    waiting = planned("train.lr=1e-3,1e30,2e-3", seeds=range(1)).waiting()
    assert [each.path for each in waiting] == [blocked], "what diverged would diverge again"


def test_a_signal_that_nobody_knows_is_not_given_a_number(here: Path):
    """As after a SIGTERM to the whole process group, which ends the fork server too."""
    failure = processes.failure_by_code(here / "run", processes.UNKNOWN)
    assert failure is not None and "killed by an unknown signal; " in failure.reason


@pytest.mark.parametrize("code", [1, 128, -9, 137])
def test_an_exit_code_is_kept_as_the_reason(here: Path, code: int):
    failure = processes.failure_by_code(here / "run", code)
    assert failure is not None and read_failure(here / "run") == failure


def test_a_reason_that_is_no_utf8_is_read_again(here: Path):
    """As of a path whose bytes are no UTF-8."""
    text = os.fsdecode(b"/data/\xff.txt")
    keep_failure(here / "run", Failure(reason=f"{text}: no such file", traceback=text))
    again = read_failure(here / "run")
    assert again is not None and again.reason == "/data/\\udcff.txt: no such file"
    assert again.error().args[0].endswith("\n/data/\\udcff.txt")


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_what_has_the_name_of_a_failure_stops_no_sweep(here: Path, make):
    make(here / "run.failed.json")
    keep_failure(here / "run", Failure(reason="the disk is full"))
    keep_failure(here / "run", None)
    assert not (here / "elsewhere").exists()


@pytest.mark.parametrize("error", [EOFError, ConnectionRefusedError, BrokenPipeError])
def test_a_trial_starts_where_the_fork_server_was_killed(error: type[Exception], monkeypatch):
    """The first request to it still reaches it, or what is left of it."""
    requests = iter([error("the server is gone"), None])

    class Process:
        def start(self) -> None:
            if (answer := next(requests)) is not None:
                raise answer

    monkeypatch.setattr(processes, "SECONDS_TO_DIE", 0.0)
    processes._start(Process())
    assert not list(requests), "the second request was made"


def test_a_process_that_is_killed_fails_alone(here: Path):
    """As the system kills one that needs too much memory."""
    Path("c.yaml").write_text(Path("c.yaml").read_text().replace("max_steps: 6", "max_steps: 9999"))
    doomed, _ = planned(TWO[1], seeds=range(1)).trials
    rounds = run_trials([doomed], 1)
    failure = None
    for each in rounds:
        if doomed.share_done() > 0:
            for process in multiprocessing.active_children():
                process.kill()
        for _, failure in each.ended:
            assert failure is not None
    assert "killed by signal 9 (out of memory?)" in failure.reason and not failure.final
    member = outcomes.outcome(doomed.path, doomed.config, ExactMatch())
    assert "killed by signal 9" in member.trouble
    assert not outcomes.is_done(doomed)


def test_lack_of_memory_is_a_failure_with_a_remedy(here: Path, monkeypatch):
    def fails(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(processes, "train_and_measure", fails)
    failure = attempt(planned(seeds=range(1)).trials[0])
    assert failure.reason.startswith("out of memory; lower ") and not failure.traceback


def test_a_bug_is_an_internal_error(here: Path, monkeypatch, command: Command):
    def fails(_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(processes, "train_and_measure", fails)
    made = planned(seeds=range(1))
    with made.held():
        failure = attempt(made.trials[0])
    assert "internal error (ZeroDivisionError: a bug)" in failure.reason
    assert "in fails" in failure.traceback

    def rounds(some: list[trial.Trial], _: int) -> Iterator[processes.Round]:
        yield processes.Round([], [(some[0], failure)])

    monkeypatch.setattr(processes, "run_trials", rounds)
    answer = command("sweep", "c.yaml", "--seeds", "0:0")
    assert answer.code == 70 and "internal error" in answer.err
    assert "not counted: " in answer.out, "the table is shown all the same"


def test_results_that_cannot_be_written_end_in_one_line(trained, refused_later):
    Path("results/sweeps/c.csv").mkdir(parents=True)
    message = refused_later("sweep", "c.yaml", "--seeds", "0:1", *TWO)
    assert "results/sweeps/c.csv: " in message


@pytest.fixture
def refused_later(command: Command):
    """Runs a command that is refused after it has noted something."""

    def run(*words: str) -> str:
        answer = command(*words)
        assert answer.code == 2, answer.err
        return answer.err.splitlines()[-1]

    return run


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"configs": [], "grid": {}}', "\0"])
def test_a_spoiled_sweep_file_is_refused(text, trained, refused):
    (trained.folder / "sweep.json").write_text(text)
    message = refused("sweep", "c.yaml", "--seeds", "0:1", *TWO)
    assert "sweep.json: not what a sweep writes; move it away" in message
    assert "sweep.json: not what a sweep writes" in refused("compare", "c")


READ = ("asked", "value", "loss", "in_range", "by_length", "pairs_by_length")
READ += ("exact_match_difference", "train_s")
ABSENT = "absent"


@pytest.mark.parametrize("value", [ABSENT, None, "text", 1e15, -2.0, [1]], ids=str)
def test_a_result_that_no_training_writes_ends_in_one_line(value, trained, command: Command):
    path = trained.trials[0].path / "result.json"
    sound = path.read_text()
    refusals = 0
    for key in READ:
        about = json.loads(sound)
        place = about if key == "train_s" else about["measures"]["test"]
        assert key in place, key
        place[key] = value
        if value is ABSENT:
            del place[key]
        path.write_text(json.dumps(about))
        for words in (("compare", "c"), ("doctor", str(path.parent))):
            answer = command(*words)
            assert answer.code in (0, 1), (key, answer.err)
            assert "1000000000000000" not in answer.out, key
            refusals += "result.json: not what a training writes; remove it" in answer.out
    assert refusals > 0


def test_results_of_something_else_are_left_alone(here: Path, refused):
    folder = Path("results/sweeps")
    folder.mkdir(parents=True)
    for name in ("c.csv", "c-lengths.csv", "c.png"):
        (folder / name).write_text("mine")
        message = refused("sweep", "c.yaml")
        assert f"{name}: not a sweep's results; move it away, or give another --name" in message
        (folder / name).rename(f"my-{name}")
    about = {"sweep": "c", "folder": "elsewhere/c"}
    (folder / "c.json").write_text(json.dumps(about))
    assert "holds the results of elsewhere/c, another sweep" in refused("sweep", "c.yaml")
    with pytest.raises(UserError, match=r"another sweep; give.*in Python: out"):
        toytrans.sweep("c.yaml", "here/c")
    assert json.loads((folder / "c.json").read_text()) == about
    assert not Path("runs").exists(), "nothing was trained"


def test_a_place_that_takes_no_results_is_refused_before_training(here: Path, refused):
    Path("results").symlink_to("nowhere")
    assert "results/sweeps: c cannot be written (" in refused("sweep", "c.yaml")
    assert not Path("runs").exists()
    Path("results").unlink()
    Path("runs").symlink_to("nowhere")
    assert "runs is a link to nowhere, which is not there" in refused("sweep", "c.yaml")


def test_a_folder_of_something_else_is_left_alone(here: Path, refused):
    Path("mine").mkdir()
    Path("mine/thesis").write_text("1")
    assert "mine: not a sweep, so it is left alone" in refused("sweep", "c.yaml", "--out", "mine")
    assert "c.yaml: not a sweep" in refused("sweep", "c.yaml", "--out", "c.yaml", "--name", "x")
    Path("results/sweeps").mkdir(parents=True)
    Path("results/sweeps/c.json").write_text("[1]")
    assert "c.json: not a sweep's results; move it away" in refused("sweep", "c.yaml")
    assert not Path("runs").exists()


def test_a_sweep_keeps_the_results_of_another_folder(trained, command: Command, refused):
    assert command("sweep", "c.yaml", "--seeds", "0:1", *TWO).code == 0
    before = Path("results/sweeps/c.json").read_bytes()
    elsewhere = ("sweep", "c.yaml", "--seeds", "0:1", *TWO, "--out")
    shutil.copytree(trained.folder, "other/c")
    for out in ("other/c", "new/c"):
        message = refused(*elsewhere, out)
        assert "c.json: holds the results of runs/sweeps/c, another sweep; give" in message
    assert Path("results/sweeps/c.json").read_bytes() == before and not Path("new").exists()
    assert command(*elsewhere, "other/c", "--name", "d").code == 0
    assert command(*elsewhere, str(Path("runs/sweeps/c").resolve())).code == 0, "the same folder"
    shutil.rmtree(trained.folder)
    assert command(*elsewhere, "other/c").code == 0, "it was moved"
    assert results()["folder"] == "other/c"


def test_a_sweep_beside_itself_is_refused(trained, refused):
    with locked(trained.folder):
        message = refused("sweep", "c.yaml", "--seeds", "0:1", *TWO)
    assert "runs/sweeps/c: another sweep runs here; wait for its end, or give another" in message
    assert "training" not in message


def test_a_training_that_still_saves_is_waited_for(here: Path, monkeypatch):
    """As after a kill of the parent alone: its processes save, and only then leave."""
    each = planned(seeds=range(1)).trials[0]
    monkeypatch.setattr(processes, "SECONDS_FOR_LOCK", 0.3)
    with locked(each.path):
        failure = attempt(each)
    assert "another training is writing here" in failure.reason
    assert attempt(each) is None and each.result() is not None


def test_without_matplotlib_one_line_says_what_to_install(trained, command: Command, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    Path("results/sweeps").mkdir(parents=True)
    Path("results/sweeps/c.json").write_text('{"sweep": "c"}')
    Path("results/sweeps/c.png").write_bytes(b"of other runs")
    answer = command("sweep", "c.yaml", "--seeds", "0:1", *TWO)
    assert answer.code == 0
    assert "no picture: pictures are drawn with matplotlib, which is not inst" in answer.err
    assert not Path("results/sweeps/c.png").exists() and Path("results/sweeps/c.csv").exists()


def test_without_ray_one_line_says_what_to_install(here: Path, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = refused("sweep", "c.yaml", "--on", "ray")
    assert "--on ray needs Ray, which is not installed; `python -m pip install ray`" in message


# Kills ---------------------------------------------------------------------------------------


def test_a_sweep_that_is_killed_ends_with_the_same_table(here: Path, command: Command):
    """SIGKILL of all its processes at a random moment."""
    text = Path("c.yaml").read_text().replace("max_steps: 6", "max_steps: 60")
    Path("c.yaml").write_text(text)
    words = ("sweep", "c.yaml", "--seeds", "0:1", "--lengths", "1:6", "--examples", "60")
    measure, line = ExactMatch((1, 6), 60), [sys.executable, "-m", "toytrans", *words]
    with subprocess.Popen(line, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        first = planned(measure=measure).trials[0]
        while first.share_done() == 0 and process.poll() is None:
            time.sleep(0.05)
        time.sleep(random.Random(0).random() / 4)
        os.killpg(process.pid, signal.SIGKILL)
    assert len(planned(measure=measure).waiting()) == 2
    killed = command(*words)
    assert killed.code == 0, killed.err
    train_here(measure=measure, name="never")
    never = command(*words, "--name", "never")
    assert never.code == 0 and never.out == killed.out
    for group, other in zip(results()["groups"], results("never")["groups"], strict=True):
        for run in (*group["runs"], *other["runs"]):
            del run["run"]
        assert group == other
