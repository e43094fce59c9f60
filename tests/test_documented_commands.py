"""Every whole command in README, docs/ and the headers of configs does what is promised.

configs/textbook.yaml is trained in full, the others for three steps; tests/slow/test_promises.py
trains all of them in full.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import typer.main
from conftest import FIRST, ROOT, Command, script
from scan_grammar import scan_lines

from toytrans.cli.app import app

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
README = ROOT / "README.md"
SHOWING = [
    *sorted((ROOT / "docs").glob("*/**/*.md")),
    *(ROOT / f"docs/{name}.md" for name in ("confused", "found", "from", "teaching")),
]
"""Pages that show output: tests/test_shown_output.py runs what is on them."""
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page not in SHOWING] + [README]
THREE_STEPS = ["train.max_steps=3", "data.valid_examples=20", "data.test_examples=20"]
CUT = [word for override in THREE_STEPS for word in ("--set", override)]
SMALL_BATCHES = ["--set", "data.batch_tokens=1024"]
"""For the commands of pages. Those of configs have the batches of their configs."""
EXPECTED = {
    'toytrans translate "5 7 9"': r"^9 7 5$",
    "toytrans doctor runs/textbook": "nothing looks wrong",
    "toytrans check runs/textbook": r"^PASS  pads, future",
    "toytrans check --model checked_model.py:build": r"^PASS  pads, future",
    "toytrans check --model docs/examples/checked_model.py:build": r"^PASS  pads, future",
    "toytrans eval runs/textbook --lengths 2:20 --examples 200": "test 8 to 20, beyond",
}
"""What the output of some commands must hold."""

FINDING = ("toytrans doctor runs/exercise", "toytrans check runs/exercise")
"""Commands that find what is wrong with a broken run, and say so by their exit code."""


class Promise(NamedTuple):
    """Least exact match within and, where given, beyond training lengths; most seconds."""

    in_range: float
    beyond: float | None
    seconds: float


def promise_of(config: Path) -> Promise | None:
    """The promise in a config's header."""
    number = r"([\d.]+)"
    line = rf"^# promise:  in_range {number}(?:, beyond {number})?, {number} s$"
    found = re.search(line, config.read_text(), re.MULTILINE)
    if found is None:
        return None
    return Promise(float(found[1]), float(found[2]) if found[2] else None, float(found[3]))


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The code blocks of a page: language and text."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def whole_commands(text: str) -> list[str]:
    """Lines of toytrans without a placeholder in capitals or brackets."""
    lines = re.findall(r"(?:^|&& )(toytrans .*)$", text, re.MULTILINE)
    return [
        line for line in lines if not re.search(r"\[|\b(FILE|NAME|DIR|RUN|FAULT|CONFIG)\b", line)
    ]


def commands_of(page: Path) -> list[str]:
    """The commands of a page: of its code blocks, and of README's table too."""
    listed = re.findall(r"^\|[^|]*\| `(toytrans [^`]*)` \|", page.read_text(), re.MULTILINE)
    in_blocks = [command for _, text in blocks(page) for command in whole_commands(text)]
    return in_blocks + (listed if page == README else [])


PAGE_OF = {command: page for page in reversed(PAGES) for command in commands_of(page)}
"""Each command runs once, in the folder of the first page that has it; README comes last."""


