"""Attack the commands, and count what they did not withstand.

    python scripts/attack.py signals [--number 500] [--seed 0]
    python scripts/attack.py poisoned

signals     SIGINT, SIGTERM and SIGHUP at random moments of a command's first two seconds, to the
            process alone or to its whole group, as a terminal sends them. `in time` is exit code
            128 + n without a traceback; `too early` came before Python had started us, `too late`
            when the command was over. The rest are faults: `lost` went on to its end or for 30 s,
            `left behind` are processes or temporary files, `unsaved` are steps that were not saved.
poisoned    Every command from a folder full of modules, each of which tells that it was imported.

The exit code is 1 where something fell.
"""

import argparse
import os
import random
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

from toytrans.training.checkpoint import saved_steps
from toytrans.training.run import read_records

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
        steps = [record["step"] for record in read_records(run)]
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


ATTACKS: dict[str, Callable[[Path, argparse.Namespace], bool]] = {
    "signals": signals,
    "poisoned": poisoned,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--number", type=int, default=500, help="of signals")
    parser.add_argument("--at-once", type=int, default=2, help="commands at once")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toytrans-attack-") as name:
        whole = ATTACKS[options.attack](Path(name), options)
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()
