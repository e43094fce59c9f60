"""`toytrans sweep`: from a grid to tables and plots, whatever happens on the way."""

import csv
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import Command, tiny_yaml
from forked import COMMAND, Forked
from killed import last_step
from safetensors.torch import load_file

from toytrans.config.load import read_tree
from toytrans.errors import UserError
from toytrans.sweeps import here as processes
from toytrans.sweeps import trial
from toytrans.sweeps.choices import read_grid
from toytrans.sweeps.plan import plan
from toytrans.sweeps.sweep import Sweep, write
from toytrans.sweeps.sweep_file import Plan, SweepMeasure
from toytrans.training import devices
from toytrans.training.checkpoint import saved_steps
from toytrans.training.folder import METRICS

TWO = ("--set", "model.positions=rotary,anchored")
SWEEP = Path("runs/sweeps/c")
AGAIN = ("sweep", "c.yaml", "--seeds", "0:1", *TWO)
"""The command of `trained`."""


def planned(*sets: str, seeds: range = range(2), measure: SweepMeasure | None = None) -> Sweep:
    """The sweep of c.yaml that the command plans."""
    measures = {"test": measure} if measure else {}
    return plan(SWEEP, Plan(read_tree(Path("c.yaml")), read_grid(sets), seeds, measures))


def train_here(sweep: Sweep) -> None:
    """Train a sweep in this process, which spares the start of others."""
    for each in sweep.waiting():
        trial.run(each)
    assert list(sweep.train([])) == [], "which writes sweep.json"
    write(sweep)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of a sweep of two position schemes and two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "c.yaml").write_text(tiny_yaml())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train_here(planned(TWO[1]))
    return folder / "runs"


@pytest.fixture
def trained(done: Path, here: Path) -> Sweep:
    """That sweep, in a folder of its own."""
    shutil.copytree(done, here / "runs")
    return planned(TWO[1])


def table(of: str = "run") -> list[dict[str, str]]:
    """The rows of runs, or of groups, in table.csv, which says the same as table.json."""
    rows = list(csv.DictReader((SWEEP / "table.csv").read_text().splitlines()))
    same = json.loads((SWEEP / "table.json").read_text(), parse_constant=pytest.fail)
    texts = [["" if cell is None else str(cell) for cell in row] for row in same["rows"]]
    assert [list(row.values()) for row in rows] == texts
    assert not rows or list(rows[0]) == same["columns"]
    return [row for row in rows if row["of"] == of]


def values(metric: str, part: str = "all") -> list[float]:
    """The numbers of all runs together, run by run."""
    rows = (row for row in table() if not row["shortest"])
    return [float(r["value"]) for r in rows if (r["metric"], r["part"]) == (metric, part)]


def test_a_sweep_trains_compares_and_is_not_trained_twice(here: Path, command: Command):
    """In processes of its own, and each run is the run of `train` with the same values."""
    words = ("sweep", "c.yaml", "--seeds", "3:4", *TWO, "--lengths", "1:9", "--examples", "40")
    answer = command(*words)
    assert answer.code == 0, answer.err
    lines = [line for line in answer.err.splitlines() if "/4 model.positions=" in line]
    assert len(lines) == 4 and all("free-running exact match: in range" in x for x in lines)
    assert (SWEEP / "plot.png").read_bytes().startswith(b"\x89PNG")
    rows = table()
    runs = list(dict.fromkeys((row["run"], row["model.positions"], row["seed"]) for row in rows))
    expected = [(scheme, seed) for scheme in ("rotary", "anchored") for seed in ("3", "4")]
    assert [run[1:] for run in runs] == expected
    of_run = {row["metric"] for row in rows if row["part"] == ""}
    assert of_run == {"steps", "seconds", "parameters"} and values("steps", "") == [6] * 4
    forced = [row for row in rows if row["metric"] == "free_exact_match"]
    lengths = [row for row in forced if row["shortest"]]
    assert sum(int(row["pairs"]) for row in lengths) == 4 * 40
    assert {int(row["shortest"]) for row in lengths} <= {*range(1, 10)}
    assert all(float(r["low"]) <= float(r["value"]) <= float(r["high"]) for r in forced)
    again = command(*words)
    assert again.err.startswith("runs/sweeps/c: 4 runs (4 done)\n") and again.out == answer.out
    path = Path(runs[1][0])
    assert command("train", "c.yaml", "--seed", "4", "--set", "model.positions=rotary").code == 0
    weights = [load_file(run / "checkpoints/step-6.safetensors") for run in (path, Path("runs/c"))]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0] | weights[1])
    measured = command("eval", "runs/c", "--lengths", "1:9", "--examples", "40", "--json").out
    alone = json.loads(measured)
    assert values("free_exact_match")[1] == alone["parts"]["all"]["free_exact_match"]
    assert values("loss", "beyond")[1] == alone["parts"]["beyond"]["loss"]


