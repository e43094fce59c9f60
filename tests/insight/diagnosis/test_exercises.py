"""Exercises: the fault is at work and named nowhere; answers, hints, grades."""

import csv
import errno
import fcntl
import json
import re
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest
from conftest import Command

import toytrans
from toytrans.config.load import load_config
from toytrans.config.names import FaultName
from toytrans.config.sealed import seal
from toytrans.insight.diagnosis import exercises
from toytrans.insight.diagnosis.exercises import DRAWN, KINDS, draw, hints_of, read
from toytrans.insight.diagnosis.fault_cards import CARDS

ROOT = Path(__file__).parents[3]
KEY = "red chalk"
SMALL = ["model.d_model=16", "model.d_ff=16", "data.batch_tokens=256", "data.valid_examples=20"]
SMALL += ["data.test_examples=20", "train.max_steps=4"]
COMMANDS = (
    "eval runs/exercise",
    "eval runs/exercise --json",
    "attention runs/exercise",
    "attention runs/exercise --json",
    "inspect-masks runs/exercise --all",
    "inspect-masks --config exercise-7/exercise.yaml --json",
    "trace runs/exercise",
    "trace leaks runs/exercise",
    "check runs/exercise --only pads,loss --length 7",
    "check runs/exercise --only pads,loss --length 7 --json",
    "check runs/exercise --only pads,loss --length 7 --format html",
    "check runs/exercise --only pads,loss --length 7 --format junit",
    "check --config exercise-7/exercise.yaml --only pads,loss --length 7",
    "runs",
    "compare runs/exercise",
    "translate runs/exercise 5",
    "export runs/exercise --format safetensors",
    "check runs/exercise --break no_norm",
    "exercise hint --exercise exercise-7",
)
"""Every command that shows a run."""

SETS = [word for text in SMALL for word in ("--set", text)]


