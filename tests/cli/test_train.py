"""`toytrans train`: how a config is named, and what the command says."""

import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import Command, tiny_yaml

from toytrans.config.schedules import SCHEDULES

pytestmark = pytest.mark.usefixtures("here")


def test_the_config_is_an_argument_or_an_option(command: Command, refused):
    argument, option = command("train", "c.yaml"), command("train", "--config", "c.yaml")
    assert argument.code == option.code == 0
    assert Path("runs/c/config.yaml").read_text() == Path("runs/c-2/config.yaml").read_text()
    assert "once" in refused("train", "c.yaml", "--config", "c.yaml")
    assert "toytrans train textbook" in refused("train")


def test_a_shipped_config_is_found_by_name_where_no_file_has_it(command: Command, refused):
    few = ("train.max_steps=2", "data.valid_examples=9", "data.test_examples=9")
    words = [word for one in few for word in ("--set", one)]
    assert command("train", "textbook", *words).code == 0
    assert "no shipped config; did you mean textbook?\n" in refused("train", "configs/textbok.yaml")
    assert "there are addition, " in refused("train", "zzz")
    Path("textbook").write_text("data: {task: nonsense}\n")
    assert "nonsense" in refused("train", "textbook")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--device", "gpu", "toytrans: --device: device: found 'gpu', expected auto | cpu"),
        ("--seed", "-1", "toytrans: --seed: seed: found -1, expected at least 0"),
        ("--set", "seed=-1", "toytrans: --set: seed: found -1, expected at least 0"),
        ("--break", "causal", "found 'causal'; did you mean no_causal?\n"),
        ("--break", "xyz", "found 'xyz'; there are no_causal, "),
    ],
)
def test_a_short_option_is_named_where_its_value_is_refused(refused, option, value, expected):
    assert expected in refused("train", "c.yaml", option, value)


def test_a_fault_cannot_be_planted_into_code_of_ones_own(refused):
    Path("own.yaml").write_text("data: {task: copy}\nmodel: {class: own.py:Own}\n")
    for command in (("train",), ("check", "--config")):
        assert "toytrans: --break: fault: " in refused(*command, "own.yaml", "--break", "no_scale")


def test_a_moved_end_of_the_schedule_is_reported_on_resume(command: Command):
    assert command("train", "c.yaml", "--out", "r").code == 0
    resume = ("train", "c.yaml", "--out", "r", "--resume", "--set")
    longer = command(*resume, "train.max_steps=12")
    assert "linear schedule now ends at step 12, not 6: the learning rate goes on at " in longer.err
    before, now = map(float, re.findall(r"at (\S+), not (\S+)\n", longer.err)[0][::-1])
    rates = [json.loads(line)["lr"] for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert rates[6] == pytest.approx(now, rel=1e-2) and before < now
    same = command(*resume, "train.max_seconds=900")
    assert same.code == 0 and "schedule" not in same.err


def test_a_schedule_is_one_function_and_one_entry(command: Command, refused, monkeypatch):
    """Configs, help and the JSON Schema follow from the registry."""

    def half(step: int, warmup_steps: int, max_steps: int) -> float:
        return 0.5

    monkeypatch.setitem(SCHEDULES, "half", half)
    words = ("train", "c.yaml", "--out", "r", "--set", "train.lr=0.004")
    assert command(*words, "--set", "train.schedule=half").code == 0
    assert json.loads(Path("r/metrics.jsonl").read_text().splitlines()[-1])["lr"] == 0.002
    assert "half" in command("explain", "train.schedule").out
    schema = json.loads(command("explain", "schema").out)
    assert schema["$defs"]["TrainConfig"]["properties"]["schedule"]["enum"] == [*SCHEDULES]
    misspelt = refused("train", "c.yaml", "--out", "s", "--set", "train.schedule=cosin")
    assert "--set: train.schedule: found 'cosin'; did you mean cosine?" in misspelt


def test_a_schedule_that_moves_only_later_is_reported_on_resume(command: Command, monkeypatch):
    """Both ends are in a schedule's stable phase when the run goes on."""

    def stable_then_zero(step: int, warmup_steps: int, max_steps: int) -> float:
        return 1.0 if step <= max_steps // 2 else 0.0

    monkeypatch.setitem(SCHEDULES, "constant", stable_then_zero)
    words = ("train", "c.yaml", "--out", "r", "--set", "train.schedule=constant")
    early = ("--set", "train.max_steps=12", "--set", "train.stop_at_exact_match=0.0")
    assert command(*words, *early).code == 0
    more = ("--resume", "--set", "train.stop_at_exact_match=null", "--set")
    said = command(*words, *more, "train.max_steps=20").err
    assert "the learning rate goes on from step 7 at 0.003, not 0" in said
    assert "schedule" not in command(*words, *more, "train.max_steps=20").err


OWN = "def f(s): return s[:]\nf.symbols = ['-', '$', '*']\n"
NEXT = {
    "a task": ("train c.yaml", "eval"),
    "own code, and a name with a blank": (
        "train c.yaml --set data.task=own.py:f --set data.symbols=null --out 'o/a run'",
        "eval 'o/a run' --trust-code",
    ),
    "files without a test part": ("train files.yaml --out=-x", "eval ./-x --split valid"),
    "an exercise": ("train exercise-7/exercise.yaml --out runs/exercise", "eval runs/exercise"),
    "a sweep's run, resumed": ("train --resume --out runs/sweeps/c/KEY", "eval runs/sweeps/c/"),
}
"""A training, and how the first command begins that it prints as next."""


@pytest.mark.parametrize("name", NEXT)
def test_the_next_commands_work_as_printed(command: Command, name: str):
    line, first = NEXT[name]
    Path("own.py").write_text(OWN)
    Path("pairs.tsv").write_text("- a\ta -\n--json b\tb\n-x\t-x\n" * 9)
    files = {"train": "pairs.tsv", "valid": "pairs.tsv"}
    Path("files.yaml").write_text(tiny_yaml(data={"files": files}, train={"max_steps": 1}))
    small: list[str] = []
    if "exercise" in line:
        assert command("exercise", "new", "--seed", "7").code == 0
        texts = ["model.d_model=16", "model.d_ff=16", "data.batch_tokens=256", "train.max_steps=2"]
        texts += ["data.valid_examples=9", "data.test_examples=9"]
        small = [word for text in texts for word in ("--set", text)]
    if "KEY" in line:
        assert command("sweep", "c.yaml", "--examples", "20").code == 0
        (trial,) = (path.parent for path in Path("runs/sweeps/c").glob("*/resolved.yaml"))
        line = line.replace("KEY", trial.name)
    trained = command(*shlex.split(line), *small)
    assert trained.code == 0, trained.err
    printed = re.findall(r"^  toytrans (.*)", trained.out, re.MULTILINE)
    assert printed[0].startswith(first) and len(printed) == 4
    for words in map(shlex.split, printed):
        quick = ("--quick", "--only", "pads") if words[0] == "check" else ()
        answer = command(*words, *quick) if "--" not in words else command(*words)
        assert answer.code in ((0, 1) if name == "an exercise" else (0,)), answer.err