def test_a_sweep_says_what_is_left_to_do(trained: Sweep, command: Command):
    _, second, third, _ = trained.trials
    (second.path / "eval.json").unlink()
    shutil.rmtree(third.path)
    answer = command("sweep", "c.yaml", "--seeds", "0:2", *TWO)
    said = "runs/sweeps/c: 6 runs (2 done, 1 only to be measured, 3 new)\n"
    assert answer.code == 0 and answer.err.startswith(said)


def test_another_config_or_grid_is_another_group_and_nothing_is_refused(trained, command: Command):
    text = Path("c.yaml").read_text()
    Path("c.yaml").write_text(text.replace("max_steps: 6", "max_steps: 8"))
    answer = command("sweep", "c.yaml", "--seeds", "0:1", "--set", "model.d_ff=16,32")
    assert answer.code == 0, answer.err
    assert sorted(values("steps", "")) == [6] * 4 + [8] * 4
    assert {"model.positions", "model.d_ff", "train.max_steps"} <= {*table()[0]}
    Path("c.yaml").write_text(text)
    assert "(4 done)" in command(*AGAIN, "--set", "model.d_ff=32").err


def test_a_run_is_known_by_what_is_in_its_files_wherever_they_lie(here: Path, monkeypatch):
    """A moved folder goes on; other data and other code of the same name are other runs."""
    before, after = here / "before", here / "after"
    before.mkdir()
    monkeypatch.chdir(before)
    Path("own.py").write_text("def f(s): return s[:]\n")
    Path("a.tsv").write_text("1 2\t2 1\n2 1\t1 2\n")
    files = {"files": {"train": "a.tsv", "test": "a.tsv"}}
    configs = [tiny_yaml(data={"symbols": None, **d}) for d in ({"task": "own.py:f"}, files)]
    for config in configs:
        Path("c.yaml").write_text(config)
        train_here(planned(seeds=range(1)))
    before.rename(after)
    monkeypatch.chdir(after)
    changes = {"own.py": "def f(s): return s[::-1]\n", "a.tsv": "1 2\t1 2\n2 1\t2 1\n"}
    for config, (name, text) in zip(configs, changes.items(), strict=True):
        Path("c.yaml").write_text(config)
        assert [each.config.seed for each in planned().waiting()] == [1]
        Path(name).write_text(text)
        assert len(planned().waiting()) == 2


def test_other_lengths_are_measured_anew_and_nothing_is_trained(trained, command: Command):
    before = values("steps", "")
    metrics = [(each.path / METRICS).stat().st_mtime_ns for each in trained.trials]
    assert command(*AGAIN, "--lengths", "1:8", "--examples", "80").code == 0
    assert {row["longest"] for row in table()} == {"", *map(str, range(1, 9))}
    assert values("steps", "") == before
    assert [(each.path / METRICS).stat().st_mtime_ns for each in trained.trials] == metrics


