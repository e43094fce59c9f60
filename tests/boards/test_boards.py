"""Boards: what they say, that they train in processes of their own and go on where they stopped."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from conftest import Command

from toytrans.boards import definition, jobs, results
from toytrans.boards.definition import board_names, load_board
from toytrans.config.yaml import write_yaml
from toytrans.errors import UserError
from toytrans.sweeps import processes, trial
from toytrans.sweeps.failures import Failure, keep_failure
from toytrans.training.folder import locked_folder
from toytrans.user_code import is_reference

SCAN_FILES = [
    f"tasks_{split}_{name}.txt" for split in ("train", "test") for name in ("simple", "length")
]

TINY = """
title: a tiny board
source: nowhere
knows: nothing
config:
  data: {symbols: 4, train_length: [1, 3], test_length: [1, 4], valid_examples: 20}
  model: {positions: anchored, norm: pre, d_model: 16, n_heads: 4, d_ff: 16, n_decoder_layers: 1}
  train: {max_steps: 30}
control:
  model: {positions: sinusoidal}
quick:
  train: {max_steps: 20}
tasks:
  copy:
    config: {data: {task: copy}}
    measures:
      short: {lengths: [1, 4], pairs: 60, decode: null, published: {somebody: 0.25}, aim: 0.5}
      perplexity: {lengths: [1, 4], pairs: 60, decode: null, metric: perplexity}
      long: {lengths: [9, 9], pairs: 10, decode: 2, metric: free_token_accuracy, control: 5}
      ours alone: {lengths: [3, 3], pairs: 7, control: 0}
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small board, which is where commands run."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(definition, "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train_here() -> list[jobs.Job]:
    """Its jobs, trained in this process, which spares the start of others."""
    todo = jobs.jobs_of("tiny", load_board("tiny"), quick=False, files=None)
    for job in todo:
        trial.train_and_measure(job)
    return todo


@pytest.fixture
def scan_files(tmp_path: Path) -> Path:
    for name in SCAN_FILES:
        (tmp_path / name).write_text("IN: walk OUT: I_WALK\n")
    return tmp_path


@pytest.mark.parametrize("name", ["chomsky", "joeynmt", "ontanon", "scan", "sockeye", "t2t"])
def test_every_board_trains_one_model_beside_a_sinusoidal_one(name, scan_files):
    assert name in board_names()
    board = load_board(name)
    todo = jobs.jobs_of(name, board, quick=False, files=scan_files)
    assert len(todo) == len({job.path for job in todo}) == 10 * len(board.tasks)
    ours = [job.config for job in todo if job.variant == "ours"]
    assert len({config.model.model_dump_json() for config in ours}) == 1, "one model for all tasks"
    for one, other in zip(todo[::2], todo[1::2], strict=True):
        assert (one.variant, other.variant, one.task) == ("ours", "control", other.task)
        assert one.config.data == other.config.data, "the same data"
        like = other.config.train.model_copy(update={"lr": one.config.train.lr})
        assert one.config.train == like, "the same budget"
        assert other.config.model.positions == "sinusoidal" != one.config.model.positions
    for job in todo:
        for measure in job.measures.values():
            of = measure.of
            assert (of.pairs is None) == (of.lengths is None), "all of a file"
            assert of.lengths is None or of.pairs * 5 >= 20
    assert {job.config.seed for job in todo} == {0, 1, 2, 3, 4}
    quick = jobs.jobs_of(name, board, quick=True, files=scan_files)
    assert {job.config.seed for job in quick} == {0}
    assert max(job.config.train.max_steps for job in quick) <= 200
    assert not {job.path for job in quick} & {job.path for job in todo}


RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_kept_results_are_those_of_the_boards_as_they_are(path, scan_files):
    about, board = json.loads(path.read_text()), load_board(path.stem)
    assert about["tasks"].keys() == board.tasks.keys()
    for task, found in about["tasks"].items():
        assert found["notes"] == list(board.notes) and found["knows"] == board.knows
        measures = {key: m.model_dump(mode="json") for key, m in board.tasks[task].measures.items()}
        assert found["measures"] == measures
        assert [(run["variant"], run["seed"]) for run in found["runs"]] == [
            (variant, seed) for seed in range(5) for variant in ("ours", "control")
        ]
        for variant, saved in found["configs"].items():
            config = definition.config_of(board, task, variant, 0, quick=False, files=scan_files)
            now = config.model_dump(mode="json")
            for part, file in (now["data"]["files"] or {}).items():
                now["data"]["files"][part] = file and Path(file).name
            for section in ("data", "model", "train"):
                own = {key for key, value in now[section].items() if is_reference(str(value))}
                shared = saved[section].keys() & now[section].keys() - own
                assert {key: saved[section][key] for key in shared} == {
                    key: now[section][key] for key in shared
                }
        for run in found["runs"]:
            names = {
                name
                for name, measure in board.tasks[task].measures.items()
                if measure.control != 0 or run["variant"] == "ours"
            }
            assert run["measures"].keys() == names
            saved = {"seed": run["seed"]} | found["configs"][run["variant"]]
            assert run["config_sha256"] == sha256(write_yaml(saved).encode()).hexdigest()
        for job in jobs.jobs_of(path.stem, board, quick=False, files=scan_files):
            for run in found["runs"] if job.task == task else ():
                if (run["variant"], run["seed"]) == (job.variant, job.config.seed):
                    examples = {k: m["examples"] for k, m in run["measures"].items()}
                    wanted = {k: m.of.pairs or examples[k] for k, m in job.measures.items()}
                    assert examples == wanted, "as many pairs as the board says"


def test_files_count_by_their_contents_wherever_they_lie(scan_files, tmp_path):
    board, other = load_board("scan"), tmp_path / "other"
    shutil.copytree(scan_files, other, ignore=shutil.ignore_patterns("other"))
    here, there = (jobs.jobs_of("scan", board, quick=True, files=f)[0] for f in (scan_files, other))
    assert here.path == there.path and here.config_sha256 == there.config_sha256
    (other / "tasks_train_simple.txt").write_text("IN: run OUT: I_RUN\n")
    changed = jobs.jobs_of("scan", board, quick=True, files=other)[0]
    assert here.path != changed.path and here.config_sha256 == changed.config_sha256


def test_a_board_that_does_not_exist_is_refused_with_the_names(command: Command):
    answer = command("board", "t2")
    assert answer.code == 2 and "no board 't2'; there are chomsky, joeynmt" in answer.err


def test_the_boards_are_listed(command: Command):
    out = command("board").out
    assert all(name in out for name in board_names())
    found = json.loads(command("board", "--json").out)
    assert list(found) == board_names() and found["joeynmt"] == ["reverse"]


@pytest.mark.parametrize(
    ("data", "fragment"),
    [([], "this board needs tasks_test_simple.txt"), (["--data", "."], "no such file")],
)
def test_missing_files_are_named_with_where_they_come_from(data, fragment, command, tmp_path):
    code, _, err = command("board", "scan", *data)
    assert (
        code == 2
        and fragment in err
        and "github.com/brendenlake/SCAN" in err
        and "--data DIR" in err
    )


def test_a_board_trains_writes_and_is_not_trained_twice(tiny, command: Command, monkeypatch):
    monkeypatch.setattr(jobs, "SEEDS", (0, 1))
    about = json.loads(command("board", "tiny", "--json").out)
    assert json.loads((tiny / "results" / "tiny.json").read_text()) == about
    runs = about["tasks"]["copy"]["runs"]
    assert [(run["variant"], run["seed"]) for run in runs] == [
        ("ours", 0),
        ("control", 0),
        ("ours", 1),
        ("control", 1),
    ]
    for run in runs:
        short, perplexity, long = (run["measures"][key] for key in ("short", "perplexity", "long"))
        assert run["steps"] == 30 and len(run["config_sha256"]) == 64
        assert short["value"] == short["exact_match"] and short["decoded"] == 60
        assert perplexity["value"] == pytest.approx(math.exp(short["loss"]))
        ours = run["variant"] == "ours"
        assert (long["examples"], long["decoded"]) == ((10, 2) if ours else (5, 2))
        assert ("ours alone" in run["measures"]) == ours
        assert long["curve"] == {"9:9": pytest.approx(long["forced_exact_match"], abs=1e-4)}
        assert set(short["curve"]) == {"1:1", "2:2", "3:3", "4:4"}
        assert long["value"] == long["free_token_accuracy"]
    again = command("board", "tiny")
    assert "4 of 4 runs are there already" in again.err
    assert "somebody" in again.out and "copy, lengths 1 to 4: exact match (aim 0.5)" in again.out
    assert again.out.count("toytrans, anchored") == 4
    assert again.out.count("toytrans, sinusoidal") == 3
    one = jobs.jobs_of("tiny", load_board("tiny"), quick=False, files=None)[0]
    measured = one.result()["measures"]
    (one.path / "result.json").unlink()
    assert "3 of 4 runs are there already" in command("board", "tiny").err
    assert one.result()["measures"] == measured, "measured again, to the same numbers"


