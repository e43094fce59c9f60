"""Whose code runs: what the command line or a config of the user's names, and what they trust, each
time anew."""

import hashlib
import os
import sys
from pathlib import Path

import pytest
import torch
from conftest import Command, tensors_of, tiny_yaml

from toytrans.errors import UserError
from toytrans.references import trust
from toytrans.training.checkpoint import read_trained_with, saved_steps
from toytrans.training.run import Run
from toytrans.user_code import load

CONFIG = tiny_yaml(data={"task": "own.py:f"}, train={"max_steps": 2})

MARK = "from pathlib import Path\nPath('ran').touch()\n"
"""Code that leaves a trace when it runs."""

TASK = f"{MARK}def f(s): return s\n"


@pytest.fixture(autouse=True)
def own(here: Path, command: Command) -> Path:
    """A run with own code."""
    (here / "own.py").write_text(TASK)
    done = command("train", "c.yaml", "--out", "r")
    assert done.code == 0, done.err
    assert (here / "ran").exists(), "what a config of the user's names runs"
    (here / "ran").unlink()
    return here / "r"


def edit_config(run: Path, before: str, after: str) -> None:
    for name in ("config.yaml", "resolved.yaml"):
        text = (run / name).read_text()
        assert before in text
        (run / name).write_text(text.replace(before, after))


def test_code_that_a_run_names_needs_trust_each_time(command: Command, refused):
    remedy = "own.py:f: code that a run names runs with --trust-code alone (trust_code=True in"
    assert remedy in refused("eval", "r")
    assert remedy in refused("inspect-masks", "r")
    assert command("translate", "r", "1 2").code == 0, "it needs no task"
    assert "data not read own.py:f: code that a run" in " ".join(command("doctor", "r").out.split())
    assert not Path("ran").exists()
    assert command("eval", "r", "--trust-code").code == 0
    assert Path("ran").exists()
    assert remedy in refused("eval", "r"), "nothing is kept"


def test_a_module_is_no_place_of_code(here: Path, own: Path, refused):
    (here / "lib").mkdir()
    (here / "lib" / "__init__.py").write_text(MARK)
    (here / "lib" / "t.py").write_text("def f(s): return s\n")
    remedy = "'lib.t:f' names a module, not a file; name a file whose one line is `from lib.t"
    edit_config(own, "../own.py:f", "lib.t:f")
    for words in (
        ("train", "c.yaml", "--set", "data.task=lib.t:f"),
        ("explain", "lib.t:f"),
        ("check", "--model", "lib.t:f"),
        ("eval", "r", "--trust-code"),
    ):
        assert remedy in refused(*words)
    assert not Path("ran").exists()


def test_what_was_hashed_is_what_ran(command: Command):
    """A file that changes while it is run: the run has the bytes that ran."""
    later = f"{TASK}Path('changed').touch()\n"
    again = f"from pathlib import Path\nPath(__file__).write_text({later!r})\n{TASK}"
    Path("own.py").write_text(again)
    assert command("train", "c.yaml", "--out", "s").code == 0
    assert Path("own.py").read_text() == later
    known = read_trained_with(Path("s"), saved_steps(Path("s"))[-1])
    assert known is not None and known.code == {
        "data.task": hashlib.sha256(again.encode()).hexdigest()
    }
    assert not Path("changed").exists()


def test_a_resumed_run_cannot_bring_code_along(own: Path, command: Command, refused):
    Path("other.py").write_text(TASK)
    resume = ("train", "c.yaml", "--out", "r", "--resume", "--set", "train.max_steps=3")
    assert command(*resume).code == 0, "the config names its code"
    os.remove("ran")
    Path("own.py").write_text("def f(s): return s\n")
    edit_config(own, "own.py:f", "other.py:g")
    assert "cannot resume with other settings" in refused(*resume)
    assert not Path("ran").exists()