def test_a_metric_is_chosen_and_zeros_are_one_line(trained, command: Command):
    out = command(*AGAIN, "--metric", "loss").out
    assert "loss in nats a token, in range: test pairs" in out
    assert all(f"{loss:.4f}" in out for loss in values("loss", "in_range"))
    assert command(*AGAIN, "--metric", "parameters").out.startswith("parameters\n")
    for each in trained.trials:
        path = each.path / "eval.json"
        path.write_text(re.sub(r'("free_exact_match": )[\d.]+', r"\g<1>0.0", path.read_text()))
    lines = command(*AGAIN).out.splitlines()
    said = "free-running exact match, in range: test pairs of lengths 1 to 3: 0.000 in every run; "
    assert lines[0].startswith(f"{said}symbol errors: rotary 0.")
    assert len(lines) <= 5 and not any("difference" in line for line in lines)


# The grid ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (" a , b ", ["a", "b"]),
        ("[1,20],[1,40]", [[1, 20], [1, 40]]),
        ("[[1,2],3],{a: 1, b: 2}", [[[1, 2], 3], {"a": 1, "b": 2}]),
        ("'a,b',\"c,d\",e", ["a,b", "c,d", "e"]),
        ("1e-3,null,true", [0.001, None, True]),
        ("own.py:f,cuda:7", ["own.py:f", "cuda:7"]),
    ],
)
def test_values_are_split_outside_of_brackets_and_quotes(text, values):
    assert read_grid([f"key={text}"]) == {"key": values}


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--set", "model.positions"], ["write it as section.key=value,value"]),
        (["--set", "a=1,,2"], ["--set a=1,,2: write it as"]),
        (["--set", "a=],b"], ["brackets have two ends"]),
        (["--set", "a=1", "--set", "a=2"], ["a is given twice"]),
        (["--set", "seed=1,2"], ["--seeds, say 0:9"]),
        (["--seeds", "9:0"], ["--seeds 9:0: write them as FROM:TO"]),
        (["--set", "model.position=rotary,alibi"], ["model.position: unknown key; did you mean"]),
        (["--set", "model.n_heads=2,3", "--set", "model.d_ff=8,16"], ["n_heads=3 model.d_ff=8: "]),
        (
            ["--set", "model.positions=rotary,learned", "--lengths", "1:4000"],
            ["positions=learned: ", "max_positions"],
        ),
        (["--seeds", "0:99999"], ["100,000 runs are more than 10,000"]),
        (["--set", "device=cuda:7,cpu"], ["device=cuda:7: device cuda:7 is not on"]),
        (["--set", "fault=wrong_scale,no_causal", "--set", "model.n_heads=1"], ["wrong_scale"]),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_as_a_whole(words, fragments, here: Path, refused):
    message = refused("sweep", "c.yaml", *words)
    for fragment in fragments:
        assert fragment in message
    assert not (here / "runs").exists()


def test_a_config_that_is_named_in_two_ways_is_trained_once(here: Path):
    assert len(planned("train.lr=1e-3,0.001,2e-3", seeds=range(1)).trials) == 2


def test_a_mistake_in_the_base_file_is_told_once(here: Path, refused):
    assert "no config; name one" in refused("sweep")
    text = Path("c.yaml").read_text().replace("eval_every", "checkpoint_every")
    Path("c.yaml").write_text(text)
    for grid in ("model.positions=rotary,anchored", "model.n_heads=2,3"):
        message = refused("sweep", "c.yaml", "--seeds", "0:2", "--set", grid)
        assert message.count("checkpoint_every") == 1


# Failures ------------------------------------------------------------------------------------


