"""Files that commands write for the user: whole or not at all, and nothing else is lost."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from forked import Forked

TAKEN = "the user's own"
pytestmark = pytest.mark.usefixtures("in_time")


@pytest.fixture(autouse=True)
def one(run: Path, here: Path) -> None:
    """A run in the working directory; and bare, which has no checkpoint, so that its page is made
    at once."""
    shutil.copytree(run, here / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(run, here / "one")
    shutil.rmtree(here / "runs")


WRITERS = {
    "report": ("report", "bare", "--out"),
    "eval --csv": ("eval", "one", "--csv"),
    "new": ("new", "--out"),
    "exercise new": ("exercise", "new", "--out"),
    "export": ("export", "one", "--format", "safetensors", "--out"),
    "trace": ("trace", "one", "1 2", "--plot"),
}
"""Commands by name; the file comes last. Some take the ending of a picture only."""

NAMES = {"trace": "made.svg"}


@pytest.mark.parametrize("what", WRITERS)
def test_names_that_are_taken_or_too_long_are_refused(what: str, refused):
    name = NAMES.get(what, "made")
    end = Path(name).suffix
    Path("diary").write_text(TAKEN)
    Path(name).symlink_to("diary")
    assert f"{name}: exists already" in refused(*WRITERS[what], name)
    Path(name).unlink()
    Path(name).symlink_to("nothing")
    refused(*WRITERS[what], name)
    assert os.readlink(name) == "nothing" and not Path("nothing").exists()
    Path(name).unlink()
    os.mkfifo(name)
    refused(*WRITERS[what], name)
    assert Path(name).is_fifo()
    assert Path("diary").read_text() == TAKEN
    assert "File name too long" in refused(*WRITERS[what], "n" * (256 - len(end)) + end)
    if what != "exercise new":
        assert "no/such" in refused(*WRITERS[what], f"no/such/made{end}")


def test_a_file_that_comes_meanwhile_is_kept(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program writes the name before the draft is renamed."""
    link = os.link

    def slowly(*names: Any) -> None:
        Path("new.yaml").write_text(TAKEN)
        link(*names)

    monkeypatch.setattr(os, "link", slowly)
    assert "exists already" in refused("new", "--out", "new.yaml")
    assert Path("new.yaml").read_text() == TAKEN


def test_a_full_disk_leaves_no_half_file(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    before = os.listdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        said = refused("new", "--out", "new.yaml")
    assert "new.yaml: the file cannot be written (No space left on device)" in said
    assert os.listdir() == before


def test_a_disk_without_hard_links_takes_files(
    command: Command, refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert command("new", "--out", "new.yaml").code == 0
    assert "exists already" in refused("new", "--out", "new.yaml")


def test_reports_without_a_name_take_free_ones(command: Command) -> None:
    Path("report.html").write_text(TAKEN)
    assert command("report", "bare").out == "wrote report-2.html\n"
    assert "</html>" in Path("report-2.html").read_text()
    assert Path("report.html").read_text() == TAKEN


KILL = """
import os, signal, sys
from toytrans.cli.app import main
write = os.fsync
def killed(descriptor):
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = killed
main()
"""


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("new", "--out", "new.yaml"), "."),
        (("train", "--out", "one", "--resume", "--set", "train.max_steps=8"), "one"),
    ],
)
def test_a_kill_in_the_middle_leaves_a_draft_that_is_in_nobodys_way(
    command: Command, words: tuple[str, ...], left: str
):
    assert Forked(KILL, *words).ended().code == -signal.SIGKILL
    assert not Path("new.yaml").exists()
    assert [name.endswith(".draft") for name in os.listdir(left)].count(True) == 1
    assert command(*words).code == 0 and command("eval", "one").code == 0
