"""Exercises: the fault is at work and named nowhere; answers, hints, grades."""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import get_args

import pytest
from conftest import ROOT, Command

from toytrans.config.load import load_config
from toytrans.config.names import FaultName, seal
from toytrans.exercises.exercise import DRAWN, KINDS, draw, hints_of, read
from toytrans.exercises.fault_cards import CARDS

pytestmark = pytest.mark.usefixtures("here")
KEY = "red chalk"
SMALL = ["model.d_model=16", "model.d_ff=16", "data.batch_tokens=256", "data.valid_examples=20"]
SMALL += ["data.test_examples=20", "train.max_steps=4"]
CHECK = "--only pads,steps,loss --length 7"
COMMANDS = (
    "eval runs/exercise --json",
    "attention runs/exercise",
    "attention runs/exercise --json",
    "inspect-masks runs/exercise --panel all",
    "inspect-masks --config exercise-7/exercise.yaml --json",
    "trace runs/exercise",
    "demo decoding runs/exercise",
    f"check runs/exercise {CHECK}",
    f"check --config exercise-7/exercise.yaml {CHECK} --json",
    "runs",
    "eval runs/exercise",
    "translate runs/exercise 5",
    "export runs/exercise --format safetensors",
    "check runs/exercise --break no_norm",
    "exercise hint exercise-7",
)
"""Every command that shows a run."""

SETS = [word for text in SMALL for word in ("--set", text)]


def key_of(fault: FaultName | None, level: int) -> str:
    """A key that draws a fault."""
    keys = (f"key {n}" for n in range(1000))
    return next(key for key in keys if draw(key, 7, level).answer == (fault or "none"))


@pytest.fixture
def folder(here: Path, command: Command) -> Path:
    """An exercise of level 2, exercise-7 in the working directory."""
    made = command("exercise", "new", "--seed", "7", "--level", "2", "--key", KEY)
    assert made.code == 0 and KEY not in made.out
    return here / "exercise-7"


def assert_silent(text: str) -> None:
    for fault in get_args(FaultName):
        assert fault not in text
        assert CARDS[fault].what not in " ".join(text.split())


def test_no_file_and_no_command_names_the_fault(folder: Path, command: Command):
    shutil.rmtree(folder)
    command("exercise", "new", "--seed", "7", "--level", "2", "--key", key_of("pad_visible", 2))
    train = ("train", "--config", "exercise-7/exercise.yaml", *SETS)
    for words in (train, (*train, "--resume")):
        trained = command(*words)
        assert trained.code == 0
        assert_silent(trained.out + trained.err)
    for line in COMMANDS:
        done = command(*line.split())
        assert done.code in (0, 1) or "a sealed exercise" in done.err, (line, done.err)
        assert_silent((done.out + done.err).replace("--break no_norm", ""))
    for path in Path().rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            assert not [name for name in get_args(FaultName) if name.encode() in raw], path


def test_the_sealed_fault_is_at_work_wherever_the_run_is_loaded(folder: Path, command: Command):
    """The run of an exercise is that of its fault by name, and its checks fail alike."""
    records = {}
    for name, more in (
        ("sealed", []),
        ("named", ["--break", read(folder).answer]),
        ("sound", ["--set", "fault=null"]),
    ):
        train = ("train", "--config", "exercise-7/exercise.yaml", *SETS, *more, "--out", name)
        assert command(*train).code == 0
        lines = (Path(name) / "metrics.jsonl").read_text().splitlines()
        records[name] = [json.loads(line) | {"elapsed_s": 0} for line in lines]
    assert records["sealed"] == records["named"] != records["sound"]
    check = ("--only", "pads,future", "--length", "7")
    assert [command("check", run, *check).code for run in ("sealed", "sound")] == [1, 0]
    # the doctor reads the records and not the seal
    told = command("doctor", "sealed").out
    path = Path("sealed/config.yaml")
    path.write_text(path.read_text().replace(f"fault: {read(folder).fault}", "fault: null"))
    assert load_config(path).fault is None and command("doctor", "sealed").out == told