def test_a_quick_board_says_on_what_it_was_measured(tiny, command: Command):
    out = command("board", "tiny", "--quick").out
    assert "Quick: one seed, few steps, few pairs." in out
    lines = out[out.index("copy, lengths 1 to 4: exact match") :].splitlines()
    assert lines[1].split() == ["mean", "steps", "pairs", "seeds"]
    assert lines[2].split()[:2] == ["toytrans,", "anchored"]
    assert lines[2].split()[3:] == ["20", "50"] and lines[4].split() == ["somebody", "0.250"]


def test_some_tasks_of_a_board_leave_the_results_of_the_others(tiny, command, monkeypatch):
    monkeypatch.setattr(jobs, "SEEDS", (0,))
    both = TINY + TINY[TINY.index("  copy:") :].replace("copy", "reverse")
    (tiny / "tiny.yaml").write_text(both)
    file = tiny / "results" / "tiny.json"
    train_here()
    command("board", "tiny")
    whole = json.loads(file.read_text())
    assert list(whole["tasks"]) == ["copy", "reverse"]
    stamped = {task: found | {"date": "long ago"} for task, found in whole["tasks"].items()}
    file.write_text(json.dumps(whole | {"tasks": stamped}))
    command("board", "tiny", "reverse")
    dates = [found["date"] for found in json.loads(file.read_text())["tasks"].values()]
    assert dates == ["long ago"] * 2, "nothing new is known"
    file.write_text(json.dumps(whole))
    (tiny / "tiny.yaml").write_text(both.replace("pairs: 10, decode: 2", "pairs: 20, decode: 3"))
    answer = command("board", "tiny", "copy", "--json")
    alone, now = json.loads(answer.out), json.loads(file.read_text())
    assert list(alone["tasks"]) == ["copy"] and list(now["tasks"]) == ["copy", "reverse"]
    assert now["tasks"]["copy"] == alone["tasks"]["copy"] != whole["tasks"]["copy"]
    assert now["tasks"]["reverse"] == whole["tasks"]["reverse"]
    answer = command("board", "tiny", "copy", "shift")
    assert answer.code == 2 and "tiny has no task 'shift'; it has 'copy', 'reverse'" in answer.err


SPOILED = ["", "{", "[]", "{}", "3", "null", "[" * 10**5, "\0" * 99, "\ufeff{}", "1" * 9999]
OF_TASKS = [
    "3",
    "[]",
    "null",
    '{"copy": 3}',
    '{"copy": ' + '{"a":' * 10**4,
    '{"copy": {"a": NaN,}}',
]


@pytest.mark.parametrize("text", [*SPOILED, *(f'{{"tasks": {tasks}}}' for tasks in OF_TASKS)])
def test_a_spoiled_results_file_is_refused_before_the_training(text, tiny, command):
    (tiny / "results").mkdir()
    (tiny / "results" / "tiny.json").write_text(text)
    answer = command("board", "tiny")
    assert answer.code == 2 and "tiny.json: not the results of a board; move it away" in answer.err
    assert not (tiny / "runs").exists()


