"""Exercises: the fault is at work and named nowhere; answers are judged, alone and in a class."""

import csv
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import ROOT, Command

from toytrans.config.fault_cards import CARDS
from toytrans.config.faults import FAULTS, decoded_fault, hide
from toytrans.config.load import load_config
from toytrans.exercises.exercise import DRAWN, draw

pytestmark = pytest.mark.usefixtures("here")
SMALL = ["model.d_model=16", "model.d_ff=16", "data.batch_tokens=256", "data.valid_examples=20"]
SMALL += ["data.test_examples=20", "train.max_steps=4"]
CHECK = "--only pads,steps,loss --length 7"
COMMANDS = (
    "eval runs/exercise --json",
    "trace runs/exercise",
    "trace runs/exercise --json",
    "trace runs/exercise --panel heads",
    "inspect-masks runs/exercise --panel all",
    "inspect-masks --config exercise-7/exercise.yaml --json",
    "inspect-masks --config exercise-7/exercise.yaml --html masks.html",
    "demo decoding runs/exercise",
    f"check runs/exercise {CHECK}",
    f"check --config exercise-7/exercise.yaml {CHECK} --json",
    "runs",
    "eval runs/exercise",
    "translate runs/exercise 5",
    "export runs/exercise --format safetensors",
    "check runs/exercise --break no_norm",
    "exercise answer no_norm exercise-7",
)
"""Every command that shows a run, and a wrong answer."""

SETS = [word for text in SMALL for word in ("--set", text)]


def fault_in(folder: Path | str) -> str:
    """The right answer to an exercise, from its config."""
    return decoded_fault(load_config(Path(folder, "exercise.yaml")).fault) or "none"


def other_than(fault: str) -> str:
    return next(name for name in FAULTS if name != fault)


@pytest.fixture
def folder(here: Path, command: Command) -> Path:
    """An exercise of level 2, exercise-7 in the working directory."""
    assert command("exercise", "new", "--seed", "7", "--level", "2").code == 0
    return here / "exercise-7"


@pytest.fixture
def small_class(here: Path, command: Command) -> Path:
    """A class of three, in the folder class."""
    new = ("exercise", "new", "--class", "3", "--seed", "7", "--level", "2", "--out", "class")
    assert command(*new).code == 0
    return here / "class"


def assert_silent(text: str) -> None:
    for fault in FAULTS:
        assert fault not in text
        assert CARDS[fault].what not in " ".join(text.split())


# What an exercise is -------------------------------------------------------------------------


def test_no_file_and_no_command_names_the_fault(command: Command):
    """Of a fault that no finding of the doctor looks like."""
    seed = next(seed for seed in range(100) if draw(seed, 2) == "pad_visible")
    new = ("exercise", "new", "--seed", str(seed), "--level", "2", "--out", "exercise-7")
    assert command(*new).code == 0
    train = ("train", "--config", "exercise-7/exercise.yaml", *SETS)
    for words in (train, (*train, "--resume")):
        trained = command(*words)
        assert trained.code == 0
        assert_silent(trained.out + trained.err)
    for line in COMMANDS:
        done = command(*line.split())
        assert done.code in (0, 1) or "an exercise" in done.err, (line, done.err)
        assert_silent((done.out + done.err).replace("no_norm", ""))
    for path in Path().rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            assert not [name for name in FAULTS if name.encode() in raw], path


def test_the_hidden_fault_is_at_work_wherever_the_run_is_loaded(folder: Path, command: Command):
    """The run of an exercise is that of its fault by name, and its checks fail alike."""
    records = {}
    for name, more in (
        ("hidden", []),
        ("named", ["--break", fault_in(folder)]),
        ("sound", ["--set", "fault=null"]),
    ):
        train = ("train", "--config", "exercise-7/exercise.yaml", *SETS, *more, "--out", name)
        assert command(*train).code == 0
        lines = (Path(name) / "metrics.jsonl").read_text().splitlines()
        records[name] = [json.loads(line) | {"elapsed_s": 0, "evaluation_s": 0} for line in lines]
    assert records["hidden"] == records["named"] != records["sound"]
    check = ("--only", "labels", "--length", "7")
    assert [command("check", run, *check).code for run in ("hidden", "sound")] == [1, 0]
    # the doctor of an exercise reads the records, and not the name
    told = command("doctor", "hidden")
    assert "an exercise: no remedy that changes a key or trains longer" in told.err
    told = told.out
    path = Path("hidden/resolved.yaml")
    path.write_text(re.sub(r"fault: hidden-\w+", "fault: null", path.read_text()))
    assert load_config(path).fault is None and command("doctor", "hidden").out == told