def test_a_config_finds_the_code_beside_it_and_an_option_that_of_the_working_directory(
    here: Path, command: Command
):
    (here / "lab").mkdir()
    (here / "lab/own.py").write_text("def f(s): return s[::-1]\n")
    (here / "lab/c.yaml").write_text(CONFIG)
    for run, folder, more in (
        ("beside", here / "lab", ()),
        ("given", here, ("--set", "data.task=own.py:f")),
    ):
        assert command("train", "lab/c.yaml", "--out", run, *more).code == 0
        assert Run.open(here / run).settings.data.task == f"{folder}/own.py:f"


def test_each_file_has_helpers_of_its_own(here: Path):
    """Two files in two folders import modules of one name, one after the other."""
    references = []
    for folder, answer in (("one", "s"), ("two", "s[::-1]")):
        (here / folder).mkdir()
        (here / folder / "helpers.py").write_text(f"def answer(s): return {answer}\n")
        (here / folder / "own.py").write_text(
            "import helpers\ndef f(s): return helpers.answer(s)\n"
        )
        references.append(f"{here}/{folder}/own.py:f")
    trust(references)
    before = set(sys.modules)
    first, second = map(load, references)
    assert first([1, 2]) == [1, 2] and second([1, 2]) == [2, 1]
    assert "helpers" not in sys.modules, "what a program imports by that name is its own"
    assert len(set(sys.modules) - before) == 2


def test_a_failed_import_leaves_nothing_behind(here: Path):
    (here / "helpers.py").write_text("")
    (here / "broken.py").write_text("import helpers\nraise ValueError('no')\n")
    reference = f"{here}/broken.py:f"
    trust([reference])
    before, paths = set(sys.modules), list(sys.path)
    for _ in range(2):
        with pytest.raises(UserError, match=r"broken.py:2: fails on import: ValueError: no"):
            load(reference)
    assert set(sys.modules) == before and sys.path == paths


def test_what_a_file_sets_for_itself_changes_no_training(here: Path, command: Command):
    """The default dtype would train in fp64 what is saved as fp32; without gradients nothing is
    learned."""
    sets = "import torch\ntorch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)\n"
    (here / "sets.py").write_text(f"{sets}def f(s): return s\n")
    for name in ("own", "sets"):
        train = ("train", "c.yaml", "--set", f"data.task={name}.py:f", "--out", f"run-{name}")
        done = command(*train)
        assert done.code == 0, done.err
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
    assert tensors_of("run-sets") == tensors_of("run-own") != {}


STOP = "class Stop(BaseException): pass\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"{STOP}def f(s): raise Stop('now')", "Stop: now"),
        (f"{STOP}raise Stop('now')", "fails on import: Stop: now"),
        ("def f(s): return s\nf.separators = 5", "separators: 5; it may be a list"),
        ("def f(s): return s\nf.symbols = ['a', '\\ud800']", "symbols: '\\ud800' is no text"),
    ],
)
def test_what_a_task_does_wrong_is_one_line(here: Path, refused, code: str, words: str):
    (here / "wrong.py").write_text(code + "\n")
    said = refused("train", "c.yaml", "--set", "data.task=wrong.py:f", "--set", "data.symbols=null")
    assert words in said and "wrong.py" in said
    assert not Path("runs").exists()


def test_a_new_config_is_written_of_code_that_the_command_line_names(command: Command):
    done = command("new", "own.py:f")
    assert done.code == 0 and "own.py:f" in done.out, done.err
    assert Path("ran").exists()


def test_a_resumed_run_goes_on_with_code_that_the_command_line_names(here: Path, command: Command):
    (here / "moved").mkdir()
    (here / "own.py").rename(here / "moved" / "own.py")
    again = ("train", "--resume", "--out", "r", "--set", "train.max_steps=3")
    assert command(*again, "--set", "data.task=moved/own.py:f").code == 0
    assert Path("ran").exists()
    Path("ran").unlink()
    refused = command(*again, "--set", "train.max_steps=4")
    assert refused.code == 2 and "--trust-code" in refused.err and not Path("ran").exists()
    assert command(*again, "--set", "train.max_steps=4", "--trust-code").code == 0
    assert Path("ran").exists()
