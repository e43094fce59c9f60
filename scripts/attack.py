"""Attack the commands, and count what they did not withstand.

    python scripts/attack.py signals [--number 500] [--seed 0]
    python scripts/attack.py poisoned
    python scripts/attack.py links [--number 500] [--seed 0]

signals     SIGINT, SIGTERM and SIGHUP at random moments of a command's first two seconds, to the
            process alone or to its whole group, as a terminal sends them. `in time` is exit code
            128 + n without a traceback; `too early` came before Python had started us, `too late`
            when the command was over. The rest are faults: `lost` went on to its end or for 30 s,
            `left behind` are processes or temporary files, `unsaved` are steps that were not saved.
poisoned    Every command from a folder full of modules, each of which tells that it was imported.
links       Trainings in run directories whose entries have become links, folders and files of a
            user's, with --resume and without. `harmed`: a file of the user's is gone
            or changed, or a new one lies outside of the run.

The exit code is 1 where something fell.
"""

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import packages_distributions
from pathlib import Path

from toytrans.cli import main as toytrans
from toytrans.training.checkpoint import saved_steps
from toytrans.training.run import RunFolder

TOYTRANS = str(Path(sysconfig.get_path("scripts"), "toytrans"))
CONFIG = """
data: {task: copy, symbols: 5, train_length: [1, 4], valid_examples: 9, test_examples: 9,
       batch_tokens: 128}
model: {d_model: 16, n_heads: 2, n_encoder_layers: 1, n_decoder_layers: 1, d_ff: 32}
train: {max_steps: 20, eval_every: 10, log_every: 1, precision: fp32}
"""
ENDLESS = ("--set", "train.max_steps=1000000")


def prepared(folder: Path) -> None:
    """A config, and a run of it."""
    (folder / "tiny.yaml").write_text(CONFIG)
    line = [TOYTRANS, "train", "--config", "tiny.yaml", "--out", "run"]
    subprocess.run(line, cwd=folder, check=True, capture_output=True)


# Signals -------------------------------------------------------------------------------------

