"""The application: help, completion, and what every command has."""

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT, Command

import toytrans


def one_line(text: str) -> str:
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def test_the_help_has_four_groups_and_one_sentence_everywhere(command: Command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = command("--help").out
    assert re.findall(r"^╭─ (\w+)", shown, re.MULTILINE) == [
        *("Options", "Train", "Look", "Prove", "Learn")
    ]
    assert max(map(len, shown.splitlines())) <= 80
    sentence = one_line(toytrans.__doc__.partition("\n\n")[0])
    assert sentence in one_line(shown)
    for file in ("README.md", "pyproject.toml", "mkdocs.yml"):
        assert sentence in (ROOT / file).read_text(), file


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
