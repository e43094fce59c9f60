"""RUN as an argument, in every command that looks inside a run."""

from conftest import SMALL_YAML, Command

CONFIG = SMALL_YAML  # of the fixture `here`


def test_a_run_may_come_before_the_sequences(here, command: Command) -> None:
    assert command("train", "--config", "c.yaml").code == 0
    newest = command("attention", "1 2", "3")
    assert newest.code == 0 and "1 2  ->" in newest.out and "runs/c, the newest" in newest.err
    assert command("attention", "runs/c", "1 2", "3").out == newest.out
    gone = command("translate", "runs/d", "1 2")
    assert gone.code == 2 and "runs/d: no such run directory" in gone.err
