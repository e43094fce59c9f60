"""Where a newcomer stumbles: the command answers with the remedy, and takes nothing unasked."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer
from conftest import Command, tiny_yaml

from toytrans.cli.app import app
from toytrans.config.names import FaultName, Metric
from toytrans.config.sealed import seal

pytestmark = pytest.mark.usefixtures("here")
COMMANDS = typer.main.get_command(app).commands
SEALED = seal("no_causal", b"12345678")


@pytest.mark.parametrize(
    ("typed", "expected"), [("toytrans tra", ["train", "trace", "translate"]), ("toytrans x", [])]
)
def test_a_shell_completes_commands(typed: str, expected: list[str]):
    environment = {"_TOYTRANS_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'toytrans'; from toytrans.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment
    )
    assert sorted(done.stdout.split()) == sorted(expected), done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_eighty_columns_as_it_is_written(name: str, command: Command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = {line.strip() for line in command(name, "--help").out.splitlines()}
    _, *more = (COMMANDS[name].help or "").split("\n\n")
    assert shown.issuperset(line for text in more for line in text.splitlines())


def test_help_names_each_metric_whole(command: Command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("eval", "sweep"):
        assert set(get_args(Metric)) <= set(re.findall(r"\w+", command(name, "--help").out))


# Sequences -----------------------------------------------------------------------------------


def test_a_run_may_come_before_the_sequences(run: Path, command: Command, refused):
    newest = command("attention", "1 2", "3")
    assert newest.code == 0 and "1 2  ->" in newest.out and "runs/c, the newest" in newest.err
    assert command("attention", "runs/c", "1 2", "3").out == newest.out
    for name in ("translate", "attention"):
        assert "runs/typo: no such run" in refused(name, "runs/typo", "1 2"), "it is no symbol"


def test_commas_are_explained_where_symbols_are_known(run: Path, command: Command, refused):
    assert "spaces between symbols" in refused("translate", "runs/c", "1,2")
    assert command("inspect-masks", "--src", "5 , 7", "--tgt", "5").code == 0, "it is a symbol"


def test_a_symbol_with_a_slash_can_be_translated(command: Command):
    Path("pairs.tsv").write_text("a/b c\tc a/b\nc\tc\n" * 9)
    files = {"train": "pairs.tsv", "valid": "pairs.tsv"}
    Path("f.yaml").write_text(tiny_yaml(data={"files": files}, train={"max_steps": 1}))
    assert command("train", "f.yaml").code == 0
    assert command("translate", "runs/f", "a/b").code == 0


# Runs and configs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("attention 1", "translate 1", "eval", "check --only pads"),
        *("inspect-masks", "trace", "demo decoding", "report"),
    ],
)
def test_the_newest_run_is_taken_by_name_and_is_no_sealed_exercise(
    run: Path, command: Command, line: str
):
    sealed = ("--set", f"fault={SEALED}", "--out", "runs/exercise")
    assert command("train", "c.yaml", *sealed).code == 0
    later = os.stat(run).st_mtime + 60
    os.utime("runs/exercise/config.yaml", (later, later))
    answer = command(*line.split())
    assert answer.code in (0, 1), answer.err
    assert "run: runs/c, the newest\n" in answer.err
    assert "exercise" not in answer.out + answer.err


def test_no_answer_of_an_installed_package_names_what_only_a_checkout_has(command: Command):
    answers = [command("train"), command("sweep"), command("train", "no.yaml")]
    answers += [command("explain", name) for name in ("faults", *get_args(FaultName))]
    text = "".join(out + err for _, out, err in answers)
    assert "textbook" in text
    assert "configs/" not in text and "scripts/" not in text


def test_what_a_missing_library_asks_for_is_on_an_index(monkeypatch, refused, run: Path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("attention", "eval"):
        message = refused(name, "runs/c", "--plot", "a.png")
        assert "python -m pip install matplotlib" in message and "toytrans[" not in message


# Faults --------------------------------------------------------------------------------------


def test_the_doctor_diagnoses_a_planted_fault_before_it_reads_the_config(command: Command):
    broken = ("--break", "labels_not_shifted", "--set", "train.max_steps=120")
    assert command("train", "c.yaml", *broken, "--set", "train.lr=0.01").code == 0
    found = json.loads(command("doctor", "runs/c", "--json").out)["symptoms"]
    names = [symptom["name"] for symptom in found]
    assert len(names) > 1 and names[-1] == "fault"
    assert "; yet" not in command("doctor", "runs/c").out


@pytest.mark.parametrize("fault", ["no_causal", "triangle_off_by_one"])
def test_the_card_of_a_leak_names_every_check_that_fails(command: Command, fault: str):
    failing = command("check", "--config", "c.yaml", "--break", fault, "--json")
    checks = json.loads(failing.out)["checks"]
    failed = [each["check"] for each in checks if each["verdict"] == "FAIL"]
    shown = " ".join(command("explain", fault).out.split())
    assert failed and f"found by {', '.join(failed)} met in" in shown
