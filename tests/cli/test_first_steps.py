"""Where a newcomer stumbles: the command answers with the remedy, and takes nothing unasked."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command

from toytrans.sealed import seal

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


@pytest.mark.parametrize("first", [(), ("runs/c",)], ids=["without a run", "after a run"])
def test_a_sequence_without_its_option_is_answered_with_the_option(
    run: str, command: Command, first: tuple[str, ...]
):
    for name in ("inspect-masks", "trace"):
        answer = command(name, *first, "--src", "1 2", "2 4", "--tgt", "1")
        assert answer.code == 2 and '--src "5 7 9" --src "2 4"' in answer.err
        assert answer.err.count("\n") == 1


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
    assert command("translate", "--run", "runs/f", "a/b").code == 0
    assert command("translate", "runs/f", "a/b").code == 0


# The newest run ------------------------------------------------------------------------------


LOOKING = (
    ("attention", "1 2"),
    ("translate", "1 2"),
    ("eval",),
    ("check", "--only", "a"),
    ("inspect-masks",),
    ("trace",),
    ("trace", "leaks"),
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


def test_a_folder_of_sealed_exercises_has_no_newest_run(command: Command, refused: Refused):
    assert command("train", "c.yaml", "--set", f"fault={SEALED}").code == 0
    assert "name the run directory" in refused("attention", "1 2")
    assert command("attention", "runs/c", "1 2").code == 0