def test_a_seed_draws_the_exercise_and_no_seed_a_new_one(folder: Path, command: Command):
    for out in ("again", "other"):
        seed = "7" if out == "again" else "8"
        command("exercise", "new", "--seed", seed, "--level", "2", "--out", out)
    texts = {out: Path(out, "exercise.yaml").read_text() for out in (folder, "again", "other")}
    assert texts[folder] == texts["again"] != texts["other"]
    textbook = load_config(ROOT / "configs/textbook.yaml").model_dump()
    changed = {"fault": hide(fault_in(folder)), "seed": 7}
    assert load_config(folder / "exercise.yaml").model_dump() == textbook | changed
    for _ in range(2):
        assert command("exercise", "new").code == 0
    drawn = {path.name for path in Path().glob("exercise-*")} - {"exercise-7"}
    assert len(drawn) == 2


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_level_draws_all_of_its_faults_about_equally_often(level):
    drawn = [draw(7, level, number) for number in range(1, 1001)]
    assert set(drawn) == set(DRAWN[level])
    assert min(drawn.count(fault) for fault in DRAWN[level]) > 0.7 * 1000 / len(DRAWN[level])


def test_the_teacher_chooses_what_is_drawn(command: Command, refused):
    new = ("exercise", "new", "--class", "12", "--seed", "3", "--out")
    assert command(*new, "class", "--faults", "no_causal, pad_visible,none").code == 0
    drawn = {fault_in(path) for path in Path("class").iterdir()}
    assert drawn == {"no_causal", "pad_visible", "none"}
    assert "`none`" in Path("class/01/SHEET.md").read_text()
    said = refused(*new, "other", "--faults", "no_causal,pad_visble")
    assert "pad_visble: no such fault; did you mean pad_visible?" in said
    assert not Path("other").exists()


def test_every_fault_is_drawn_at_some_level():
    assert {fault for drawn in DRAWN.values() for fault in drawn} == {*FAULTS, None}


def test_every_command_of_the_sheets_runs_in_the_folder_of_an_exercise(
    monkeypatch, command: Command
):
    """Those of all levels, each once."""
    lines = dict[str, None]()
    for level in ("1", "2", "3"):
        new = ("exercise", "new", "--seed", "11", "--level", level, "--out", level)
        assert command(*new).code == 0
        sheet = Path(level, "SHEET.md").read_text()
        assert f"level {level}" in sheet.splitlines()[0]
        lines |= dict.fromkeys(re.findall(r"^ +toytrans (.*)$", sheet, re.MULTILINE))
    assert len(lines) >= 12
    monkeypatch.chdir("3")
    for line in lines:
        words = shlex.split(line.replace("FAULT", "no_causal"))
        more = {"train": SETS, "check": ["--length", "7"]}.get(words[0], [])
        done = command(*words, *more)
        finds = words[0] in ("check", "doctor") or words[:2] == ["exercise", "answer"]
        assert done.code in ((0, 1) if finds else (0,)), (line, done.err)
    assert {path.name for path in Path("runs").iterdir()} == {"exercise", "sound", "suspect"}


def test_a_sheet_in_korean_has_the_same_commands(command: Command):
    for level in "123":
        sheets = []
        for language in ("en", "ko"):
            alone, of_class = f"{level}{language}", f"{level}{language}-class"
            words = ("exercise", "new", "--level", level, "--language", language, "--out")
            assert (
                command(*words, alone).code == command(*words, of_class, "--class", "1").code == 0
            )
            sheets += [Path(alone, "SHEET.md").read_text()]
            sheets += [Path(of_class, "01/SHEET.md").read_text()]
        assert len(set(sheets)) == 4 and f"{level}단계" in sheets[2]
        assert not any(bad in sheet for sheet in sheets for bad in ("None", "{"))
        lines = [re.findall(r"^ +toytrans .*$", sheet, re.MULTILINE) for sheet in sheets]
        assert lines[0] == lines[1] == lines[2] == lines[3]