ATTACKED = {
    "train": ("train", "--config", "tiny.yaml", *ENDLESS),
    "train --resume": ("train", "--config", "tiny.yaml", "--out", "own", "--resume", *ENDLESS),
    "eval": ("eval", "run", "--decode", "100"),
    "check": ("check", "run"),
    "check --resume": ("check", "--config", "tiny.yaml", "--resume", "--steps", "5000"),
    "board": ("board", "sockeye", "--quick"),
    "translate": ("translate", "--run", "run"),
    "doctor": ("doctor",),
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS, STARTED, AT_ITS_END, PATIENCE = 2.0, 0.25, 0.5, 30.0
COLUMNS = ("signals", "in time", "too early", "too late", "lost", "70", "traceback", "other code")
COLUMNS += ("left behind", "unsaved")
FAULTS = COLUMNS[4:]


def signals(folder: Path, options: argparse.Namespace) -> bool:
    """Whether every signal ended its command, rightly."""
    for number in SIGNALS:  # a shell has background jobs ignore SIGINT, and what they start
        signal.signal(number, signal.default_int_handler)
    prepared(folder)
    rng = random.Random(options.seed)
    trials = []
    for number in range(options.number):
        name = list(ATTACKED)[number % len(ATTACKED)]
        moment, group = rng.uniform(0, SECONDS), rng.random() < 0.5
        trials.append((folder, number, name, rng.choice(SIGNALS), moment, group))
    tally: dict[str, Counter[str]] = {name: Counter() for name in ATTACKED}
    with ThreadPoolExecutor(options.at_once) as pool:
        answers = pool.map(lambda trial: attacked(*trial), trials)
        for trial, (found, words) in zip(trials, answers, strict=True):
            tally[trial[2]].update(found)
            if found & set(FAULTS):
                print(*trial[1:], sorted(found), words, flush=True)
    tally["all"] = sum(tally.values(), Counter())
    print(f"{'':16}", *(f"{column:>11}" for column in COLUMNS))
    for name, counts in tally.items():
        print(f"{name:16}", *(f"{counts[column]:11}" for column in COLUMNS))
    return not any(tally["all"][fault] for fault in FAULTS)


def attacked(
    folder: Path, number: int, name: str, sent: signal.Signals, moment: float, group: bool
) -> tuple[set[str], str]:
    """What a signal made of a command, and what it wrote on standard error."""
    place = folder / f"trial-{number}"
    temporary = place / "tmp"
    temporary.mkdir(parents=True)
    for shared in ("tiny.yaml", "run"):
        (place / shared).symlink_to(folder / shared)
    process = subprocess.Popen(
        [TOYTRANS, *ATTACKED[name]],
        cwd=place,
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
        _, words = process.communicate()
    late = ended or time.monotonic() - began < moment + AT_ITS_END
    early = moment < STARTED
    found = {"signals", verdict(process.returncode, words, sent, early=early, late=late)}
    if orphans(process.pid) or list(temporary.iterdir()) or list(place.glob(".toytrans*")):
        found.add("left behind")
    for run in (place / "runs/tiny", place / "own"):
        steps = [record["step"] for record in RunFolder.open(run).records]
        if steps and max(steps) > max(saved_steps(run), default=0):
            found.add("unsaved")
    return found, words


def verdict(code: int, words: str, sent: signal.Signals, *, early: bool, late: bool) -> str:
    """What an exit code and standard error tell. early: Python may not have started us when the
    signal came; late: the command had ended then, or had nothing left to do."""
    if code == 70:
        return "70"
    if code == 0:
        return "too late" if late else "lost"
    if code == -signal.SIGKILL:
        return "lost"
    ours = any(f"/{place}" in words for place in ("toytrans/cli/app", "torch/", "typer/", "rich/"))
    if early and not ours and (code == -sent or "KeyboardInterrupt" in words):
        return "too early"
    if "Traceback" in words or "Exception ignored" in words:
        return "traceback"
    return "in time" if code == 128 + sent else "other code"


def orphans(group: int) -> bool:
    """Whether processes of a group live on; what saves or cleans up has ten seconds for it."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
    return True


# Modules of the working directory ------------------------------------------------------------

COMMANDS = (
    "--version",
    "--help",
    "schema",
    "tasks copy",
    "faults",
    "train --config tiny.yaml",
    "train --config tiny.yaml --out run --resume --set train.max_steps=25",
    "eval run",
    "translate --run run 1",
    "check run",
    "check --config tiny.yaml",
    "check --config tiny.yaml --resume --kills 3 --steps 60",
    "doctor",
    "doctor run",
    "inspect-masks --run run",
    "trace",
    "attention --run run 1",
    "gradients",
    "board",
    "board sockeye copy --quick",
)


def poisoned(folder: Path, _: argparse.Namespace) -> bool:
    """Whether no command has imported anything from the folder where it ran."""
    prepared(folder)
    told = folder / "imported.txt"
    names = {*sys.stdlib_module_names, *packages_distributions(), "sitecustomize", "usercustomize"}
    for name in names:
        (folder / f"{name}.py").write_text(f"print({name!r}, file=open({str(told)!r}, 'a'))\n")
    print(f"{len(names)} modules\n{'seconds':>7} {'code':>4} {'imported':>8}  command")
    whole = True
    for words in COMMANDS:
        told.write_text("")
        began = time.monotonic()
        done = subprocess.run([TOYTRANS, *words.split()], cwd=folder, capture_output=True)
        imported = told.read_text().split()
        answered = done.returncode in (0, 1)  # `doctor` may find something
        whole &= answered and not imported
        seconds = time.monotonic() - began
        print(f"{seconds:7.1f} {done.returncode:4} {len(imported):8}  {words}", *imported[:5])
        if not answered:
            print(done.stderr.decode()[-500:])
        sys.stdout.flush()
    return whole


# Links and a user's own files ----------------------------------------------------------------

RUN_FILES = ("metrics.jsonl", "data.json", "environment.json", "checkpoints.json", "config.yaml")
ENTRIES = (*RUN_FILES, ".toytrans-lock", "checkpoints", "notes.txt", "result.json")
ENTRIES += (f".toytrans-{'0' * 16}.draft",)
ENTRIES += tuple(
    f"checkpoints/{name}"
    for name in ("step-10", "step-20", "step-30", ".step-30", ".old-step-10", "step-20-unreadable")
    + ("step-10/weights.safetensors", "step-20/checkpoint.json")
)
CHANGES = ("link", "link to a folder", "link to nothing", "file", "folder", "moved", "garbled")
FLAGS = ("", "--resume", "--resume --set train.max_steps=40", "--resume --set train.lr=1e30")
MINE = ("diary", "thesis/chapter.txt", "thesis/config.yaml", "step-30/photo.png")
MINE += ("step-10/checkpoint.json", "step-10/weights.safetensors")


def links(folder: Path, options: argparse.Namespace) -> bool:
    """Whether no training has harmed a file of the user's."""
    prepared(folder)
    tally: Counter[str] = Counter()
    for number in range(options.number):
        rng = random.Random(f"{options.seed} {number}")
        place = folder / "trial"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "run", place / "run", symlinks=True)
        shutil.copy(folder / "tiny.yaml", place)
        for name in MINE:
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(f"{name} is mine")
        changed = [change(place, rng) for _ in range(rng.randint(1, 3))]
        outside, inside = files_outside(place), files_inside(place)
        linked = (place / "run/checkpoints").is_symlink()  # where training may write, too
        os.chdir(place)
        for flags in rng.sample(FLAGS, 2):
            code, words = call("train", "--config", "tiny.yaml", "--out", "run", *flags.split())
            after = files_outside(place)
            new = [n for n in after.keys() - outside.keys() if not (linked and "step-" in n)]
            lost = [n for n, raw in outside.items() if after.get(n) != raw]
            verdict = "harmed" if new or lost or files_inside(place) < inside else f"code {code}"
            tally[verdict] += 1
            if verdict not in ("code 0", "code 1", "code 2"):
                print(number, changed, flags, verdict, lost, new, words[-500:], flush=True)
    print(f"{sum(tally.values())} trainings:", dict(sorted(tally.items())))
    return not tally.keys() - {"code 0", "code 1", "code 2"}


def change(place: Path, rng: random.Random) -> str:
    """Make something else of an entry of the run."""
    path, what = place / "run" / rng.choice(ENTRIES), rng.choice(CHANGES)
    there = os.path.lexists(path) and not path.is_symlink()
    if not path.parent.is_dir() or (what in ("moved", "garbled") and not there):
        return "nothing"
    up = os.path.relpath(place.resolve(), path.parent.resolve())
    if what == "garbled":
        if path.is_file() and (raw := bytearray(path.read_bytes())):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            path.write_bytes(raw)
    elif what == "moved":
        name = f"moved-{path.name}-{rng.random()}"
        path.rename(place / name)
        path.symlink_to(f"{up}/{name}")
    else:
        shutil.rmtree(path) if path.is_dir() and there else path.unlink(missing_ok=True)
        if what == "file":
            path.write_text("mine")
        elif what == "folder":
            path.mkdir()
            (path / "mine.txt").write_text("mine")
        else:
            folder = rng.choice(("", "/thesis", "/step-10"))
            ends = {"link": "/diary", "link to a folder": folder, "link to nothing": "/nothing"}
            path.symlink_to(up + ends[what])
    return f"{path.relative_to(place)}: {what}"


def files_outside(place: Path) -> dict[str, bytes]:
    """Every file beside the run."""
    paths = (p for p in place.rglob("*") if p.is_file() and not p.is_symlink())
    names = {str(path.relative_to(place)): path for path in paths}
    return {n: path.read_bytes() for n, path in names.items() if not n.startswith("run/")}


def files_inside(place: Path) -> int:
    """How many files in the run are the user's: those in folders that he put there."""
    return sum(path.read_bytes() == b"mine" for path in (place / "run").rglob("mine.txt"))


def call(*words: str) -> tuple[int, str]:
    """Exit code and standard error of a command in this process."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    error = io.StringIO()
    sys.argv = ["toytrans", *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
            toytrans()
    except SystemExit as stop:
        return int(str(stop.code)), error.getvalue()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    raise AssertionError("a command ends by SystemExit")


ATTACKS: dict[str, Callable[[Path, argparse.Namespace], bool]] = {
    "signals": signals,
    "poisoned": poisoned,
    "links": links,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--number", type=int, default=500, help="of signals or folders")
    parser.add_argument("--at-once", type=int, default=2, help="commands at once")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toytrans-attack-") as name:
        whole = ATTACKS[options.attack](Path(name), options)
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()
