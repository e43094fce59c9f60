"""Kills and signals at random moments, folders full of modules, run directories full of links.

SIGNALS and FOLDERS in the environment say how many are tried.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from conftest import SIGNALS, call, tiny_yaml
from forked import COMMAND
from killed import last_step, train_and_kill

from toytrans.training.checkpoint import saved_steps

pytestmark = pytest.mark.slow

TOYTRANS = (sys.executable, "-P", "-c", COMMAND)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a config, and a run of it."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(tiny_yaml(train={"max_steps": 20, "eval_every": 10}))
    assert call("train", "tiny.yaml", "--out", "run") == 0
    return tmp_path


@pytest.mark.usefixtures("here")
def test_forty_kills_of_one_training_change_nothing():
    train_and_kill(40, seed=1)


ENDLESS = ("--set", "train.max_steps=1000000")
ATTACKED = {
    "train": ("train", "tiny.yaml", *ENDLESS),
    "train --resume": ("train", "tiny.yaml", "--out", "own", "--resume", *ENDLESS),
    "sweep": ("sweep", "tiny.yaml", "--seeds", "0:1", *ENDLESS),
    "eval": ("eval", "run", "--decode", "100"),
    "check": ("check", "run"),
    "sweep of a board": ("sweep", "sockeye"),
    "translate": ("translate", "run"),
    "doctor": ("doctor",),
}
SECONDS, STARTED, AT_ITS_END, PATIENCE = 2.0, 0.25, 0.5, 60.0
"""When signals come; when Python has started us; how soon a command ends that had nothing left to
do; how long one may take to end."""


def test_a_signal_at_any_moment_ends_a_command_and_saves(place: Path) -> None:
    rng = random.Random(os.environ.get("SEED", "0"))
    trials = []
    for number in range(int(os.environ.get("SIGNALS", "80"))):
        name = list(ATTACKED)[number % len(ATTACKED)]
        moment, group = rng.uniform(0, SECONDS), rng.random() < 0.5
        trials.append((place, number, name, rng.choice(SIGNALS), moment, group))
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda trial: attacked(*trial), trials))
    assert [pair for pair in zip(trials, found, strict=True) if pair[1]] == []


def attacked(
    place: Path, number: int, name: str, sent: signal.Signals, moment: float, group: bool
) -> list[str]:
    """What a signal to a command, or to its whole group as a terminal sends it, did wrong."""
    folder = place / f"trial-{number}"
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    for shared in ("tiny.yaml", "run"):
        (folder / shared).symlink_to(place / shared)
    process = subprocess.Popen(
        [*TOYTRANS, *ATTACKED[name]],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    began = time.monotonic()
    time.sleep(moment)
    ended = process.poll() is not None
    if not ended:
        (os.killpg if group else os.kill)(process.pid, sent)
    try:
        _, words = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return ["it did not end", process.communicate()[1]]
    late = ended or time.monotonic() - began < moment + AT_ITS_END
    wrong = []
    if not rightly_ended(process.returncode, words, sent, early=moment < STARTED, late=late):
        wrong += [f"exit code {process.returncode}", words]
    if outlived(process.pid):
        wrong.append("a process lives on")
    wrong += [f"left behind: {path}" for path in (*temporary.iterdir(), *folder.glob(".toy*"))]
    for run in (folder / "runs/tiny", folder / "own"):
        recorded, saved = last_step(run), max(saved_steps(run), default=0)
        if recorded > saved:
            wrong.append(f"{run}: step {recorded} is recorded, {saved} saved")
    return wrong


def rightly_ended(code: int, words: str, sent: int, *, early: bool, late: bool) -> bool:
    """early: Python may not have started us when the signal came. late: the command had ended
    then, or had nothing left to do."""
    ours = any(f"/{part}" in words for part in ("toytrans/cli/app", "torch/", "typer/", "rich/"))
    if early and not ours and (code == -sent or "KeyboardInterrupt" in words):
        return True
    if code == 0:
        return late
    return code == 128 + sent and "Traceback" not in words and "Exception ignored" not in words


def outlived(group: int) -> bool:
    """Whether processes of a group live on; what saves or cleans up has ten seconds for it."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
    return True


COMMANDS = (
    *("--version", "--help", "explain schema", "explain copy", "explain faults", "train tiny.yaml"),
    "train tiny.yaml --out run --resume --set train.max_steps=25",
    *("eval run", "translate run 1", "check run", "check --config tiny.yaml", "doctor"),
    *("doctor run", "inspect-masks run", "trace", "trace run 1", "demo gradients"),
    *("sweep sockeye --dry-run", "sweep tiny.yaml --seeds 0:0", "runs"),
)


