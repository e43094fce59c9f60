"""The application: warnings, completion, errors of silent processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command

MODEL = """
import warnings
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(20, 20)

    def forward(self, src, tgt):
        with warnings.catch_warnings():
            pass  # makes Python forget which warnings it has shown
        warnings.warn("an odd mask")
        return self.table(tgt)

def build():
    return {"model": Model(), "pad_id": 0, "vocabulary_size": 20}
"""


def test_a_warning_is_shown_once(here: Path):
    Path("m.py").write_text(MODEL)
    words = ["check", "--model", "m.py:build", "--only", "future"]
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", "toytrans", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": ""},
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("UserWarning: an odd mask") == 1, done.stderr


@pytest.mark.parametrize(
    ("typed", "expected"), [("toytrans tra", ["train", "trace", "translate"]), ("toytrans x", [])]
)
def test_a_shell_completes_commands(typed: str, expected: list[str]):
    environment = {
        "_TOYTRANS_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'toytrans'; from toytrans.cli import main; main()",
        ],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert sorted(done.stdout.split()) == sorted(expected), done.stderr


def test_completion_is_offered(command: Command):
    assert "--install-completion" in command("--help").out


@pytest.mark.parametrize(
    "name",
    [
        *("inspect-masks", "attention", "check", "doctor", "translate"),
        *("eval", "report", "export"),
    ],
)
def test_every_command_that_reads_a_run_takes_trust_code(name: str, command: Command):
    assert "--trust-code" in command(name, "--help").out


@pytest.mark.parametrize("name", ["layer", "leaks", "scale"])
def test_so_do_those_of_trace(name: str, command: Command):
    assert "--trust-code" in command("trace", name, "--help").out