def test_a_student_in_the_wrong_folder_is_told_the_right_one(
    small_class: Path, monkeypatch, command: Command, refused
):
    monkeypatch.chdir(small_class)
    said = refused("train", "--config", "exercise.yaml")
    assert "there is one in 01 or another of 3 folders; change to it, or name 01/exer" in said
    assert not Path("runs").exists()
    monkeypatch.chdir("01")
    done = command("doctor")
    assert done.code == 0 and "taken by name only: `toytrans doctor runs/exercise`" in done.err


def test_a_saved_model_under_another_name_is_answered_with_the_right_names(here: Path, refused):
    for name in ("config.yaml", "model (1).safetensors"):
        Path(name).write_text("")
    assert "is a folder with config.yaml and model.safetensors, so named" in refused("eval", ".")


# Alone ---------------------------------------------------------------------------------------


def test_alone_an_answer_is_judged_at_once(folder: Path, command: Command, refused):
    right = fault_in(folder)
    before = sorted(folder.iterdir())
    wrong = command("exercise", "answer", other_than(right), "exercise-7")
    assert wrong.code == 1 and wrong.out.startswith(f"wrong: it is not {other_than(right)}; ")
    assert right not in wrong.out and all(check in wrong.out for check in CARDS[right].checks)
    told = command("exercise", "answer", f" {right} ", "exercise-7")
    assert (told.code, told.out.splitlines()[:2]) == (0, ["right:", right])
    assert CARDS[right].what in " ".join(told.out.split())
    assert sorted(folder.iterdir()) == before, "nothing is written down"
    for typed in ("no_cusal", "NO_CAUSAL"):
        said = refused("exercise", "answer", typed, "exercise-7")
        assert "no such fault; did you mean no_causal?" in said
    assert "an empty answer: no such fault" in refused("exercise", "answer", " ", "exercise-7")
    said = refused("exercise", "answer", "none", "exercise-7")
    assert "something is broken in this exercise" in said
    assert "for a class" in refused("exercise", "answer", right, "exercise-7", "--because", "x")


def test_nothing_broken_is_an_answer_too(command: Command):
    seed = next(seed for seed in range(100) if draw(seed, 3) is None)
    command("exercise", "new", "--level", "3", "--seed", str(seed), "--out", "sound")
    told = [command("exercise", "answer", name, "sound") for name in ("no_norm", "none")]
    assert [each.code for each in told] == [1, 0]
    assert told[0].out.startswith("wrong: it is not no_norm; ")
    assert told[1].out == "right: nothing is broken\n"


def test_who_gives_up_is_told_the_fault(folder: Path, monkeypatch, command: Command):
    right = fault_in(folder)
    monkeypatch.chdir(folder)
    told = command("exercise", "grade")
    assert told.code == 0 and re.search(rf"exercise-7 +- +- +{right}\b", told.out)
    assert told.err == ""


def test_what_is_no_exercise_is_refused(folder: Path, refused):
    assert "no exercise here" in refused("exercise", "answer", "no_norm")
    Path("empty").mkdir()
    assert "no exercises in it" in refused("exercise", "grade", "empty")
    assert "no such folder" in refused("exercise", "grade", "nowhere", "--class", "exercise-7")
    assert "exists already; remove it" in refused("exercise", "new", "--seed", "7")
    about = folder / "exercise.json"
    said = about.read_text()
    for text in (said.replace("hidden-", "hidden-x"), said.replace("hidden-", ""), "[]"):
        about.write_text(text)
        told = refused("exercise", "answer", "no_norm", "exercise-7")
        assert "exercise.json: not an exercise, or changed; take the one handed out" in told
    Path("file").write_text("")
    assert "cannot be written" in refused("exercise", "new", "--out", "file/x", "--class", "2")


# A class -------------------------------------------------------------------------------------


def test_in_a_class_the_last_answer_is_written_down_and_not_judged(
    small_class: Path, command: Command
):
    right = fault_in("class/01")
    for name in (right, other_than(right)):
        told = command("exercise", "answer", name, "class/01")
        assert told.code == 0
        assert told.out == f"written down: {name}; it is judged when the class is graded\n"
        assert json.loads(Path("class/01/answer.json").read_text())["answer"] == name
    done = command("exercise", "grade", "class")
    assert done.code == 1 and "3 students: 0 right, 1 wrong, 2 not answered" in done.out


