"""Where a newcomer stumbles: the command answers with the remedy, and takes nothing unasked."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from conftest import Command, tiny_yaml

from toytrans.config.names import FaultName
from toytrans.config.sealed import seal

Refused = Callable[..., str]
SEALED = seal("no_causal", b"12345678")

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def run(command: Command) -> str:
    assert command("train", "c.yaml").code == 0
    return "runs/c"


# Sequences -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["5 7 9, 2 4", "5,7,9"])
def test_commas_between_symbols_are_refused_with_the_remedy(refused: Refused, source: str):
    for name in ("inspect-masks", "trace"):
        assert "spaces between symbols" in refused(name, "--src", source, "--tgt", "5 7")
    walk = refused("inspect-masks", "--steps", "--src", source, "--tgt", "5 7")
    assert "spaces between symbols" in walk


def test_a_comma_that_is_a_symbol_stays_one(command: Command):
    assert command("inspect-masks", "--src", "5 , 7", "--tgt", "5").code == 0


def test_commas_are_explained_where_a_run_knows_its_symbols(run: str, command: Command):
    answer = command("translate", run, "1,2")
    assert answer.code == 2 and "spaces between symbols" in answer.err


def test_a_sequence_without_its_option_is_answered_with_the_option(refused: Refused):
    for name in ("inspect-masks", "trace"):
        assert '--src "5 7 9" --src "2 4"' in refused(name, "--src", "1 2", "2 4", "--tgt", "1")


def test_a_path_that_is_not_there_is_no_symbol(run: str, refused: Refused):
    for name in ("translate", "attention"):
        assert "runs/typo: no such run" in refused(name, "runs/typo", "1 2")


def test_a_symbol_with_a_slash_can_be_translated(command: Command):
    Path("pairs.tsv").write_text("a/b c\tc a/b\nc\tc\n" * 9)
    Path("f.yaml").write_text(
        "data: {files: {train: pairs.tsv, valid: pairs.tsv}, batch_tokens: 64}\n"
        "model: {d_model: 8, n_heads: 2, n_encoder_layers: 1, n_decoder_layers: 1, d_ff: 8}\n"
        "train: {max_steps: 1, precision: fp32}\n"
    )
    assert command("train", "f.yaml").code == 0
    assert command("translate", "runs/f", "a/b").code == 0
    assert command("translate", "runs/f", "a/b").code == 0


# The newest run ------------------------------------------------------------------------------


LOOKING = (
    ("attention", "1 2"),
    ("translate", "1 2"),
    ("eval",),
    ("check", "--only", "pads"),
    ("inspect-masks",),
    ("trace",),
    ("demo", "leaks"),
    ("report",),
)


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_the_newest_run_is_taken_by_name_and_is_no_sealed_exercise(
    run: str, command: Command, arguments: tuple[str, ...]
):
    sealed = ("--set", f"fault={SEALED}", "--out", "runs/exercise")
    assert command("train", "c.yaml", *sealed).code == 0
    later = os.stat(run).st_mtime + 60
    os.utime("runs/exercise/config.yaml", (later, later))
    answer = command(*arguments)
    assert answer.code in (0, 1), answer.err
    assert "run: runs/c, the newest\n" in answer.err
    assert "exercise" not in answer.out + answer.err


# Configs -------------------------------------------------------------------------------------


def test_a_shipped_config_is_found_by_name_where_no_file_has_it(command: Command):
    few = ("--set", "train.max_steps=2", "--set", "data.valid_examples=9")
    few = (*few, "--set", "data.test_examples=9", "--out", "runs/t")
    assert command("train", "textbook", *few).code == 0
    Path("textbook").write_text("data: {task: nonsense}\n")
    assert "nonsense" in command("train", "textbook", *few).err


def test_a_config_that_is_not_there_is_answered_with_those_that_are(refused: Refused):
    assert "textbook" in refused("train", "textbok")


def test_no_answer_of_an_installed_package_names_what_only_a_checkout_has(command: Command):
    answers = [command("train"), command("sweep"), command("train", "no.yaml")]
    answers += [command("explain", "faults")]
    answers += [command("explain", name) for name in get_args(FaultName)]
    text = "".join(out + err for _, out, err in answers)
    assert "textbook" in text
    assert "configs/" not in text and "scripts/" not in text


# What commands print -------------------------------------------------------------------------


def test_a_trace_without_a_cap_shows_no_capped_scores(command: Command):
    for cap in (None, 5.0):
        Path("c.yaml").write_text(tiny_yaml(model={"positions": "sinusoidal", "score_cap": cap}))
        shown = command("trace", "--config", "c.yaml", "--panel", "all").out
        assert ("7 capped" in shown) == ("capped" in shown) == (cap is not None)
        assert "Before the mask." in shown


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


def test_what_a_missing_library_asks_for_is_on_an_index(
    monkeypatch: pytest.MonkeyPatch, refused: Refused, run: str
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused("attention", run, "--plot", "a.png")
    assert "python -m pip install matplotlib" in message and "toytrans[" not in message


def test_a_fault_that_anchors_hide_is_said_to_be_hidden_before_training(command: Command):
    broken = ("train", "c.yaml", "--break", "wrong_start")
    hidden = command(*broken, "--set", "model.positions=anchored").err
    assert "told the alignment hide wrong_start: " in hidden.partition("runs/c")[0]
    seen = command(*broken, "--set", "model.positions=sinusoidal", "--out", "runs/seen")
    assert seen.code == 0 and "hide" not in seen.err