def test_every_command_of_the_sheets_runs_in_the_folder_of_an_exercise(
    monkeypatch, command: Command
):
    """Those of all levels, each once."""
    lines = dict[str, None]()
    for level in ("1", "2", "3"):
        new = ("exercise", "new", "--seed", "11", "--level", level, "--key", "k", "--out", level)
        assert command(*new).code == 0
        sheet = Path(level, "SHEET.md").read_text()
        assert f"level {level}" in sheet.splitlines()[0]
        lines |= dict.fromkeys(re.findall(r"^ +toytrans (.*)$", sheet, re.MULTILINE))
    assert len(lines) >= 13
    monkeypatch.chdir("3")
    for line in lines:
        words = shlex.split(line.replace("FAULT", "no_causal"))
        more = {"train": SETS, "check": ["--length", "7"]}.get(words[0], [])
        done = command(*words, *more)
        finds = words[0] in ("check", "doctor") or words[:2] == ["exercise", "check"]
        assert done.code in ((0, 1) if finds else (0,)), (line, done.err)
    assert {path.name for path in Path("runs").iterdir()} == {"exercise", "sound", "suspect"}


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_check_names_what_fails_in_a_closed_exercise_and_not_why(form, command: Command):
    told = {}
    for closed in (False, True):
        sealed = seal("no_norm", bytes(8), closed=closed)
        given = ("--config", "textbook", "--set", f"fault={sealed}", "--only", "sublayers")
        done = command("check", *given, "--length", "7", *form)
        told[closed] = " ".join(done.out.split())
        assert done.code == 1 and "sublayers" in told[closed]
    for cause in ("nothing normalises", *(["reproduce"] if form == ("--json",) else ())):
        assert cause in told[False] and cause not in told[True]


def test_a_sheet_in_korean_has_the_same_commands(command: Command):
    for level in "123":
        sheets = []
        for language, *more in (("en",), ("ko",), ("en", "--closed"), ("ko", "--closed")):
            folder = f"{level}{language}{len(more)}"
            words = ("--level", level, "--language", language, "--key", KEY, "--out", folder)
            assert command("exercise", "new", *words, *more).code == 0
            sheets.append(Path(folder, "SHEET.md").read_text())
        assert len(set(sheets)) == 4 and f"{level}단계" in sheets[1]
        assert not any(bad in sheet for sheet in sheets for bad in ("None", "{"))
        lines = [re.findall(r"^ +toytrans .*$", sheet, re.MULTILINE) for sheet in sheets]
        assert lines[0] == lines[1] == lines[2] == lines[3]


# Answers, hints, grades ----------------------------------------------------------------------


def test_the_key_draws_the_exercise(command: Command, refused, folder: Path):
    assert draw(KEY, 7, 2) == draw(f" {KEY} ", 7, 2) == read(folder)
    seals = {draw(key, 7, 2).fault for key in (KEY, "other")} | {draw(KEY, 8, 2).fault}
    assert len(seals | {draw(KEY, 7, 2, 2).fault}) == 4
    assert "--key: empty" in refused("exercise", "new", "--key", " ")
    reveal = ("exercise", "reveal", "exercise-7", "--key")
    assert "a wrong key, or a changed exercise" in refused(*reveal, "x")
    assert command(*reveal, KEY).out.startswith(f"{read(folder).answer}\n")
    textbook = load_config(ROOT / "configs/textbook.yaml").model_dump()
    changed = {"fault": read(folder).fault, "seed": 7}
    assert load_config(folder / "exercise.yaml").model_dump() == textbook | changed


def test_answers_and_hints_are_judged_and_counted(folder: Path, command: Command, refused):
    here = ("exercise-7",)
    right = read(folder).answer
    wrong = next(str(fault) for fault in DRAWN[2] if fault != right)
    first = command("exercise", "check", wrong, *here)
    assert first.code == 1 and first.out.startswith("wrong") and right not in first.out
    second = command("exercise", "check", f" {right} ", *here)
    assert (second.code, second.out.replace(" ", "")) == (0, f"right:{right};answers:2\n")
    for typed in ("no_cusal", "NO_CAUSAL"):
        said = refused("exercise", "check", typed, *here)
        assert "no such fault; did you mean no_causal?" in said
    assert "an empty answer: no such fault" in refused("exercise", "check", " ", *here)
    given = [command("exercise", "hint", *here).out for _ in range(4)]
    assert [len(re.findall(r"^\d\. ", out, re.MULTILINE)) for out in given] == [1, 2, 3, 3]
    assert given[1].endswith("hints used: 2 of 3\n")
    assert given[3].endswith("hints used: 3 of 3; there are no more\n")
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert [line["answer"] for line in lines] == [wrong, right, None, None, None]


