"""The application: completion in a shell."""

import os
import subprocess
import sys

import pytest


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