def key_of(fault: FaultName | None, level: int) -> str:
    """A key that draws a fault."""
    keys = (f"key {n}" for n in range(1000))
    return next(key for key in keys if draw(key, 7, level).answer == (fault or "none"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> Path:
    """A working directory with an exercise of level 2 in exercise-7."""
    monkeypatch.chdir(tmp_path)
    made = command("exercise", "new", "--seed", "7", "--level", "2", "--key", KEY)
    assert made.code == 0 and KEY not in made.out
    return tmp_path / "exercise-7"


def assert_silent(text: str) -> None:
    for fault in get_args(FaultName):
        assert fault not in text
        assert CARDS[fault].what not in " ".join(text.split())


def test_no_file_and_no_command_names_the_fault(folder: Path, command: Command):
    for level, fault in ((2, "pad_visible"), (3, "loss_on_pads")):
        shutil.rmtree(folder)
        shutil.rmtree("runs", ignore_errors=True)
        new = ("exercise", "new", "--seed", "7", "--level", str(level))
        command(*new, "--key", key_of(fault, level))
        trained = command("train", "--config", "exercise-7/exercise.yaml", *SETS)
        assert trained.code == 0
        assert_silent(trained.out + trained.err)
        resume = command("train", "--config", "exercise-7/exercise.yaml", *SETS, "--resume")
        assert_silent(resume.out + resume.err)
        for line in COMMANDS if level == 2 else COMMANDS[::4]:
            done = command(*line.split())
            assert done.out or done.err, line
            assert_silent((done.out + done.err).replace("--break no_norm", ""))
        for path in Path().rglob("*"):
            if path.is_file():
                raw = path.read_bytes()
                assert not [name for name in get_args(FaultName) if name.encode() in raw], path


def test_the_sealed_fault_is_at_work_wherever_the_run_is_loaded(folder: Path, command: Command):
    """The run of an exercise is that of its fault by name, and its checks fail alike."""
    config = "exercise-7/exercise.yaml"
    fault = read(folder).answer
    assert command("train", "--config", config, *SETS).code == 0
    for name, more in (("named", ["--break", fault]), ("sound", ["--set", "fault=null"])):
        assert command("train", "--config", config, *SETS, *more, "--out", name).code == 0
    records = {
        run: [
            {k: v for k, v in json.loads(line).items() if k != "elapsed_s"}
            for line in (Path(run) / "metrics.jsonl").read_text().splitlines()
        ]
        for run in ("runs/exercise", "named", "sound")
    }
    assert records["runs/exercise"] == records["named"] != records["sound"]
    failed = {
        run: command("check", run, "--only", "pads,future", "--length", "7").out.splitlines()[-1]
        for run in ("runs/exercise", "sound")
    }
    assert "FAIL: future" in failed["runs/exercise"] and "PASS" in failed["sound"]


def test_the_doctor_reads_the_records_and_not_the_seal(folder: Path, command: Command):
    command("train", "--config", "exercise-7/exercise.yaml", *SETS)
    sealed = command("doctor", "runs/exercise")
    path = Path("runs/exercise/config.yaml")
    path.write_text(path.read_text().replace(f"fault: {read(folder).fault}", "fault: null"))
    assert load_config(path).fault is None
    assert command("doctor", "runs/exercise").out == sealed.out


def test_the_config_is_the_textbook_with_a_seal(folder: Path):
    given, textbook = (
        load_config(path).model_dump()
        for path in (folder / "exercise.yaml", ROOT / "configs/textbook.yaml")
    )
    assert given.pop("fault") == read(folder).fault and textbook.pop("fault") is None
    assert given.pop("seed") == 7 and textbook.pop("seed") == 0
    assert given == textbook


def test_answers_are_judged_and_counted(folder: Path, command: Command, refused):
    here = ("--exercise", "exercise-7")
    right = read(folder).answer
    wrong = next(fault for fault in DRAWN[2] if fault != right)
    first = command("exercise", "check", str(wrong), *here)
    assert first.code == 1 and first.out.startswith("wrong") and right not in first.out
    second = command("exercise", "check", right, *here)
    assert second.code == 0 and second.out == f"right: {right}; answers: 2\n"
    assert "no such fault; did you mean no_causal?" in refused(
        "exercise", "check", "no_cusal", *here
    )
    assert "did you mean no_causal?" in refused("exercise", "check", "NO_CAUSAL", *here)
    assert "an empty answer: no such fault" in refused("exercise", "check", " ", *here)
    given = [command("exercise", "hint", *here) for _ in range(5)]
    assert [answer.code for answer in given] == [0] * 5
    assert [re.findall(r"^(\d)\. ", answer.out, re.MULTILINE) for answer in given] == [
        ["1"],
        ["1", "2"],
        *[["1", "2", "3"]] * 3,
    ]
    last = [answer.out.splitlines()[-1] for answer in given]
    assert last[:2] == ["hints used: 1 of 3", "hints used: 2 of 3"]
    assert last[2:] == ["hints used: 3 of 3; there are no more"] * 3
    progress = json.loads((folder / "progress.json").read_text())
    assert len(progress.pop("times")) == 2
    assert progress == {"answers": [wrong, right], "hints": 3}


def test_every_exercise_has_three_hints_and_only_the_last_says_what_it_is():
    kinds = [fault for faults in KINDS.values() for fault in faults]
    assert sorted(kinds) == sorted(get_args(FaultName))
    assert {fault for drawn in DRAWN.values() for fault in drawn} == {*kinds, None}
    for level, drawn in DRAWN.items():
        for fault in drawn:
            hints = hints_of(draw(key_of(fault, level), 7, level))
            assert len(hints) == 3
            assert all(name not in " ".join(hints) for name in kinds)
            assert fault is None or CARDS[fault].what in hints[2]


def test_the_key_gives_the_same_exercise_again_and_another_key_another(command: Command, refused):
    assert draw(KEY, 7, 2) == draw(f" {KEY} ", 7, 2)
    seals = {draw(key, 7, 2).fault for key in (KEY, "other")} | {draw(KEY, 8, 2).fault}
    assert len(seals | {draw(KEY, 7, 2, 2).fault}) == 4
    assert "--key: empty" in refused("exercise", "new", "--key", " ")


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_command_of_the_sheet_runs_in_the_folder_of_the_exercise(
    level: int, tmp_path: Path, monkeypatch, command: Command
):
    monkeypatch.chdir(tmp_path)
    new = ("exercise", "new", "--seed", "11", "--level", str(level), "--key", "k", "--out", "e")
    assert command(*new).code == 0
    monkeypatch.chdir("e")
    sheet = Path("SHEET.md").read_text()
    assert f"level {level}" in sheet.splitlines()[0] and "--run" not in sheet
    assert max(map(len, sheet.splitlines())) <= 140
    lines = re.findall(r"^ +toytrans (.*)$", sheet, re.MULTILINE)
    assert len(lines) >= 9
    for line in lines:
        words = shlex.split(line.replace("FAULT", "no_causal"))
        more = {"train": SETS, "check": ["--length", "7"]}.get(words[0], [])
        done = command(*words, *more)
        finds = words[0] in ("check", "doctor") or words[:2] == ["exercise", "check"]
        assert done.code in ((0, 1) if finds else (0,)), (line, done.err)
    assert {path.name for path in Path("runs").iterdir()} == {"exercise", "sound", "suspect"}


def test_only_the_right_key_reveals(folder: Path, command: Command, refused):
    here = ("--exercise", "exercise-7")
    assert "a wrong key, or a changed exercise" in refused(
        "exercise", "reveal", "--key", "x", *here
    )
    done = command("exercise", "reveal", "--key", KEY, *here)
    assert done.code == 0 and f"\n{read(folder).answer}\n" in done.out


NUMBERS = ["01", "02", "03", "04", "05", "06"]


def test_a_class_is_graded_to_csv(tmp_path: Path, monkeypatch, command: Command, refused):
    monkeypatch.chdir(tmp_path)
    new = ("exercise", "new", "--class", "6", "--level", "3", "--key", KEY, "--out", "class")
    assert command(*new).code == 0
    assert sorted(path.name for path in Path("class").iterdir()) == NUMBERS
    truth = {number: read(Path("class") / number).answer for number in NUMBERS}
    assert len(set(truth.values())) > 1
    wrong = "no_causal"  # never drawn at level 3
    command("exercise", "check", truth["01"], "--exercise", "class/01")
    command("exercise", "check", wrong, "--exercise", "class/02")
    command("exercise", "check", truth["02"], "--exercise", "class/02")
    command("exercise", "check", wrong, "--exercise", "class/02")  # out of curiosity
    command("exercise", "check", wrong, "--exercise", "class/03")
    command("exercise", "hint", "--exercise", "class/03")
    Path("class/05/exercise.json").write_text(  # another student's, to which the answer is known
        Path("class/01/exercise.json").read_text().replace('"number": 1', '"number": 5')
    )
    command("exercise", "check", truth["01"], "--exercise", "class/05")
    Path("class/06/exercise.json").write_text("{}")
    Path("class/01").rename("class/=Ann, B")

    done = command("exercise", "grade", "class", "--key", KEY, "--csv", "grades.csv")
    assert done.code == 0 and "2 of 6 right" in done.out
    assert "\n05: not the exercise that was handed out\n06: " in done.out
    marks = {
        row["student"]: row for row in csv.DictReader(Path("grades.csv").read_text().splitlines())
    }
    ann = marks["'=Ann, B"]
    assert (ann["right"], ann["answers"], ann["fault"]) == ("yes", "1", truth["01"])
    assert [marks["02"][k] for k in ("right", "answers", "hints")] == ["yes", "3", "0"]
    assert marks["02"]["answer"] == truth["02"] and marks["02"]["time"][:2] == "20"
    assert [marks["03"][k] for k in ("right", "answer", "hints")] == ["no", wrong, "1"]
    assert marks["04"]["answer"] == marks["04"]["note"] == "" and marks["04"]["right"] == "no"
    assert marks["05"]["note"] == "not the exercise that was handed out"
    assert marks["05"]["right"] == "no" and marks["05"]["fault"] == ""
    assert "not an exercise, or changed" in marks["06"]["note"]
    assert "wrong key" in refused("exercise", "grade", "class", "--key", "x")
    table = Path("grades.csv").read_text()
    Path("grades.csv").write_text(table.splitlines(True)[0] + "of yesterday")
    again = command("exercise", "grade", "class", "--key", KEY, "--csv", "grades.csv")
    assert again.code == 0 and Path("grades.csv").read_text() == table
    Path("folder").mkdir()
    Path("link").symlink_to("grades.csv")
    for name in ("folder", "link"):
        grade = ("exercise", "grade", "class", "--key", KEY, "--csv", name)
        assert f"--csv {name}: " in refused(*grade)
    assert Path("grades.csv").read_text() == table


def test_what_is_no_exercise_is_refused(folder: Path, command: Command, refused):
    assert "no exercise here" in refused("exercise", "check", "no_norm")
    assert "no exercises in it" in refused("exercise", "grade", "exercise-7", "--key", KEY)
    assert "exists already; remove it" in refused("exercise", "new", "--seed", "7")
    about = folder / "exercise.json"
    sealed = read(folder).fault
    about.write_text(about.read_text().replace(sealed, sealed[:-4] + "AAAA"))
    assert "this seal was changed" in refused("exercise", "hint", "--exercise", "exercise-7")
    about.write_text("[]")
    for words in (("hint",), ("check", "no_norm"), ("reveal", "--key", KEY)):
        error = refused("exercise", *words, "--exercise", "exercise-7")
        assert "not an exercise, or changed; take the one handed out" in error
    Path("file").write_text("")
    assert "cannot be written" in refused("exercise", "new", "--out", "file/x")


def test_a_closed_exercise_tells_nothing_before_grading(
    tmp_path: Path, monkeypatch, command: Command, refused
):
    monkeypatch.chdir(tmp_path)
    new = ("exercise", "new", "--level", "2", "--closed", "--key", KEY, "--out")
    assert command(*new, "class", "--class", "2", "--answers", "3").code == 0
    assert "You have 3 answers. Whether it is right" in Path("class/01/SHEET.md").read_text()
    truth = read(Path("class/01")).answer
    wrong = [fault for fault in DRAWN[2] if fault != truth]
    given = [wrong[0], truth, wrong[1]]
    answers = [command("exercise", "check", a, "--exercise", "class/01") for a in given]
    assert [done.code for done in answers] == [0, 0, 0]
    assert [done.out.replace(a, "X") for a, done in zip(given, answers, strict=True)] == [
        f"written down: X; answers: {n} of 3; the grading judges it\n" for n in (1, 2, 3)
    ]
    refusal = refused("exercise", "check", wrong[2], "--exercise", "class/01")
    assert "not written down; all 3 answers are given" in refusal
    for _ in range(4):
        hints = command("exercise", "hint", "--exercise", "class/02").out
    assert "hints used: 2 of 2" in hints and "What is wrong" not in hints
    grade = ("exercise", "grade", "class", "--key", KEY)
    done = command(*grade, "--page", "class.html")
    assert done.code == 0 and "1 of 2 right" in done.out
    page = Path("class.html").read_text()
    assert all(text in page for text in ("1 of 2 right", truth, "answers", "hints", "time"))
    assert read(Path("class/01")).limit == 3
    assert command(*grade, "--page", "class.html").code == 0, "again"
    about = Path("class/01/exercise.json")
    about.write_text(about.read_text().replace('"closed": true', '"closed": false'))
    assert "01: not the exercise that was handed out" in command(*grade).out
    assert command(*new, "alone").code == 0
    assert read(Path("alone")).limit == 1, "of a closed exercise"


def test_answers_beyond_the_limit_do_not_count(tmp_path: Path, monkeypatch, command: Command):
    monkeypatch.chdir(tmp_path)
    new = ("exercise", "new", "--class", "1", "--answers", "1", "--key", KEY, "--out", "class")
    assert command(*new).code == 0
    truth = read(Path("class/01")).answer
    wrong = next(fault for fault in DRAWN[1] if fault != truth)
    assert command("exercise", "check", wrong, "--exercise", "class/01").out == (
        f"wrong: it is not {wrong}; answers so far: 1 of 1\n"
    )
    path = Path("class/01/progress.json")
    about = json.loads(path.read_text())
    about["answers"].append(truth)  # by hand
    path.write_text(json.dumps(about))
    assert "0 of 1 right" in command("exercise", "grade", "class", "--key", KEY).out


def test_check_names_what_fails_in_a_closed_exercise_and_not_why(
    tmp_path: Path, monkeypatch, command: Command
):
    monkeypatch.chdir(tmp_path)
    out = {}
    for name, more in (("open", ()), ("closed", ("--closed",))):
        key = next(
            k
            for k in map(str, range(1000))
            if draw(k, 7, 3, closed=bool(more), limit=1 if more else None).answer == "no_norm"
        )
        new = ("exercise", "new", "--seed", "7", "--level", "3", "--key", key, "--out", name)
        assert command(*new, *more).code == 0
        chosen = ("--only", "sublayers", "--length", "7")
        check = ("check", "--config", f"{name}/exercise.yaml", *chosen)
        forms = {"text": (), "json": ("--json",), "github": ("--format", "github")}
        for form, options in forms.items():
            done = command(*check, *options)
            assert done.code == 1
            out[name, form] = done.out
    failed = re.search(r"FAIL  sublayers.*\n +(.*)\n", out["open", "text"])
    assert failed
    cure = failed[1]
    for form in ("text", "json", "github"):
        told = " ".join(out["closed", form].split())
        assert cure[:30] in " ".join(out["open", form].split())
        assert cure[:30] not in told and "is not told in a closed exercise" in told
    assert "FAIL  sublayers" in out["closed", "text"]
    sets = (word for setting in SMALL for word in ("--set", setting))
    assert command("train", "closed/exercise.yaml", "--out", "run", *sets).code == 0
    report = toytrans.check(toytrans.load("run"), length=7)
    hidden = [result for result in report.results if result.verdict != "PASS"]
    assert "sublayers" in {result.name for result in hidden}
    assert {r.message for r in hidden} == {"why is not told in a closed exercise"}
    assert not any(result.details or result.parts for result in hidden)
    assert cure[:30] not in str(report)
    sealed = seal("pad_visible", bytes(8), closed=True)
    chosen = ("--set", f"fault={sealed}", "--only", "pads", "--length", "7", "--json")
    check = command("check", "--config", "textbook", *chosen)
    (pads,) = json.loads(check.out)["checks"]
    assert pads["verdict"] == "FAIL" and pads["words"] == hidden[0].message
    assert not {"where", "example", "reproduce"} & set(pads)


def test_a_sheet_in_korean_has_the_same_commands(tmp_path: Path, monkeypatch, command: Command):
    monkeypatch.chdir(tmp_path)
    for level in "123":
        sheets = []
        for language, *more in (("en",), ("ko",), ("en", "--closed"), ("ko", "--closed")):
            folder = f"{level}{language}{len(more)}"
            words = ("--level", level, "--language", language, "--key", KEY, "--out", folder)
            assert command("exercise", "new", *words, *more).code == 0
            sheets.append(Path(folder, "SHEET.md").read_text())
        english, korean, *closed = sheets
        lines = [re.findall(r"^ +toytrans .*$", sheet, re.MULTILINE) for sheet in sheets]
        assert lines[0] == lines[1] == lines[2] == lines[3]
        assert f"{level}단계" in korean and "None" not in "".join(sheets)
        assert "{" not in "".join(sheets) and max(map(len, korean.splitlines())) <= 100
        assert closed[1] != korean and closed[0] != english


def test_a_copied_and_a_lost_exercise_are_marked(tmp_path: Path, monkeypatch, command: Command):
    monkeypatch.chdir(tmp_path)
    key = "\udcff"  # what a shell gives for a byte that is no UTF-8
    new = ("exercise", "new", "--class", "4", "--key", key, "--out", "class")
    assert command(*new).code == 0
    command("exercise", "check", read(Path("class/01")).answer, "--exercise", "class/01")
    shutil.rmtree("class/02")
    shutil.copytree("class/01", "class/02")
    Path("class/03/exercise.json").unlink()
    Path("class/04").rename("class/\udcfe")
    done = command("exercise", "grade", "class", "--key", key, "--csv", "grades.csv")
    assert done.code == 0 and "0 of 4 right" in done.out
    rows = Path("grades.csv").read_text(errors="surrogateescape").splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["01", "02", "03", "\udcfe"]
    copied = "another folder has this exercise too"
    assert all(row.endswith(copied) for row in rows[:2]) and "exercise.json is missing" in rows[2]


def test_a_changed_config_is_marked(tmp_path: Path, monkeypatch, command: Command):
    monkeypatch.chdir(tmp_path)
    new = ("exercise", "new", "--class", "6", "--level", "2", "--key", KEY, "--out", "class")
    assert command(*new).code == 0
    for number in NUMBERS:
        folder = f"class/{number}"
        command("exercise", "check", read(Path(folder)).answer, "--exercise", folder)
    configs = [Path("class") / number / "exercise.yaml" for number in NUMBERS]
    configs[1].unlink()
    configs[2].write_text(configs[2].read_text().replace("[2, 7]", "[2, 5]"))
    configs[3].write_text(configs[0].read_text())
    configs[4].write_text("[")
    configs[5].write_text(f"{configs[5].read_text()}# a remark\n")
    done = command("exercise", "grade", "class", "--key", KEY, "--csv", "grades.csv")
    assert done.code == 0 and "2 of 6 right" in done.out
    rows = list(csv.DictReader(Path("grades.csv").read_text().splitlines()))
    assert [row["right"] for row in rows] == ["yes", "no", "no", "no", "no", "yes"]
    other = "exercise.yaml: not the config that was handed out"
    notes = [row["note"] for row in rows]
    assert notes[:4] == ["", "exercise.yaml is missing", other, other] and notes[5] == ""
    assert "class/05/exercise.yaml:" in notes[4] and "not YAML" in notes[4]


def test_what_a_class_holds_besides_exercises_is_named(tmp_path: Path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    new = ("exercise", "new", "--class", "3", "--key", KEY, "--out", "class")
    assert command(*new).code == 0
    grade = ("exercise", "grade", "class", "--key", KEY)
    assert "not graded" not in command(*grade).err
    Path("class/02").rename("inner")
    Path("class/02").mkdir()
    Path("inner").rename("class/02/inner")  # as some archives are unpacked
    Path("class/04.zip").write_text("")
    done = command(*grade)
    assert done.code == 0 and "0 of 2 right" in done.out
    assert done.err == "not graded, no exercise found in them: 02, 04.zip\n"


def test_an_exercise_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exercises, "write_json", full)
    for students in ((), ("--class", "2")):
        error = refused("exercise", "new", "--key", "k", "--out", "e", *students)
        assert "--out e: cannot be written (No space left on device)" in error
        assert list(tmp_path.iterdir()) == []
    assert "File name too long" in refused("exercise", "new", "--class", "2", "--out", "a" * 300)


def test_answers_given_at_once_are_all_kept(folder: Path):
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: exercises.answer(folder, "no_norm"), range(12)))
    assert exercises.progress(folder).answers[-12:] == ["no_norm"] * 12