def test_only_the_last_hint_says_what_it_is():
    kinds = [fault for faults in KINDS.values() for fault in faults]
    assert sorted(kinds) == sorted(get_args(FaultName))
    assert {fault for drawn in DRAWN.values() for fault in drawn} == {*kinds, None}
    for level, drawn in DRAWN.items():
        for fault in drawn:
            hints = hints_of(draw(key_of(fault, level), 7, level))
            assert len(hints) == 3
            assert all(name not in " ".join(hints) for name in kinds)
            assert fault is None or CARDS[fault].what in hints[2]


def test_what_is_no_exercise_is_refused(folder: Path, refused):
    assert "no exercise here" in refused("exercise", "check", "no_norm")
    assert "no exercises in it" in refused("exercise", "grade", "exercise-7", "--key", KEY)
    assert "exists already; remove it" in refused("exercise", "new", "--seed", "7")
    hint = ("exercise", "hint", "exercise-7")
    about = folder / "exercise.json"
    sealed = read(folder).fault
    about.write_text(about.read_text().replace(sealed, sealed[:-4] + "AAAA"))
    assert "this seal was changed" in refused(*hint)
    about.write_text("[]")
    assert "not an exercise, or changed; take the one handed out" in refused(*hint)
    Path("file").write_text("")
    assert "cannot be written" in refused("exercise", "new", "--out", "file/x", "--class", "2")


def test_a_class_is_graded(command: Command, refused):
    """Three are right: Ann, one who was right at first, one with a remark and a folder deeper."""
    key = "\udcff"  # what a shell gives for a byte that is no UTF-8
    new = ("exercise", "new", "--class", "11", "--level", "3", "--key", key, "--out", "class")
    assert command(*new).code == 0
    folders = sorted(Path("class").iterdir())
    assert [path.name for path in folders] == [f"{n:02}" for n in range(1, 12)]
    truth = [read(path).answer for path in folders]
    assert len(set(truth)) > 1
    wrong = "no_causal"  # never drawn at level 3
    given = {"02": (wrong, truth[1], wrong), "03": (wrong,), "04": ()}
    for path, right in zip(folders, truth, strict=True):
        for name in given.get(path.name, (right,)):
            command("exercise", "check", name, str(path))
    command("exercise", "hint", "class/03")
    one, five, six, seven = (folders[n] / "exercise.json" for n in (0, 4, 5, 6))
    five.write_text(one.read_text().replace('"number": 1', '"number": 5'))
    six.write_text("{}")
    seven.unlink()
    shutil.rmtree(folders[7])
    shutil.copytree(folders[8], folders[7])
    ten, eleven = (folders[n] / "exercise.yaml" for n in (9, 10))
    ten.write_text(ten.read_text().replace("[2, 7]", "[2, 5]"))
    eleven.write_text(f"{eleven.read_text()}# a remark\n")
    folders[0].rename("class/=Ann, B")
    Path("class/Lee").mkdir()
    folders[10].rename("class/Lee/11")
    Path("class/12.zip").write_text("")
    Path("class/13/inner").mkdir(parents=True)

    grade = ("exercise", "grade", "class", "--key", key)
    done = command(*grade, "--csv", "grades.csv")
    assert done.code == 0
    assert "\n3 right, 1 wrong, 1 not answered, 6 with a note\n" in done.out
    assert done.err == "not graded, no exercise found in them: 12.zip, 13\n"
    rows = csv.DictReader(Path("grades.csv").read_text().splitlines())
    marks = {row["student"]: row for row in rows}
    right = [name for name, row in marks.items() if row["right"] == "yes"]
    assert right == ["02", "'=Ann, B", "Lee/11"]
    assert [marks["'=Ann, B"][k] for k in ("answers", "fault")] == ["1", truth[0]]
    assert [marks["02"][k] for k in ("answer", "answers", "hints")] == [truth[1], "2", "0"]
    assert marks["02"]["time"][:2] == "20"
    assert [marks["03"][k] for k in ("answer", "hints", "right")] == [wrong, "1", "no"]
    assert marks["04"]["answer"] == marks["04"]["right"] == marks["04"]["note"] == ""
    notes = {
        "05": "not the exercise that was handed out",
        "06": "class/06/exercise.json: not an exercise, or changed; take the one handed out",
        "07": "exercise.json is missing",
        "08": "another folder has this exercise too",
        "09": "another folder has this exercise too",
        "10": "exercise.yaml: not the config that was handed out",
    }
    assert {name: marks[name]["note"] for name in notes} == notes
    assert "wrong key" in refused(*grade[:-1], "x")