def test_failures_are_kept_and_shown_and_stop_no_other(here: Path, command: Command):
    """One that diverges, one whose folder holds something else, one that is sound."""
    grid = "train.lr=1e-3,1e30,2e-3"
    sound, diverging, blocked = (each.path for each in planned(grid, seeds=range(1)).trials)
    blocked.mkdir(parents=True)
    (blocked / "thesis").write_text("mine")
    (SWEEP / "sweep.json").write_text('{"made": {}}')
    words = ("sweep", "c.yaml", "--seeds", "0:0", "--set", grid)
    answer = command(*words)
    assert answer.code == 1, answer.err
    assert "train.lr=1e+30 seed 0: failed: " in answer.err and "loss is not finite" in answer.err
    assert "train.lr=0.002 seed 0: failed: " in answer.err and "not a run directory" in answer.err
    assert "/3 train.lr=0.001 seed 0: free-running exact match: in" in answer.err
    assert answer.out.count("not counted: ") == 2
    assert command("eval", str(SWEEP), "--metric", "loss").out.count("0 of 1") == 3
    assert {row["run"] for row in table()} == {str(sound)}
    why = json.loads((SWEEP / "table.json").read_text())["not_counted"]
    assert "diverged" in why[str(diverging)] and "left alone" in why[str(blocked)]
    states = {Path(run["run"]): run for run in json.loads(command("runs", "--json").out)["runs"]}
    assert states[diverging]["state"] == "diverged", "runs tells it too"
    assert "loss not finite" in states[diverging]["problem"]
    assert (blocked / "thesis").read_text() == "mine"
    waiting = planned(grid, seeds=range(1)).waiting()
    assert [each.path for each in waiting] == [blocked], "what diverged would diverge again"
    (blocked / "thesis").unlink()
    command(*words)
    assert {row["run"] for row in table()} == {str(sound), str(blocked)}
    assert not (blocked / "failed.json").exists()


def test_a_reason_that_cannot_be_written_is_told(here: Path, command: Command):
    """As on a full disk: a process tells it before it ends."""
    (run,) = (each.path for each in planned(seeds=range(1)).trials)
    (run / "failed.json").mkdir(parents=True)
    (SWEEP / "sweep.json").write_text('{"made": {}}')
    answer = command("sweep", "c.yaml", "--seeds", "0:0")
    assert answer.code == 1 and "seed 0: failed: not empty and not a run directory" in answer.err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory; lower "),
        (ZeroDivisionError("a bug"), "internal error (ZeroDivisionError: a bug)"),
        (UserError(os.fsdecode(b"/data/\xff.txt: gone") + "x" * 9999), "/data/\\udcff.txt: gone"),
    ],
    ids=["memory", "bug", "no UTF-8"],
)
def test_why_a_trial_failed_is_kept(error, said, here: Path, monkeypatch):
    """Lack of memory has a remedy, a bug its traceback; what is long is shortened."""

    def fails(*_: object, **more: object) -> None:
        raise error

    monkeypatch.setattr(trial, "open_session", fails)
    (each,) = planned(seeds=range(1)).trials
    failure = trial.run(each)
    assert failure is not None and trial.read_failure(each.path) == failure
    assert said in failure.reason and len(failure.reason) < 2_000
    assert ("in fails" in failure.traceback) == isinstance(error, ZeroDivisionError)


def test_a_bug_in_a_run_ends_the_sweep_as_any_other_bug(trained, monkeypatch, command: Command):
    def train(self: Sweep, waiting: list[trial.Trial], *_: object) -> Iterator[list[object]]:
        failure = trial.Failure(reason="a bug", traceback="where")
        yield [(each, failure) for each in waiting]

    monkeypatch.setattr(Sweep, "train", train)
    answer = command("sweep", "c.yaml", "--seeds", "0:2", *TWO)
    assert answer.code == 70 and "a bug" in answer.err


@pytest.mark.parametrize(
    ("name", "text", "codes"),
    [
        ("sweep.json", '{"measures": 3}', (2, 2)),
        ("failed.json", "{", (0, 0)),
        ("eval.json", '{"measures": 3}', (1, 0)),
        ("eval.json", "1e15", (1, 0)),
    ],
)
def test_a_spoiled_file_ends_in_one_line(name, text, codes, trained, command: Command):
    """Also where only a share is no share."""
    folder = SWEEP if name == "sweep.json" else trained.trials[0].path
    if not text.startswith("{"):
        share = r'("free_exact_match": )[\d.]+'
        text, count = re.subn(share, rf"\g<1>{text}", (folder / name).read_text(), count=1)
        assert count == 1
    (folder / name).write_text(text)
    for words, code in zip((AGAIN, ("eval", str(SWEEP))), codes, strict=True):
        answer = command(*words)
        assert answer.code == code and "internal error" not in answer.err, answer
        said = answer.out + answer.err
        assert name == "failed.json" or f"{name}: not what a sweep writes; " in said