def test_a_class_is_graded(monkeypatch, command: Command):
    monkeypatch.setenv("COLUMNS", "120")
    new = ("exercise", "new", "--class", "11", "--level", "3", "--seed", "5", "--out", "class")
    assert command(*new).code == 0
    folders = sorted(Path("class").iterdir())
    assert [path.name for path in folders] == [f"{n:02}" for n in range(1, 12)]
    truth = [fault_in(path) for path in folders]
    assert len(set(truth)) > 3
    for path, right in zip(folders, truth, strict=True):
        given = {"03": "no_causal", "04": None}.get(path.name, right)  # level 3 never draws it
        if given is not None:
            command("exercise", "answer", given, str(path))
    (folders[4] / "exercise.json").write_text("{}")
    (folders[5] / "answer.json").write_bytes(b'{"answer": "\xff')
    (folders[6] / "exercise.json").unlink()
    folders[0].rename("class/=Ann, B")
    Path("class/Lee").mkdir()
    folders[10].rename("class/Lee/11")
    Path("class/12.zip").write_text("")
    Path("class/13/inner").mkdir(parents=True)

    done = command("exercise", "grade", "class", "--csv", "grades.csv", "--page", "grades.html")
    assert done.code == 1, "some have not answered"
    assert done.out.endswith("\n10 students: 6 right, 1 wrong, 3 not answered\n")
    assert "class in them: 07/answer.json, 12.zip, 13\n" in done.err
    assert Path("grades.csv").read_bytes().startswith(b"\xef\xbb\xbf"), "Excel asks for it"
    rows = list(csv.reader(Path("grades.csv").read_text("utf-8-sig").splitlines()))
    marks = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}
    right = [name for name, row in marks.items() if row["right"] == "yes"]
    assert right == ["02", "08", "09", "10", "'=Ann, B", "Lee/11"]
    assert [marks["'=Ann, B"][key] for key in ("answer", "fault")] == [truth[0], truth[0]]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", marks["02"]["time"])
    assert [marks["03"][key] for key in ("answer", "right")] == ["no_causal", "no"]
    assert [marks["04"][key] for key in ("answer", "right", "fault")] == ["", "", truth[3]]
    notes = {
        "05": "class/05/exercise.json: not an exercise, or changed; take the one handed out",
        "06": "class/06/answer.json: not an answer; ask for it again",
    }
    noted = {name: row["note"] for name, row in marks.items() if row["note"]}
    assert noted == notes | {"04": "no answer"}
    assert all(f"\n{name}: {note}\n" in done.out for name, note in notes.items())
    assert cells_of(Path("grades.html").read_text()) == [
        [cell.removeprefix("'") for cell in row] for row in rows
    ]


def test_grades_are_by_the_class_that_was_handed_out(command: Command):
    """Nothing that a student changes, copies, loses or sends twice changes another one's row."""
    new = ("exercise", "new", "--class", "8", "--seed", "7", "--level", "2", "--out", "class")
    told = command(*new)
    assert "toytrans exercise grade COLLECTED --class class" in told.out
    right = {n: fault_in(f"class/{n}") for n in ("01", "02", "03", "04", "05", "07")}
    for name, fault in right.items():
        shutil.copytree(f"class/{name}", f"hand/{name}")
        proof = ("--because", "row 1 sees <pad>") if name == "05" else ()
        assert command("exercise", "answer", fault, f"hand/{name}", *proof).code == 0
    # 01 gives a wrong answer, and an exercise.json that makes it right
    forged = other_than(right["01"])
    about = Path("hand/01/exercise.json")
    about.write_text(about.read_text().replace(hide(right["01"]), hide(forged)))
    assert command("exercise", "answer", forged, "hand/01").code == 0
    # 02 hands in the files of 03, in a folder of 02
    shutil.copytree("hand/03", "up/x_02/02")
    shutil.copytree("hand/03", "up/x_03/03")
    shutil.copy("hand/01/answer.json", "up/answer.json")
    # 04 has lost exercise.json, the folder of 05 has a name, and only a file of 07 came, twice
    Path("up/deep/er").mkdir(parents=True)
    shutil.copy("hand/04/answer.json", "up/deep/er")
    Path("class/05").rename("class/05 Müller, Ada")
    shutil.copytree("hand/05", "up/upload/some name")
    shutil.copy("hand/07/answer.json", "up/answer (1).json")
    shutil.copy("hand/07/answer.json", "up/answer-2.json")
    Path("up/readme.docx").write_text("")

    done = command("exercise", "grade", "up", "--class", "class", "--csv", "grades.csv")
    assert done.code == 1 and "8 students: 4 right, 2 wrong, 2 not answered" in done.out
    assert done.err.endswith("class in them: readme.docx\n")
    rows = csv.DictReader(Path("grades.csv").read_text("utf-8-sig").splitlines())
    rows = {row["student"]: row for row in rows}
    assert list(rows) == ["01", "02", "03", "04", "05 Müller, Ada", "06", "07", "08"]
    judged = {name[:2]: row["right"] for name, row in rows.items()}
    assert judged == dict(zip(judged, ["no", "no", *["yes"] * 3, "", "yes", ""], strict=True))
    assert rows["01"]["fault"] == right["01"] != rows["01"]["answer"]
    assert rows["01"]["note"] == "exercise.json was changed before the answer"
    assert rows["02"]["note"] == "the answer is that of student 03, seed 7"
    assert rows["05 Müller, Ada"]["because"] == "row 1 sees <pad>"
    assert rows["07"]["note"].startswith("handed in 2 times (answer (1).json, answer-2.json); the")
    assert {rows[name]["note"] for name in ("06", "08")} == {"no answer"}
    assert not any(rows[name]["note"] for name in ("03", "04", "05 Müller, Ada"))


