"""The lessons and the other pages that show what is printed: every command and every Python block
of them runs, and every line that a page shows is a line that was printed.

A block of the language `text` is output of the last command or of the Python block above it. Its
lines follow each other in what is printed; a line `...` stands for lines that are left out. Runs
of blanks count as one, and empty lines do not count. Numbers:

    words, whole numbers        equal
    decimals                    equal, up to one in the last digit shown: kernels differ
    below 1e-5, say 0 or 2e-16  any number below 1e-5: it is rounding
    with trained weights        decimals may differ by 0.2, or by 20%

The exercise of docs/teaching.md trains for three steps. No output of its run is shown.
"""

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import FIRST, ROOT, Answer, call
from test_documented_commands import CUT, FINDING, SHOWING, blocks, whole_commands

LESSONS = sorted((ROOT / "docs/lessons").glob("[1-9]*.md"))
RUN = [page for page in SHOWING if page.parent.name != "ko"]
"""The others show the same."""

NUMBER = re.compile(r"(?<!\w)(?<!\d\.)[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
ROUNDING = 1e-5
TRAINED = 0.2


class Shown(NamedTuple):
    """A block of output, and the command line or the code that prints it."""

    source: str
    text: str

    @property
    def trained(self) -> bool:
        return "runs/" in self.source or self.source.startswith("toytrans train ")


def sources_of(page: Path) -> dict[str, list[str]]:
    """The commands and the code of a page in their order, and what it shows of their output."""
    found: dict[str, list[str]] = {}
    source = ""
    for language, text in blocks(page):
        if language == "text":
            found[source].append(text)
            continue
        for source in [text] if language == "python" else whole_commands(text):
            found.setdefault(source, [])
    return found


class Pipe(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]


def printed_by(source: str) -> Answer:
    """What a command or a Python block prints."""
    out, err = Pipe(), Pipe()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = 0
        if source.startswith("toytrans "):
            three_steps = CUT if source.startswith("toytrans train --config exercise") else []
            code = call(*shlex.split(source)[1:], *three_steps)
        else:
            exec(compile(source, "page", "exec"), {})
    return Answer(code, out.getvalue(), err.getvalue())


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


def missing(shown: Shown, printed: str) -> str:
    """The first part of a shown block that was not printed after the parts before it, or ""."""
    lines, start = lines_of(printed), 0
    for part in re.split(r"^\.\.\.$", shown.text, flags=re.MULTILINE):
        wanted = lines_of(part)
        places = (
            place
            for place in range(start, len(lines) - len(wanted) + 1)
            if all(map(same_line, wanted, lines[place:], [shown.trained] * len(wanted)))
        )
        if (found := next(places, None)) is None:
            return part
        start = found + len(wanted)
    return ""


def expected_code(source: str, texts: list[str]) -> int:
    if any(text.startswith("toytrans: ") for text in texts):
        return 2
    if any(text.startswith("wrong: ") for text in texts) or source in FINDING:
        return 1
    shows_failure = re.match("toytrans check ", source) and "FAIL" in "".join(texts)
    return 1 if shows_failure or re.match("toytrans check .*--break", source) else 0


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_is_printed(
    page: Path, trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("configs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(trained[0] / "runs", tmp_path / "runs")
    wrong = []
    for source, texts in sources_of(page).items():
        is_first = source == FIRST.replace("--config ", "")
        code, out, err = Answer(0, trained[1], "") if is_first else printed_by(source)
        if code != expected_code(source, texts):
            wrong.append(f"{source}\nexit code {code}\n{err}")
        parts = (missing(Shown(source, text), err if code == 2 else out) for text in texts)
        wrong += [f"{source}\nnot printed:\n{part}" for part in parts if part]
    assert not wrong, "\n\n".join(wrong)


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