def test_a_folder_of_something_else_is_left_alone(here: Path, refused):
    Path("mine").mkdir()
    Path("mine/table.csv").write_text("1")
    assert "mine: not a sweep, so it is left alone" in refused("sweep", "c.yaml", "--out", "mine")
    assert "c.yaml: not a sweep, so it is left alone" in refused(
        "sweep", "c.yaml", "--out", "c.yaml"
    )
    assert os.listdir("mine") == ["table.csv"] and not Path("runs").exists()
    Path("runs").symlink_to("nowhere")
    with pytest.raises(UserError, match="sweep.json cannot be written"):
        sweep = planned()
        list(sweep.train(sweep.waiting()))


def test_without_an_extra_one_line_says_what_to_install(trained, command: Command, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure", "ray"):
        monkeypatch.setitem(sys.modules, name, None)
    (SWEEP / "plot.png").unlink()
    answer = command(*AGAIN)
    assert answer.code == 0 and "no picture: pictures are drawn with matplotlib" in answer.err
    assert not (SWEEP / "plot.png").exists() and table()
    answer = command(*AGAIN, "--on", "ray")
    assert answer.code == 2 and "not installed; `python -m pip install ray`" in answer.err


# Processes -----------------------------------------------------------------------------------


LOUD = """\
import multiprocessing
def f(source):
    if multiprocessing.parent_process():
        raise type("Loud" * 250_000, (Exception,), {})
    return source[::-1]
def g(source):
    return source[::-1]
"""
"""A task that fails in the process of a trial alone, where the sweep has been checked already."""


def test_a_megabyte_of_error_costs_its_own_run_alone(here: Path, command: Command):
    Path("own.py").write_text(LOUD)
    answer = command("sweep", "c.yaml", "--set", "data.task=own.py:f,own.py:g")
    assert answer.code == 1, answer.err
    (failed,) = (line for line in answer.err.splitlines() if "failed: " in line)
    assert "raises LoudLoud" in failed and len(failed) < 2_500
    (written,) = Path("runs/sweeps/c").glob("*/failed.json")
    assert len(json.loads(written.read_text())["reason"]) <= 2_000
    assert "not counted: " in answer.out
    assert len(list(Path("runs/sweeps/c").glob("*/eval.json"))) == 1


def test_a_process_that_is_killed_fails_alone(here: Path, monkeypatch):
    """As the system kills one that needs too much memory; and the server that starts them."""
    context = multiprocessing.get_context("forkserver")
    starts = iter([EOFError("the server is gone"), None])
    start = context.Process.start

    def failing(process) -> None:
        if (error := next(starts)) is not None:
            raise error
        start(process)

    monkeypatch.setattr(context.Process, "start", failing)
    Path("c.yaml").write_text(Path("c.yaml").read_text().replace("max_steps: 6", "max_steps: 9999"))
    lost, doomed = planned(seeds=range(2)).trials
    failures = {}
    for ended in processes.run_here([lost, doomed], 1):
        if doomed.share_done() > 0:
            for process in multiprocessing.active_children():
                process.kill()
        failures |= {each.path: failure for each, failure in ended}
    assert "no process could be started" in failures[lost.path].reason
    assert "exit code -9 (killed; out of memory?)" in failures[doomed.path].reason
    for each in (lost, doomed):
        assert trial.read_failure(each.path) == failures[each.path] and not each.is_done()


def test_ctrl_c_of_a_terminal_ends_no_process_that_a_sweep_starts():
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with processes.signals_blocked():
        started = subprocess.Popen(["sleep", "60"])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    started.send_signal(signal.SIGINT)
    started.terminate()
    assert started.wait() == -signal.SIGTERM


def test_as_many_processes_as_asked_and_one_a_core_at_most(here: Path, monkeypatch):
    """One in all where any run is on a GPU."""
    choose = lambda name, *_: torch.device(name)  # noqa: E731  # as if there were a GPU
    monkeypatch.setattr(devices, "choose_device", choose)
    monkeypatch.setattr("toytrans.sweeps.plan.choose_device", choose)
    monkeypatch.setattr(processes, "usable_cores", lambda: 8)
    for grid in ("device=cpu,cuda", "device=cuda,cpu", "device=cuda"):
        trials = planned(grid, seeds=range(10)).trials
        assert [processes.processes_for(trials, asked) for asked in (None, 3, 99)] == [1, 3, 8]
    trials = planned("device=cpu", seeds=range(10)).trials
    assert [processes.processes_for(trials, asked) for asked in (None, 3, 99)] == [8, 3, 8]


def test_data_files_are_read_once_however_many_trials(here: Path, monkeypatch):
    Path("train.tsv").write_text("1 2\t2 1\n2 1\t1 2\n")
    files = {"train": "train.tsv", "valid": "train.tsv", "test": "train.tsv"}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}))
    opened, system = [], os.open

    def counting(path, *given, **more):
        opened.append(Path(path).name)
        return system(path, *given, **more)

    monkeypatch.setattr(os, "open", counting)
    counts = []
    for seeds in (1, 20):
        opened.clear()
        planned(seeds=range(seeds))
        counts.append(opened.count("train.tsv"))
    assert counts[0] == counts[1] > 0