@pytest.fixture
def folder(trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory like the project's root, with a copy of that run."""
    for name in ("configs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(trained[0] / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # `check --model` adds the working directory
    return tmp_path


def test_every_command_of_toytrans_is_documented():
    every = set(typer.main.get_command(app).commands)
    listed = script("site_pages").commands()
    for command in every:
        assert f"### `toytrans {command}`" in listed, command
    run = {shlex.split(line)[1] for page in [*PAGES, *SHOWING] for line in commands_of(page)}
    assert run == every


def test_the_first_command_ends_as_readme_shows(trained: tuple[Path, str]):
    """Solved in range and lost beyond, on the same numbers of pairs."""
    assert commands_of(README)[0] == FIRST
    row = r"^  ((?:valid|test) .*?)  +([\d,]+) +([01]\.\d+)  "
    printed, shown = (
        re.findall(row, text, re.MULTILINE) for text in (trained[1], README.read_text())
    )
    assert [cells[:2] for cells in printed] == [cells[:2] for cells in shown]
    for rows in (printed, shown):
        exact = [float(cells[2]) for cells in rows]
        assert len(exact) == 3 and min(exact[:2]) >= 0.99 and exact[2] < 0.3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_and_the_code_of_a_page(page: Path, folder: Path, command: Command, capsys):
    for language, text in blocks(page):
        if name := re.match(r"# (\w+\.(?:py|yaml))\n", text):
            (folder / name[1]).write_text(text)
        elif language == "python":
            run_code(text, page.name, capsys)
    for line in dict.fromkeys(commands_of(page)):
        if line != FIRST and PAGE_OF[line] == page:
            run_line(line, command)


def run_line(line: str, command: Command) -> None:
    """Run a command, and look for what its output must hold."""
    words = shlex.split(line)[1:]
    if words[0] == "board" and words[1:]:  # tests/sweeps/test_board.py trains one
        from toytrans.sweeps.board import board_names

        assert words[1] in board_names()
        return
    if words[0] == "sweep":  # one seed, three steps
        words[words.index("--seeds") + 1] = "0:0"
        if steps := [place for place, word in enumerate(words) if word[:16] == "train.max_steps="]:
            del words[steps[0] - 1 : steps[0] + 1]  # CUT has them
    if words[0] == "check":
        words += ["--length", "16"]
    trains = words[0] in ("train", "sweep")
    done = command(*words, *([*CUT, *SMALL_BATCHES] if trains else ()))
    assert done.code == (1 if line in FINDING else 0), (line, done.err)
    assert re.search(EXPECTED.get(line, r"\S"), done.out, re.MULTILINE), (line, done.out)


def run_code(code: str, name: str, capsys) -> None:
    """Run Python of a page; its comments name what is printed, and the checks that fail."""
    capsys.readouterr()
    exec(compile(code, name, "exec"), {})
    shown = capsys.readouterr().out
    for promised in re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE):
        if not re.match(r"a torch|symbols|.* FAIL", promised):
            assert promised in shown, promised
    failing = re.search(r"# (.*) FAIL", code)
    names = failing[1].split() if failing else []
    assert sorted(re.findall(r"^FAIL  (\w+)", shown, re.MULTILINE)) == sorted(names)


def test_the_configs_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from toytrans.config.load import load_config

    shutil.copytree(ROOT / "docs/examples", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    pages = [*PAGES, *SHOWING]
    texts = [text for page in pages for language, text in blocks(page) if language == "yaml"]
    assert len(texts) >= 4
    for text in texts:
        (tmp_path / "c.yaml").write_text(text)
        load_config(tmp_path / "c.yaml")


def test_a_config_for_a_gpu_promises_nothing_and_trains_nowhere_else(refused):
    config = ROOT / "configs/gpu/big_reverse.yaml"
    assert promise_of(config) is None
    if not torch.cuda.is_available():
        assert "device cuda is not on this machine" in refused("train", "--config", str(config))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_the_command_of_a_config(config: Path, tmp_path: Path, command: Command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    if config.stem == "scan_simple":
        lines = scan_lines()
        assert len(lines) == 20_910, "the whole of SCAN"
        (tmp_path / "TRAIN").write_text("\n".join(lines[::51]) + "\n")
        (tmp_path / "TEST").write_text("\n".join(lines[7::101]) + "\n")
    header = config.read_text()
    line = re.search(r"^# run: +(toytrans .*)$", header, re.MULTILINE)[1]
    assert f"--config configs/{config.name}" in line
    assert re.search(r"^# measured: .*\d s", header, re.MULTILINE), "a measured result"
    assert promise_of(config).in_range >= 0.99
    done = command(*shlex.split(line)[1:], *CUT)
    assert done.code == 0, done.err
    assert "exact" in done.out and f"toytrans eval runs/{config.stem}" in done.out
    records = (tmp_path / "runs" / config.stem / "metrics.jsonl").read_text().splitlines()
    assert json.loads(records[-1])["step"] == 3