def no_file(kind: str, path: Path) -> None:
    """Something in the place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "link to itself":
        path.symlink_to(path.name)
    else:
        with path.open("wb") as file:
            file.truncate(3 * 2**30)


NO_FILES = ["pipe", "directory", "link to itself", "3 GiB"]


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_results_file_is_refused_before_the_training(kind, tiny, command):
    no_file(kind, tiny / "results" / "tiny.json")
    answer = command("board", "tiny")
    assert answer.code == 2 and "move it away" in answer.err and answer.err.count("\n") == 1
    assert not (tiny / "runs").exists()


@pytest.fixture(scope="module")
def one_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of one seed."""
    folder = tmp_path_factory.mktemp("board")
    (folder / "tiny.yaml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definition, "FOLDER", folder)
        patch.setattr(jobs, "SEEDS", (0,))
        patch.chdir(folder)
        train_here()
    return folder


@pytest.fixture
def done(one_job: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> jobs.Job:
    """A job that is done, and no other."""
    monkeypatch.setattr(jobs, "SEEDS", (0,))
    shutil.copytree(one_job, tiny, dirs_exist_ok=True)
    (job, _) = jobs.jobs_of("tiny", load_board("tiny"), quick=False, files=None)
    assert job.result() is not None
    return job


def test_results_of_others_are_kept_as_strict_json(done, tiny, command):
    (tiny / "tiny.yaml").write_text(TINY + TINY[TINY.index("  copy:") :].replace("copy", "reverse"))
    (tiny / "results").mkdir()
    huge = f'{{"a": NaN, "b": 1e999, "c": {"9" * 4000}, "d": "\u200d"}}'
    (tiny / "results" / "tiny.json").write_text(f'{{"tasks": {{"reverse": {huge}}}, "x": NaN}}')
    assert command("board", "tiny", "copy").code == 0
    whole = (tiny / "results" / "tiny.json").read_text()
    kept = json.loads(whole, parse_constant=pytest.fail)["tasks"]["reverse"]
    assert kept == {"a": None, "b": None, "c": int("9" * 4000), "d": "\u200d"}


OF_A_RESULT = ("steps", "stop_reason", "target_tokens", "train_s", "cpu_s", "precision", "measures")
OF_A_MEASURE = ("asked", "value", "loss", "exact_match", "free_token_accuracy", "by_length", "low")
VALUES = [[], {"a": 1}, 1e400]


def refused_result(command: Command, job: jobs.Job) -> None:
    answer = command("board", "tiny")
    assert answer.code == 2 and answer.err.count("\n") == 1, answer.err
    assert f"{job.path / 'result.json'}: " in answer.err and "remove it, and" in answer.err
    assert not Path("results").exists()


@pytest.mark.parametrize("text", [*SPOILED, '{"measures": 3}', '{"measures": {"short": 3}}'])
def test_a_result_that_no_training_writes_is_refused(text, done, command):
    (done.path / "result.json").write_text(text)
    refused_result(command, done)
    assert (done.path / "result.json").read_text() == text


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_result_is_refused(kind, done, command):
    no_file(kind, done.path / "result.json")
    refused_result(command, done)


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("key", [*OF_A_RESULT, *(f"measures.short.{key}" for key in OF_A_MEASURE)])
def test_a_result_with_another_value_ends_in_an_answer(key, value, done, command):
    found = json.loads((done.path / "result.json").read_text())
    *sections, name = key.split(".")
    place = found
    for section in sections:
        place = place[section]
    assert name in place
    place[name] = value
    (done.path / "result.json").write_text(json.dumps(found).replace("Infinity", "1e400"))
    if name == "asked" and value == {"a": 1}:
        assert done.result() is None and done.so_far() is not None, "it is measured again"
    else:
        refused_result(command, done)


def test_a_result_without_its_newer_keys_is_read(done, command):
    found = json.loads((done.path / "result.json").read_text())
    for key in set(OF_A_RESULT) - {"measures"}:
        del found[key]
    found["measures"]["short"]["value"] = None
    (done.path / "result.json").write_text(json.dumps(found))
    answer = command("board", "tiny", "--json")
    assert answer.code == 0, answer.err
    runs = json.loads(answer.out, parse_constant=pytest.fail)["tasks"]["copy"]["runs"]
    assert runs[0]["measures"]["short"]["value"] is None and "steps" not in runs[0]
    assert "nan" in command("board", "tiny").out


@pytest.mark.parametrize(
    "text", ["", "[]", '{"step": 1e400}', '{"step": -9}', f'{{"step": {"9" * 400}}}', "[" * 10**5]
)
def test_records_that_make_no_sense_are_no_share_of_a_job(text, done):
    (done.path / "result.json").unlink()
    (done.path / "metrics.jsonl").write_text(text)
    assert done.share_done() == 0


def test_a_measure_that_changes_is_measured_anew_and_nothing_is_trained(tiny, command, monkeypatch):
    monkeypatch.setattr(jobs, "SEEDS", (0,))
    was = train_here()[0]
    trained = was.result()["measures"]["long"]
    changed = TINY.replace("pairs: 10, decode: 2", "pairs: 20, decode: 3")
    (tiny / "tiny.yaml").write_text(changed)
    ours, _ = todo = jobs.jobs_of("tiny", load_board("tiny"), quick=False, files=None)
    before = ours.so_far()
    assert ours.result() is None and "long" not in before["measures"]
    assert len(before["measures"]) == 3
    monkeypatch.setattr(trial.Trainer, "train", lambda trainer: iter(()))
    for job in todo:
        trial.train_and_measure(job)
    after = ours.result()
    assert (after["measures"]["long"]["examples"], after["measures"]["long"]["decoded"]) == (20, 3)
    assert {name: after["measures"][name] for name in before["measures"]} == before["measures"]
    assert {k: v for k, v in after.items() if k != "measures"} == {
        k: v for k, v in before.items() if k != "measures"
    }
    assert not jobs.Job.result(was), "no longer asked for"
    trial.train_and_measure(was)
    assert was.result()["measures"]["long"] == trained, "of the saved model, to the same number"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_stopped_board_saves_and_goes_on(tiny, monkeypatch, number):
    """However it ends: what it has started ends with it. Nothing of where it runs is imported."""
    (tiny / "multiprocessing.py").write_text("open('imported', 'a')")
    (tiny / "tiny.yaml").write_text(TINY.replace("max_steps: 20", "max_steps: 3000"))
    program = (
        "from pathlib import Path\nfrom toytrans.boards import definition\n"
        f"definition.FOLDER = Path({str(tiny)!r})\n"
        "from toytrans.cli.app import main\n"
        "if __name__ == '__main__': main()\n"
    )
    (tiny / "run.py").write_text(program)
    line = [sys.executable, "-P", "run.py", "board", "tiny", "--quick"]

    def heed_hangups() -> None:  # the tests may run under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    with subprocess.Popen(
        line, cwd=tiny, stderr=subprocess.PIPE, text=True, preexec_fn=heed_hangups
    ) as process:
        board = load_board("tiny")
        ours = jobs.jobs_of("tiny", board, quick=True, files=None)[0]
        for _ in range(600):
            if ours.share_done() > 0:
                break
            time.sleep(0.1)
        os.kill(process.pid, number)
        process.communicate(timeout=60)  # to the end of all that have its standard error
        assert process.returncode == (129 if number == signal.SIGHUP else -number)
    with locked_folder(ours.path, ""):
        assert not (tiny / "imported").exists()
    assert ours.result() is None
    saved = [int(path.name[5:]) for path in (ours.path / "checkpoints").glob("step-*")]
    assert saved and max(saved) >= 10, "the training has saved"
    started = []

    def train(trainer: trial.Trainer) -> Iterator[None]:
        started.append(trainer.progress.step)
        return iter(())

    monkeypatch.setattr(trial.Trainer, "train", train)
    trial.train_and_measure(ours)
    assert started == [max(saved)] and ours.share_done() == 1
    assert ours.result()["cpu_s"] is None, "only of the second part"


def test_a_board_beside_itself_names_no_option_that_it_lacks(tiny):
    job = jobs.jobs_of("tiny", load_board("tiny"), quick=True, files=None)[0]
    with locked_folder(job.path, ""), pytest.raises(UserError) as refusal:
        trial.train_and_measure(job)
    assert str(refusal.value).endswith("is writing here; wait for its end or stop it")


def test_a_process_that_is_killed_or_refuses_is_reported(tiny):
    todo = jobs.jobs_of("tiny", load_board("tiny"), quick=True, files=None)

    def outcome(code: int) -> Exception:
        failure = processes.failure_by_code(todo[0].path, code)
        assert failure is not None
        return failure.error()

    killed = outcome(-9)
    assert isinstance(killed, UserError) and "killed by signal 9 " in str(killed)
    assert str(killed).endswith("goes on where it stopped")
    crashed = outcome(1)
    assert isinstance(crashed, RuntimeError) and "exit code 1" in str(crashed)
    keep_failure(todo[0].path, Failure(reason="the disk is full"))
    refused = outcome(processes.FAILED)
    assert isinstance(refused, UserError) and str(refused) == "the disk is full"


def test_means_are_over_seeds_and_published_numbers_stand_below(tiny, monkeypatch):
    board = load_board("tiny")
    todo = jobs.jobs_of("tiny", board, quick=False, files=None)
    values = {job.path: 0.1 * k for k, job in enumerate(todo)}
    names = ("short", "perplexity", "long", "ours alone")
    monkeypatch.setattr(
        jobs.Job,
        "result",
        lambda job: {"measures": {name: {"value": values[job.path]} for name in names}},
    )
    short = results.blocks(board, todo)[0]
    assert [line.who for line in short.lines] == [
        "toytrans, anchored",
        "toytrans, sinusoidal",
        "somebody",
    ]
    assert [line.mean for line in short.lines] == pytest.approx([0.4, 0.5, 0.25])
    assert short.lines[0].values == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
    assert short.measure.aim == 0.5