@pytest.mark.slow
def test_a_sweep_on_ray_ends_like_one_on_this_machine(here: Path, command: Command):
    """Bit for bit, a failure included, and Ray prints nothing."""
    pytest.importorskip("ray")
    words = ("sweep", "c.yaml", "--seeds", "0:0", "--set", "train.lr=1e-3,1e30")
    line = [sys.executable, "-m", "toytrans", *words, "--on", "ray", "--out", "runs/sweeps/ray"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    known = r"[12]/2 train.lr=|written: |runs/sweeps/ray: 2 runs"
    assert [line for line in done.stderr.splitlines() if not re.match(known, line)] == []
    local = command(*words, "--out", "runs/sweeps/local")
    assert local.out.replace("sweeps/local", "sweeps/ray") == done.stdout
    ours, theirs = (
        {path.parts[3:]: load_file(path) for path in Path("runs/sweeps", name).rglob("*.safet*")}
        for name in ("ray", "local")
    )
    assert ours.keys() == theirs.keys() and len(ours) >= 2
    for place, tensors in ours.items():
        assert all(theirs[place][name].equal(tensor) for name, tensor in tensors.items())


# Kills ---------------------------------------------------------------------------------------


def numbers() -> list[dict[str, str]]:
    """The table, which does not depend on when a training was stopped, but for its seconds."""
    return [row for row in table() if row["metric"] != "seconds"]


def test_a_sweep_that_is_stopped_ends_with_the_same_table(here: Path, command: Command):
    """Killed, then asked to end: its trainings save and end with it. tests/slow/test_sweep_kills.py
    kills them too."""
    Path("c.yaml").write_text(tiny_yaml(train={"max_steps": 200, "eval_every": 100}))
    train_here(planned())
    undisturbed = numbers()
    shutil.rmtree("runs")
    words = ("sweep", "c.yaml", "--seeds", "0:1")
    killed, asked_to_end = (each.path for each in planned().trials)
    for run, number, code in ((killed, signal.SIGKILL, -9), (asked_to_end, signal.SIGTERM, 143)):
        sweep = Forked(COMMAND, *words, "--jobs", "1")
        while last_step(run) < 1:
            assert sweep.process.is_alive(), sweep.ended()
            time.sleep(0.01)
        os.kill(sweep.process.pid, number)
        assert sweep.ended().code == code
    assert 0 < saved_steps(asked_to_end)[-1] < 200
    assert command(*words).code == 0
    assert numbers() == undisturbed
    for run in (killed, asked_to_end):
        records = (run / METRICS).read_text().splitlines()
        steps = [json.loads(line)["step"] for line in records]
        assert steps == list(range(1, 201)), "saved where it was stopped, and waited for"
