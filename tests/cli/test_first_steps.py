"""Where a newcomer stumbles: the command answers with the remedy, and takes nothing unasked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command, tiny_yaml
from forked import COMMAND

from toytrans.config.faults import hide

pytestmark = pytest.mark.usefixtures("here")
HIDDEN = hide("no_causal")


def test_a_shell_completes_commands():
    typed = {"_TOYTRANS_COMPLETE": "complete_bash", "COMP_WORDS": "toytrans tra", "COMP_CWORD": "1"}
    code = f"import sys; sys.argv[0] = 'toytrans'; {COMMAND}"
    words = (sys.executable, "-c", code)
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | typed)
    assert sorted(done.stdout.split()) == ["trace", "train", "translate"], done.stderr


# Sequences -----------------------------------------------------------------------------------


def test_a_run_may_come_before_the_sequences(run: Path, command: Command, refused):
    newest = command("trace", "1 2", "3")
    assert newest.code == 0 and "pair 1 of 2" in newest.out and "runs/c, the newest" in newest.err
    assert command("trace", "runs/c", "1 2", "3").out == newest.out
    for name in ("translate", "trace"):
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


def test_the_newest_run_is_taken_by_name_and_is_no_exercise(run: Path, command: Command):
    exercise = ("--set", f"fault={HIDDEN}", "--out", "runs/exercise")
    assert command("train", "c.yaml", *exercise).code == 0
    later = os.stat(run).st_mtime + 60
    os.utime("runs/exercise/resolved.yaml", (later, later))
    for line in ("translate 1", "check --only pads --quick", "trace"):
        answer = command(*line.split())
        assert answer.code in (0, 1), answer.err
        assert "run: runs/c, the newest\n" in answer.err
        assert "exercise" not in answer.out + answer.err


def test_what_a_missing_library_asks_for_is_on_an_index(monkeypatch, refused, run: Path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("trace", "eval"):
        message = refused(name, "runs/c", "--plot", "a.png")
        assert "python -m pip install matplotlib" in message and "toytrans[" not in message
