"""Every whole command and every Python block in README and docs/ runs, and prints what its page
shows. So do the commands in the headers of configs.

A block of the language `text` is output of the last command or of the Python block above it. Its
lines follow each other in what is printed; a line `...` stands for lines that are left out. Runs
of blanks count as one, and empty lines do not count. Numbers:

    words, whole numbers        equal
    decimals                    equal, up to one in the last digit shown: kernels differ
    below 1e-5, say 0 or 2e-16  any number below 1e-5: it is rounding
    with trained weights        decimals may differ by 0.2, or by 20%

configs/textbook.yaml is trained in full, the others for three steps; tests/slow/test_promises.py
trains all of them in full.
"""

import contextlib
import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main
from conftest import FIRST, ROOT, Answer, Command, call
from scan_grammar import scan_lines

from toytrans.checks import run as checks
from toytrans.cli.app import app
from toytrans.config.load import load_config
from toytrans.sweeps.sweep_file import find_sweep_file, plan_of_file

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
README = ROOT / "README.md"
LESSONS = sorted((ROOT / "docs/lessons").glob("[1-9]*.md"))
DOCS = ROOT / "docs"
MISTAKES = sorted((DOCS / "mistakes").glob("*.md"))
PAGES = [*LESSONS, *MISTAKES, *sorted(DOCS.glob("*.md")), README]
"""The Korean lessons show the same."""

THREE_STEPS = ["train.max_steps=3", "data.valid_examples=8", "data.test_examples=8"]
CUT = [word for override in THREE_STEPS for word in ("--set", override)]
SMALL_BATCHES = ["--set", "data.batch_tokens=1024"]
"""For the commands of pages. Those of configs have the batches of their configs."""
EXPECTED = {
    'toytrans translate "5 7 9"': r"^9 7 5$",
    "toytrans doctor runs/textbook": "nothing looks wrong",
    "toytrans check runs/textbook": r"^PASS  rows, pads, future",
    "toytrans check --model docs/examples/checked_model.py:build": r"^PASS  rows, pads, future",
    "toytrans eval runs/textbook --lengths 2:20 --examples 200": "test 8 to 20, beyond",
}
"""What the output of some commands must hold, beside what pages show."""

FINDING = (
    "toytrans doctor runs/exercise",
    "toytrans check runs/exercise",
    "toytrans doctor runs/third",  # it has hardly been trained
    "toytrans exercise grade class --csv grades.csv --page grades.html",  # two have not answered
)
"""Commands that find what is wrong with a broken run, and say so by their exit code."""


class Promise(NamedTuple):
    """Least exact match within and, where given, beyond training lengths; most seconds."""

    in_range: float
    beyond: float | None
    seconds: float


def promise_of(config: Path) -> Promise:
    """The promise in a config's header."""
    number = r"([\d.]+)"
    line = rf"^# promise:  in_range {number}(?:, beyond {number})?, {number} s$"
    found = re.search(line, config.read_text(), re.MULTILINE)
    assert found, f"{config}: no promise in its header"
    return Promise(float(found[1]), float(found[2]) if found[2] else None, float(found[3]))


# What a page holds ---------------------------------------------------------------------------


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The code blocks of a page: language and text."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def whole_commands(text: str) -> list[str]:
    """Lines of toytrans without a placeholder in capitals or brackets."""
    lines = re.findall(r"(?:^|&& )(toytrans .*)$", text, re.MULTILINE)
    return [
        line for line in lines if not re.search(r"\[|\b(FILE|NAME|DIR|RUN|FAULT|CONFIG)\b", line)
    ]


def sources_of(page: Path) -> dict[str, list[str]]:
    """The commands and the code of a page in their order, and what it shows of their output."""
    found: dict[str, list[str]] = {}
    source = ""
    for language, text in blocks(page):
        if language == "text":
            found[source].append(text)
        elif language in ("", "python"):
            for source in [text] if language else whole_commands(text):
                found.setdefault(source, [])
    if page == README:  # its table
        listed = re.findall(r"^\|[^|]*\| `(toytrans [^`]*)` \|", page.read_text(), re.MULTILINE)
        found |= {command: [] for command in listed}
    return found