def test_the_last_of_two_answers_counts_wherever_it_lies(small_class: Path, command: Command):
    right = fault_in("class/01")
    for folder, answer in (("z", other_than(right)), ("a", right)):
        shutil.copytree("class/01", f"up/{folder}/01")
        command("exercise", "answer", answer, f"up/{folder}/01")
    early = Path("up/z/01/answer.json")
    early.write_text(re.sub(r'"time": "\d+', '"time": "2001', early.read_text()))
    assert "1 right, 0 wrong, 2 not" in command("exercise", "grade", "up", "--class", "class").out


class Cells(HTMLParser):
    """The cells of the tables of a page, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.in_cell = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.in_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.in_cell = False

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.rows[-1][-1] += data.strip()


def cells_of(page: str) -> list[list[str]]:
    cells = Cells()
    cells.feed(page)
    return cells.rows


def test_grades_replace_no_file(small_class: Path, command: Command, refused):
    command("exercise", "answer", "no_causal", "class/01")
    answers = Path("class/01/answer.json").read_text()
    Path("notes.txt").write_text("mine")
    Path("link").symlink_to("nowhere")
    for option in ("--csv", "--page"):
        for taken in ("notes.txt", "class/01/answer.json", "class", "link"):
            assert f"{taken}: " in refused("exercise", "grade", "class", option, taken)
    assert Path("notes.txt").read_text() == "mine" and not Path("nowhere").exists()
    assert Path("class/01/answer.json").read_text() == answers


def test_a_check_says_in_an_exercise_what_it_says_in_any_run(command: Command):
    told = {}
    for fault in ("no_norm", hide("no_norm")):
        given = ("--config", "textbook", "--set", f"fault={fault}", "--only", "sublayers")
        done = command("check", *given, "--length", "7")
        assert done.code == 1
        told[fault] = done.out.partition("FAIL")[2].partition("\nno_norm\n")[0]
    hidden, named = told[hide("no_norm")], told["no_norm"]
    assert "nothing normalises" in " ".join(hidden.split()) and hidden.strip() == named.strip()


def test_results_of_a_live_page_become_a_table(command: Command, refused) -> None:
    """Lines in the form of the page, which tests/live compares with what a page writes."""
    line = (
        "reverse, small, seed 7, learned without the causal mask: answer given 1.000, alone 0.000"
    )
    Path("results.txt").write_text(
        f"{line}, 620 steps\n# of Monday\n\nAda: {line}, 9 steps\nwhat?\n"
    )
    done = command("exercise", "grade", "results.txt", "--csv", "r.csv", "--page", "r.html")
    assert done.code == 0 and "line 5 is no result: what?" in done.out
    rows = list(csv.DictReader(Path("r.csv").read_text("utf-8-sig").splitlines()))
    assert [row["student"] for row in rows] == ["", "Ada"]
    assert [row["steps"] for row in rows] == ["620", "9"]
    assert {row["without"] for row in rows} == {"the causal mask"}
    assert {row["numbers"] for row in rows} == {"30112"}
    assert "the causal mask" in Path("r.html").read_text()
    Path("none.txt").write_text("hello\n")
    assert "holds no result of a live page" in refused("exercise", "grade", "none.txt")
    Path("bytes.txt").write_bytes(b"\xff\x00")
    assert "holds no result" in refused("exercise", "grade", "bytes.txt")