def test_grades_replace_grades_and_nothing_else(folder: Path, command: Command, refused):
    shutil.move(folder, "class/01")
    Path("notes.txt").write_text("mine")
    command("exercise", "check", " no_causal ", "--exercise", "class/01")
    answers = Path("class/01/progress.json").read_text()
    assert "no_causal" in answers
    grade = ("exercise", "grade", "class", "--key", KEY)
    for option in ("--csv", "--page"):
        for taken in ("notes.txt", "class/01/progress.json"):
            assert f"{option} {taken}: exists already" in refused(*grade, option, taken)
        for _ in range(2):
            assert command(*grade, option, f"grades{option}").code == 0
    assert Path("notes.txt").read_text() == "mine"
    assert Path("class/01/progress.json").read_text() == answers


def test_an_exercise_that_another_command_holds_is_named(folder: Path, refused, monkeypatch):
    monkeypatch.setattr(exercises, "SECONDS_BETWEEN_TRIES", 0.001)
    with (folder / "exercise.json").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        said = refused("exercise", "hint", "--exercise", str(folder))
    assert "another command is at this exercise" in said


def test_a_right_key_is_not_called_wrong_where_progress_is_damaged(folder: Path, command: Command):
    shutil.move(folder, "class/01")
    Path("class/01/progress.json").write_text("{")
    done = command("exercise", "grade", "class", "--key", KEY)
    assert done.code == 0 and "0 of 1 right" in done.out and "progress.json" in done.out