def test_no_command_imports_what_lies_where_it_runs(place: Path) -> None:
    told = place / "imported.txt"
    names = {*sys.stdlib_module_names, *packages_distributions(), "sitecustomize", "usercustomize"}
    for name in names:
        (place / f"{name}.py").write_text(f"print({name!r}, file=open({str(told)!r}, 'a'))\n")
    assert len(names) > 300
    for words in COMMANDS:
        done = subprocess.run([*TOYTRANS, *words.split()], capture_output=True, text=True)
        assert done.returncode in (0, 1), (words, done.stderr)  # `doctor` may find something
        assert not told.exists(), (words, told.read_text())


INVENTED = ("notes.txt", "eval.json", f".toytrans-{'0' * 16}.draft", "checkpoints/step-30")
INVENTED += ("checkpoints/step-30.safetensors", "checkpoints/.step-30")
CHANGES = ("link", "link to a folder", "link to nothing", "file", "folder", "moved", "garbled")
FLAGS = ("", "--resume", "--resume --set train.max_steps=40", "--resume --set train.lr=1e30")
MINE = ("diary", "thesis/chapter.txt", "thesis/config.yaml", "step-10/photo.png")


def test_no_training_harms_a_file_of_the_users(place: Path) -> None:
    """What is the user's, in the run too, or beside it, is there afterwards, and nothing new is
    outside of the run."""
    codes = []
    for number in range(int(os.environ.get("FOLDERS", "100"))):
        rng = random.Random(number)
        trial = place / "trial"
        shutil.rmtree(trial, ignore_errors=True)
        shutil.copytree(place / "run", trial / "run")
        shutil.copy(place / "tiny.yaml", trial)
        for name in MINE:
            (trial / name).parent.mkdir(exist_ok=True)
            (trial / name).write_text(f"{name} is mine")
        changed = [change(trial, rng) for _ in range(rng.randint(1, 3))]
        before = files_in(trial)
        linked = (trial / "run/checkpoints").is_symlink()  # where training may write, too
        os.chdir(trial)
        for flags in rng.sample(FLAGS, 2):
            codes.append(call("train", "tiny.yaml", "--out", "run", *flags.split()))
            after = files_in(trial)
            new = [n for n in after.keys() - before if not (n.startswith("run/") or linked)]
            kept = list(after.values())
            lost = [n for n, raw in before.items() if is_users(n) and raw not in kept]
            assert codes[-1] in (0, 1, 2) and not new + lost, (number, changed, flags, new, lost)
    assert {0, 2} <= set(codes), "some go on, some are refused"


def change(trial: Path, rng: random.Random) -> str:
    """Make something else of an entry of the run."""
    run = trial / "run"
    entries = {str(path.relative_to(run)) for path in run.rglob("*") if path.name != "mine.txt"}
    path, what = run / rng.choice(sorted(entries | {*INVENTED})), rng.choice(CHANGES)
    there = os.path.lexists(path) and not path.is_symlink()
    if not path.parent.is_dir() or (what in ("moved", "garbled") and not there):
        return "nothing"
    up = os.path.relpath(trial.resolve(), path.parent.resolve())
    if what == "garbled":
        if path.is_file() and (raw := bytearray(path.read_bytes())):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            path.write_bytes(raw)
    elif what == "moved":
        name = f"moved-{path.name}-{rng.random()}"
        path.rename(trial / name)
        path.symlink_to(f"{up}/{name}")
    else:
        shutil.rmtree(path) if path.is_dir() and there else path.unlink(missing_ok=True)
        if what == "file":
            path.write_text(f"{rng.random()} is mine")
        elif what == "folder":
            path.mkdir()
            (path / "mine.txt").write_text(f"{rng.random()} is mine")
        else:
            folder = rng.choice(("", "/thesis", "/step-10"))
            ends = {"link": "/diary", "link to a folder": folder, "link to nothing": "/nothing"}
            path.symlink_to(up + ends[what])
    return f"{path.relative_to(trial)}: {what}"


def files_in(trial: Path) -> dict[str, bytes]:
    paths = (path for path in trial.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(trial)): path.read_bytes() for path in paths}


def is_users(name: str) -> bool:
    """Whether a file lies beside the run, or in a folder that the user has put there."""
    return not name.startswith("run/") or name.endswith("/mine.txt")