SOURCES = {page: sources_of(page) for page in PAGES}
PAGE_OF = {source: page for page in reversed(PAGES) for source in SOURCES[page]}
"""The first page that has a command. Another one runs it where it shows its output."""


# What is printed -----------------------------------------------------------------------------


class Pipe(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]


def printed_by(source: str, shown: bool) -> Answer:
    """What a command or a Python block prints. Those whose output is not shown are small."""
    out, err = Pipe(), Pipe()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with pytest.MonkeyPatch.context() as patch, streams[0], streams[1]:
        if not shown:
            patch.setattr(checks, "LENGTH", 8)  # of the longest sequence that a check tries
        code = 0
        if source.startswith("toytrans "):
            words = shlex.split(source)[1:]
            code = call(*(words if shown else made_small(words)))
        else:
            exec(compile(source, "page", "exec"), {})
    return Answer(code, out.getvalue(), err.getvalue())


def made_small(words: list[str]) -> list[str]:
    """A command whose training takes one seed and three steps, and whose check is no longer than
    others."""
    words = list(words)
    if words[0] == "sweep":
        if "--examples" in words:  # untrained models write to the limit
            words[words.index("--examples") + 1] = "20"
        if "--seeds" not in words:
            words += ["--seeds", ""]
        words[words.index("--seeds") + 1] = "0:0"
        if steps := [place for place, word in enumerate(words) if word[:16] == "train.max_steps="]:
            del words[steps[0] - 1 : steps[0] + 1]  # CUT has them
    if words[0] == "check" and "--length" in words:
        words[words.index("--length") + 1] = "8"
    return words + (CUT + SMALL_BATCHES if words[0] in ("train", "sweep") else [])


def expected_code(source: str, texts: list[str]) -> int:
    if any(text.startswith("toytrans: ") for text in texts):
        return 2
    if any(text.startswith("wrong: ") for text in texts) or source in FINDING:
        return 1
    shows_failure = re.match("toytrans check ", source) and "FAIL" in "".join(texts)
    return 1 if shows_failure or re.match("toytrans check .*--break", source) else 0


def broken_promises(code: str, printed: str, shown: bool) -> list[str]:
    """What comments of Python say that is printed, or that fails, and is not so. shown: the page
    shows the output, with its failures."""
    said = re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
    plain = [text for text in said if not re.match(r"a torch|symbols|.* FAIL", text)]
    wrong = [text for text in plain if text not in printed]
    failing = re.search(r"# (.*) FAIL", code)
    names = failing[1].split() if failing else []
    fails = re.findall(r"^FAIL  (\w+)", printed, re.MULTILINE)
    if sorted(fails) != sorted(names) and (failing or not shown):
        wrong.append(f"FAIL of {names} alone")
    return wrong