def test_grades_replace_grades_and_nothing_else(folder: Path, command: Command, refused):
    shutil.move(folder, "class/01")
    Path("notes.txt").write_text("mine")
    Path("link").symlink_to("notes.txt")
    command("exercise", "check", "no_causal", "class/01")
    answers = Path("class/01/progress.jsonl").read_text()
    grade = ("exercise", "grade", "class", "--key", KEY)
    for option in ("--csv", "--page"):
        for taken in ("notes.txt", "class/01/progress.jsonl", "class", "link"):
            assert f"{taken}: " in refused(*grade, option, taken)
        for _ in range(2):
            assert command(*grade, option, f"grades{option}").code == 0
    assert Path("notes.txt").read_text() == "mine"
    assert Path("class/01/progress.jsonl").read_text() == answers


def test_readable_answers_count_in_a_damaged_file(folder: Path, command: Command, refused):
    shutil.move(folder, "class/01")
    path = Path("class/01/progress.jsonl")
    truth = read(path.parent).answer
    for answer in ("no_norm", truth):
        command("exercise", "check", answer, "class/01")
    path.write_bytes(b"{\xff\n[]\n%s\n" % path.read_bytes())
    done = command("exercise", "grade", "class", "--key", KEY)
    assert "\n01: progress.jsonl: 3 lines cannot be read\n" in done.out
    assert done.out.endswith("\n1 right, 0 wrong, 0 not answered\n")
    assert command("exercise", "check", truth, "class/01").out.startswith("right")
    path.write_bytes(bytes(2**21))
    done = command("exercise", "grade", "class", "--key", KEY)
    assert truth in done.out and "0 not answered, 1 with a note" in done.out
    assert "progress.jsonl: larger than" in refused("exercise", "check", truth, "class/01")


def test_a_closed_exercise_tells_nothing_before_grading(command: Command, refused):
    new = ("exercise", "new", "--level", "2", "--closed", "--key", KEY, "--out")
    assert command(*new, "class", "--class", "2", "--answers", "2").code == 0
    truth = read(Path("class/01")).answer
    wrong = [str(fault) for fault in DRAWN[2] if fault != truth]
    check, grade = ("exercise", "check"), ("exercise", "grade", "class", "--key", KEY)
    again = "2 of 2 (given before, counts once)"
    for answer, count in ((wrong[0], "1 of 2"), (truth, "2 of 2"), (truth, again)):
        told = command(*check, answer, "class/01")
        said = f"written down: {answer}; answers: {count}; the grading judges it"
        assert (told.code, " ".join(told.out.split())) == (0, said)
    assert "not written down; all 2 answers are given" in refused(*check, wrong[2], "class/01")
    for _ in range(3):
        hints = command("exercise", "hint", "class/02").out
    assert "hints used: 2 of 2" in hints and "What is wrong" not in hints
    assert "1 right, 0 wrong, 1 not answered" in command(*grade, "--page", "class.html").out
    page = Path("class.html").read_text()
    assert all(text in page for text in ("1 right, 0 wrong", truth, "answers", "hints", "time"))
    path = Path("class/02/progress.jsonl")
    truth = read(path.parent).answer
    for fault in [fault for fault in DRAWN[2] if fault != truth][:2]:
        command(*check, str(fault), "class/02")
    added = path.read_text()
    path.write_text(added + re.sub('"answer":"[a-z_]*"', f'"answer":"{truth}"', added))  # by hand
    assert "1 right, 1 wrong" in command(*grade).out, "answers beyond the limit do not count"
    about = Path("class/01/exercise.json")
    about.write_text(about.read_text().replace('"closed": true', '"closed": false'))
    assert "01: not the exercise that was handed out" in command(*grade).out
    assert command(*new, "alone").code == 0
    assert read(Path("alone")).limit == 1, "of a closed exercise"
