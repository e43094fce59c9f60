"""Every command in README and in the headers of configs does what is promised.

Where a config's header promises more than 15 s, its command runs for three steps;
scripts/verify_configs.py runs it in full.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import script
from scan_grammar import scan_lines

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
QUICK = 15.0


def documented(text: str) -> list[str]:
    """toytrans commands that are whole: no placeholder in capitals or brackets."""
    found = re.findall(r"(?:^|&& )(toytrans .*?)(?:   .*)?$", text, re.MULTILINE)
    return [c for c in found if not re.search(r"\[|\bFILE\b|\bNAME\b", c)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder like the project's root, with SCAN files made from its grammar."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "configs").symlink_to(ROOT / "configs")
    lines = scan_lines()
    assert len(lines) == 20_910, "the whole of SCAN"
    (folder / "TRAIN").write_text("\n".join(lines[::51]) + "\n")
    (folder / "TEST").write_text("\n".join(lines[7::101]) + "\n")
    return folder


def test_readme_names_the_commands_that_this_file_runs():
    commands = [command for _, block in BLOCKS for command in documented(block)]
    names = {shlex.split(command)[1] for command in commands}
    assert {"train", "inspect-masks", "translate", "schema"} <= names
    every = "train tasks eval board translate inspect-masks schema check faults gradients attention"
    for command in f"{every} trace doctor".split():
        assert f"toytrans {command}" in README


def test_the_commands_of_the_readme(place, command, monkeypatch):
    monkeypatch.chdir(place)
    commands = [command for _, block in BLOCKS for command in documented(block)]
    assert commands[0] == "toytrans train --config configs/reverse.yaml"
    outputs = {}
    for line in dict.fromkeys(commands):
        done = command(*shlex.split(line)[1:])
        assert done.code == 0, (line, done.err)
        assert done.out.strip(), line
        outputs[line] = done.out
    assert re.search(r"test 1 to 20 +\d+ +1\.000", outputs[commands[0]]), "as README shows"
    assert outputs['toytrans translate "5 7 9"'].strip() == "9 7 5"
    assert "nothing looks wrong" in outputs["toytrans doctor runs/reverse"]


def test_torchrun_takes_the_lines_of_the_readme():
    """They are run in tests/test_distributed.py; GPUs and several machines are wanting here."""
    from torch.distributed.run import get_args_parser

    lines = re.findall(r"^(?:srun .*?)?torchrun (.* -m toytrans train .*)$", README, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        words = shlex.split(line.replace("$SLURM_NNODES", "4"))
        known = get_args_parser().parse_args(words)
        assert known.module and known.training_script == "toytrans"
        assert known.training_script_args[:2] == ["train", "--config"]


def test_the_python_of_the_readme(place, command, monkeypatch, capsys):
    monkeypatch.chdir(place)
    if not (place / "runs/reverse").exists():
        command("train", "--config", "configs/reverse.yaml")
    codes = [block for language, block in BLOCKS if language == "python"]
    assert len(codes) == 4
    shown = []
    for code in codes:
        exec(compile(code, "README.md", "exec"), {})
        shown.append(capsys.readouterr().out)
    assert shown[0].startswith("['9 7 5']") and shown[0].rstrip().endswith("103")
    assert "FAIL" not in shown[1] and shown[1].count("PASS") == 15, "BART"
    for code, text in zip(codes[2:], shown[2:], strict=True):
        promised = re.findall(r"\((\w)\)", re.search(r"# (\(.*)FAIL", code)[1])
        assert re.findall(r"\((\w)\) FAIL", text) == promised


def test_the_configuration_of_the_readme(tmp_path):
    from toytrans.config_file import load_config

    (yaml,) = [block for language, block in BLOCKS if language == "yaml"]
    (tmp_path / "c.yaml").write_text(yaml)
    assert load_config(tmp_path / "c.yaml").data.symbols == 100


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_the_command_of_a_config(config, place, command, monkeypatch):
    monkeypatch.chdir(place)
    header = config.read_text()
    line = re.search(r"^# run: +(toytrans .*)$", header, re.MULTILINE)[1]
    assert f"--config configs/{config.name}" in line
    promise = script("verify_configs").promise_of(config)
    assert promise.in_range >= 0.99
    assert re.search(r"^# measured: .*\d s", header, re.MULTILINE), "a measured result"
    quick = promise.seconds <= QUICK
    if quick and (place / "runs" / config.stem).exists():
        return  # README's command, run above
    words = shlex.split(line)[1:]
    if not quick:
        words += ["--set", "train.max_steps=3", "--set", "data.valid_examples=50"]
        words += ["--set", "data.test_examples=50"]
    done = command(*words)
    assert done.code == 0, done.err
    if quick:
        found = json.loads(command("eval", f"runs/{config.stem}", "--json").out)
        assert found["in_range"]["exact_match"] >= promise.in_range
    assert "exact" in done.out and "toytrans eval" in done.out


def test_every_config_is_in_the_readmes_table():
    for config in CONFIGS:
        assert re.search(rf"^\| {config.stem} \|", README, re.MULTILINE), config.stem


def test_the_house_in_the_readme_is_the_house():
    listed = set(re.findall(r"^ +(\w+\.py) ", README, re.MULTILINE))
    modules = {
        path.name
        for path in (ROOT / "toytrans").rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py") and path.parent.name != "cli"
    }
    assert listed == modules


def test_dependencies_are_explained():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    table = README[README.index("## Dependencies") :]
    for name in names:
        assert re.split(r"[<>=]", name)[0].lower() in table.lower(), name
