"""RUN as an argument and as --run, in every command that looks inside a run."""

from pathlib import Path

import pytest
from conftest import SMALL_YAML, Command

CONFIG = SMALL_YAML  # of the fixture `here`


@pytest.fixture
def run(here: Path, command: Command) -> str:
    assert command("train", "--config", "c.yaml").code == 0
    return "runs/c"


COMMANDS = ["inspect-masks", "trace", "trace layer", "trace leaks", "trace decoding", "doctor"]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_run_is_an_argument_or_an_option(run: str, command: Command, words: str) -> None:
    argument = command(*words.split(), run)
    assert argument.out and argument.code == (1 if words == "doctor" else 0), "it learned nothing"
    assert command(*words.split(), "--run", run) == argument
    twice = command(*words.split(), run, "--run", run)
    assert (twice.code, twice.err.count("\n")) == (2, 1) and "give the run once" in twice.err


def test_a_run_may_come_before_the_sequences(run: str, command: Command) -> None:
    option = command("attention", "1 2", "3", "--run", run)
    assert option.code == 0 and "1 2  ->" in option.out
    assert command("attention", run, "1 2", "3") == option
    assert command("attention", run).out == command("attention", "--run", run).out
    twice = command("attention", run, "1 2", "--run", run)
    assert (twice.code, twice.err.count("\n")) == (2, 1) and "give the run once" in twice.err