NUMBER = re.compile(r"(?<!\w)(?<!\d\.)[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
ROUNDING = 1e-5
TRAINED = 0.2


def lines_of(text: str) -> list[str]:
    """The lines, with one blank for several, and rules of tables as one stroke."""
    return [re.sub("─+", "─", " ".join(line.split())) for line in text.splitlines() if line.strip()]


def same_number(shown: str, printed: str, trained: bool) -> bool:
    one, other = (float(text.replace(",", "")) for text in (shown, printed))
    if shown == printed or max(abs(one), abs(other)) < ROUNDING:
        return True
    if "." not in shown and "e" not in shown or abs(one) < ROUNDING:
        return False
    last = 10.0 ** -len(shown.partition(".")[2]) if "e" not in shown else 0.1 * abs(one)
    return abs(one - other) <= (TRAINED * max(1.0, abs(one)) if trained else 1.01 * last)


def same_line(shown: str, printed: str, trained: bool) -> bool:
    """Whether a line that is shown is a line that was printed, by the rule above."""
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(same_number(one, other, trained) for one, other in pairs)


def missing(text: str, printed: str, trained: bool) -> str:
    """The first part of a shown block that was not printed after the parts before it, or ""."""
    lines, start = lines_of(printed), 0
    for part in re.split(r"^\.\.\.$", text, flags=re.MULTILINE):
        wanted = lines_of(part)
        places = (
            place
            for place in range(start, len(lines) - len(wanted) + 1)
            if all(map(same_line, wanted, lines[place:], [trained] * len(wanted)))
        )
        if (found := next(places, None)) is None:
            return part
        start = found + len(wanted)
    return ""


# The tests -----------------------------------------------------------------------------------


@pytest.fixture
def folder(trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory like the project's root, with a copy of the run of README."""
    for name in ("configs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(trained[0] / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", [*sys.path])  # `check --model` adds the working directory
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_and_prints_what_it_shows(page: Path, folder: Path, trained: tuple[Path, str]):
    for _, text in blocks(page):
        if name := re.match(r"# (\w+\.(?:py|yaml))\n", text):
            (folder / name[1]).write_text(text)
    wrong = []
    for source, texts in SOURCES[page].items():
        if not texts and PAGE_OF[source] != page:
            continue
        is_first = source.replace("--config ", "") == FIRST.replace("--config ", "")
        code, out, err = Answer(0, trained[1], "") if is_first else printed_by(source, bool(texts))
        if code != expected_code(source, texts):
            wrong.append(f"{source}\nexit code {code}\n{err}")
        uses_run = "runs/" in source or source.startswith("toytrans train ")
        parts = [missing(text, err if code == 2 else out, uses_run) for text in texts]
        if not source.startswith("toytrans "):
            parts += broken_promises(source, out, bool(texts))
        elif not texts and not re.search(EXPECTED.get(source, r"\S"), out, re.MULTILINE):
            parts.append(EXPECTED.get(source, "anything"))
        wrong += [f"{source}\nnot printed:\n{part}" for part in parts if part]
    assert not wrong, "\n\n".join(wrong)


def test_every_command_of_toytrans_is_documented():
    every = set(typer.main.get_command(app).commands)
    page = (DOCS / "commands.md").read_text()
    purposes = page[page.index("| to | command |") :].split("\n\n")[0]
    for command in every:
        assert f"### `toytrans {command}" in page, command
        assert f"`{command}" in purposes, command
    assert {line.split()[1] for line in PAGE_OF if line.startswith("toytrans ")} == every


def test_the_first_command_ends_as_readme_shows(trained: tuple[Path, str]):
    """Solved in range and lost beyond, on the same numbers of pairs."""
    assert FIRST in SOURCES[README]
    row = r"^ ((?:valid|test) .*?)  +([\d,]+) +([01]\.\d+)  "
    printed, shown = (
        re.findall(row, text, re.MULTILINE) for text in (trained[1], README.read_text())
    )
    assert [cells[:2] for cells in printed] == [cells[:2] for cells in shown]
    for rows in (printed, shown):
        exact = [float(cells[2]) for cells in rows]
        assert len(exact) == 3 and min(exact[:2]) >= 0.99 and exact[2] < 0.3


def test_the_configs_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(ROOT / "docs/examples", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    texts = [text for page in PAGES for language, text in blocks(page) if language == "yaml"]
    assert len(texts) >= 4
    for text in texts:
        name = re.match(r"# (\w+\.yaml)\n", text)
        path = tmp_path / (name[1] if name else "c.yaml")
        path.write_text(text)
        if find_sweep_file(path):
            plan_of_file(path)
        else:
            load_config(path)


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.stem)
def test_a_korean_lesson_shows_what_the_english_one_shows(page: Path):
    """The same commands and output, and three questions with folded answers in both."""
    korean = page.parent / "ko" / page.name
    assert f"](ko/{page.name})" in page.read_text()
    assert f"](../{page.name})" in korean.read_text()
    assert list(blocks(page)) == list(blocks(korean))
    for each in (page, korean):
        questions = each.read_text().rpartition("\n## ")[2]
        assert questions.count('<details markdown="1">') == questions.count("</details>") == 3


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
