"""What means the same in every command: a config, a checkpoint, a wrong line, the newest run."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import Command, tiny_yaml
from forked import COMMAND, Forked

import toytrans
from toytrans.cli.app import COMMANDS

OF_A_RUN = {
    "eval": ("eval", "runs/c"),
    "translate": ("translate", "runs/c", "3 4"),
    "inspect-masks": ("inspect-masks", "runs/c", "--src", "3 4"),
    "trace": ("trace", "runs/c", "3 4", "--json"),
    "check": ("check", "runs/c", "--only", "pads", "--quick"),
    "export": ("export", "runs/c", "--format", "safetensors"),
    "demo": ("demo", "decoding", "runs/c"),
    "live": ("live", "runs/c"),
}
"""Commands that read a checkpoint."""


@pytest.mark.parametrize("words", OF_A_RUN.values(), ids=list(OF_A_RUN))
def test_a_checkpoint_means_the_same_wherever_it_stands(run, command: Command, refused, words):
    missing = "runs/c: no checkpoint 999; there are best, last, average:N and the steps 4, 6"
    assert missing in refused(*words, "--checkpoint", "999")
    assert "no 3 checkpoints to average" in refused(*words, "--checkpoint", "average:3")
    found = command(*words, "--checkpoint", "last")
    assert found.code == 0, found.err
    if words[0] not in ("export", "live"):  # which have made a file
        assert command(*words, "--checkpoint", "6").out == found.out


@pytest.mark.parametrize(
    "words",
    [
        ("inspect-masks", "--json"),
        ("check", "--only", "pads", "--quick"),
        ("demo", "decoding"),
        ("explain",),
    ],
    ids=lambda words: words[0],
)
def test_a_config_is_an_argument_or_an_option(here: Path, command: Command, refused, words):
    option, argument = command(*words, "--config", "c.yaml"), command(*words, "c.yaml")
    assert option.out == argument.out and option.code == argument.code == 0
    assert command(*words, "textbook")[0] == 0, "a shipped config by its name"
    assert "give" in refused(*words, "c.yaml", "--config", "c.yaml")


def test_an_average_is_named_in_the_json_of_what_looks_into_it(run, command: Command):
    words = ("trace", "runs/c", "3 4", "--json", "--checkpoint")
    mean, last = (json.loads(command(*words, which).out) for which in ("average:2", "6"))
    assert mean["checkpoint"] == "mean of steps 4 and 6" and last["checkpoint"] == "step 6"
    assert mean["step"] == last["step"] == 6 and mean["run"] == "runs/c"
    weights = [next(t for t in of["tensors"] if t["name"] == "weights") for of in (mean, last)]
    assert weights[0]["values"] != weights[1]["values"]
    maps = toytrans.attention(toytrans.load("runs/c", "average:2"), "3 4").to_dict()
    assert maps["checkpoint"] == mean["checkpoint"] and maps["step"] == 6


def test_a_folder_of_a_configs_name_is_a_run(run, command: Command):
    run.rename("textbook")
    assert "weights of textbook, step 6" in command("inspect-masks", "textbook").out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("eval --lenghts 3", "no such option: --lenghts (Possible options: --length"),
        ("eval --examples 0", "'--examples'"),
        ("train a.yaml b.yaml", "b.yaml"),
        ("tarin", "'tarin'"),
        ("export runs/c", "'--format'"),
        ("exercise", "missing command"),
        ("exercise answer", "'FAULT'"),
        ("trace --part middle", "'--part'"),
        ("eval --\u202eevil", "\\u202eevil"),
    ],
)
def test_a_line_that_cannot_be_parsed_is_answered_in_one(command: Command, line, words):
    """The last: a name that turns a terminal's text around."""
    answer = command(*line.split())
    name = " ".join(line.split()[: 2 if line.startswith("exercise a") else 1])
    told = f"see toytrans {'' if name == 'tarin' else f'{name} '}--help\n"
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith("toytrans: ") and words in answer.err
    assert answer.err.endswith(told), answer.err


def test_without_a_command_all_are_listed(command: Command):
    alone, asked = command(), command("--help")
    assert alone == asked and alone.code == 0
    assert all(f" {name} " in alone.out for name in COMMANDS)


def test_the_newest_run_may_be_that_of_a_sweep(run: Path, command: Command):
    trial = Path("runs/sweeps/few/one")
    shutil.copytree(run, trial)
    later = os.stat(run / "resolved.yaml").st_mtime + 60
    os.utime(trial / "resolved.yaml", (later, later))
    for line in (
        "translate 1",
        "eval --json",
        "doctor",
        "inspect-masks",
        "check --only pads --quick",
    ):
        assert f"run: {trial}, the newest\n" in command(*line.split()).err, line


def test_a_machine_is_described_where_there_is_no_run_or_where_it_is_asked_for(
    run: Path, command: Command, refused
):
    """A training writes into runs/, so the doctor looks there too."""
    of_run = json.loads(command("doctor", "--json").out)
    assert of_run["run"] == "runs/c"
    assert "give one of them" in refused("doctor", "runs/c", "--machine")
    asked = json.loads(command("doctor", "--machine", "--json").out)
    shutil.rmtree("runs")
    assert json.loads(command("doctor", "--json").out).keys() == asked.keys() != of_run.keys()


def test_code_that_the_config_of_a_run_names_is_asked_about(here: Path, command: Command, refused):
    Path("own.py").write_text("def f(s): return s[:]\nf.symbols = ['1', '2']\nprint('it ran')\n")
    Path("own.yaml").write_text(tiny_yaml(data={"task": "own.py:f", "symbols": None}))
    assert command("train", "own.yaml").code == 0
    assert "it ran" in command("explain", "own.yaml").out
    for words in (
        ("explain", "runs/own/config.yaml"),
        ("inspect-masks", "runs/own/config.yaml"),
        ("check", "--config", "runs/own/config.yaml", "--only", "pads", "--quick"),
        ("train", "runs/own/config.yaml"),
    ):
        assert "runs with --trust-code alone" in refused(*words)
        trusted = command(*words, "--trust-code")
        assert trusted.code == 0 and "it ran" in trusted.out, words
    for ask in (toytrans.train, toytrans.explain):
        with pytest.raises(toytrans.UserError, match="trust_code=True in Python"):
            ask("runs/own/config.yaml")
    assert toytrans.train("runs/own/config.yaml", "mine", trust_code=True).step == 6


WITHOUT_TQDM = "import sys; [sys.modules.pop(n) for n in [*sys.modules] if n[:4] == 'tqdm']\n"
"""A forked process has it already."""


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MPLBACKEND", "nosuch", "unset MPLBACKEND"),
        ("TQDM_MININTERVAL", "abc", "see the variables TQDM_* of the environment"),
    ],
)
def test_an_environment_that_a_library_refuses_is_named(run: Path, variable, value, words):
    """Libraries read it when they are imported."""
    asked = ("eval", "runs/c", "--plot", "a.png")
    environment = os.environ | {variable: value}
    ended = Forked(
        WITHOUT_TQDM + COMMAND, *asked, folder=Path.cwd(), environment=environment
    ).ended()
    assert (ended.code, ended.err.count("\n")) == (2, 1) and words in ended.err


def test_a_working_directory_that_is_gone_is_named(refused, here: Path):
    (here / "c.yaml").unlink()
    here.rmdir()
    assert "the working directory is gone" in refused("explain", "x.py:t")
