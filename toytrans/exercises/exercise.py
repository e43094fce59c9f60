"""Exercises: a training with a fault that a student has to find.

An exercise is a folder. A seed draws its fault, which is written down with its name hidden:

    exercise.yaml    the config that the student trains
    SHEET.md         what to do
    exercise.json    what answers are judged by
    answer.json      in a class: the student's answer

Who works alone is told at once whether an answer is right. In a class every student has a folder
with a fault of their own, and answers are written down until `grade` reads them all.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from toytrans.config.fault_cards import CARDS
from toytrans.config.faults import FAULTS, decoded_fault, hide, is_hidden
from toytrans.config.yaml import read_yaml, write_yaml
from toytrans.documents import read_json
from toytrans.errors import UserError, did_you_mean
from toytrans.files import disk_errors, drafted, write_file, write_json
from toytrans.references import SHIPPED

CONFIG, SHEET, ABOUT, ANSWER = "exercise.yaml", "SHEET.md", "exercise.json", "answer.json"

Level = Literal[1, 2, 3]
Language = Literal["en", "ko"]

NONE = "none"
"""The answer where nothing is broken."""

DRAWN: dict[Level, tuple[str | None, ...]] = {
    1: ("no_causal", "labels_not_shifted", "pad_is_eos", "no_position", "no_residual"),
    2: ("no_causal", "triangle_off_by_one", "mask_flipped", "pad_visible", "wrong_start"),
    3: (
        "wrong_scale",
        "no_scale",
        "loss_on_pads",
        "batch_mean_of_means",
        "no_norm",
        "no_feed_forward",
        None,
    ),
}
"""What each level draws from. The table at the end of training shows those of level 1; the masks,
the doctor or a check show those of level 2; those of level 3 hardly show in a run."""

COMMANDS: dict[Level, tuple[str, ...]] = {
    1: ('translate runs/exercise "5 7 9"', "doctor runs/exercise"),
    2: ("doctor runs/exercise", "inspect-masks runs/exercise", "check runs/exercise"),
    3: ("check runs/exercise", "trace runs/exercise", "eval runs/exercise"),
}
"""Where the sheet of each level tells the student to look."""


class Exercise(BaseModel):
    """What exercise.json holds. The fault is hidden, as in the config."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    level: Level
    fault: str
    in_class: bool

    @property
    def answer(self) -> str:
        """The right answer: the name of the fault, or `none`."""
        return decoded_fault(self.fault) or NONE


# Writing exercises ---------------------------------------------------------------------------


def draw(seed: int, level: Level, number: int = 1) -> str | None:
    """The fault of a seed's exercise, or of that with a number in a class; None if nothing is
    broken in it. The same seed, level and number always give the same one."""
    return random.Random(f"{seed} {level} {number}").choice(DRAWN[level])


def write_exercise(folder: Path, seed: int, level: Level, language: Language) -> None:
    """Write an exercise for one who works alone into a new folder.

    Raises UserError if the folder exists or cannot be written.
    """
    exercise = Exercise(level=level, fault=hide(draw(seed, level)), in_class=False)
    with disk_errors(folder, "the exercise"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with drafted(folder) as draft:
            _write(exercise, draft, seed, language)


def write_class(folder: Path, students: int, seed: int, level: Level, language: Language) -> None:
    """Write an exercise for each student of a class into a new folder, in folders 01, 02 and so on.

    Raises UserError if the folder exists or cannot be written.
    """
    digits = max(2, len(str(students)))
    with disk_errors(folder, "the exercises"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with drafted(folder) as draft:
            for number in range(1, students + 1):
                fault = hide(draw(seed, level, number))
                exercise = Exercise(level=level, fault=fault, in_class=True)
                _write(exercise, draft / f"{number:0{digits}}", seed, language)


def _write(exercise: Exercise, folder: Path, seed: int, language: Language) -> None:
    folder.mkdir(parents=True)
    textbook = read_yaml(SHIPPED / "textbook.yaml").values
    about = "# Reverse sequences with the textbook model. The name of the fault is hidden.\n"
    config = about + write_yaml({"seed": seed, "fault": exercise.fault, **textbook})
    write_file(folder / CONFIG, config.encode())
    write_file(folder / SHEET, sheet(exercise, language).encode())
    write_json(folder / ABOUT, exercise.model_dump())


def sheet(exercise: Exercise, language: Language) -> str:
    """The student's sheet, as Markdown. Its text is in sheet.LANGUAGE.yaml."""
    text = read_yaml(Path(__file__).parent / f"sheet.{language}.yaml").values
    may_be_sound = None in DRAWN[exercise.level]
    written: str = text["sheet"].format(
        level=exercise.level,
        **text["levels"][f"level_{exercise.level}"],
        commands="\n".join(f"   toytrans {line}" for line in COMMANDS[exercise.level]),
        or_none=text["or_none"] if may_be_sound else "",
        or_why=text["or_why"] if may_be_sound else "",
        how_judged=text["in_class" if exercise.in_class else "alone"],
    )
    return written


# Answering -----------------------------------------------------------------------------------


class Answer(BaseModel):
    """What answer.json holds. time: when the answer was given, on the student's clock."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    answer: str
    time: str


def read_exercise(folder: Path) -> Exercise:
    """The exercise in a folder. Raises UserError if there is none, or if it cannot be read."""
    damaged = "not an exercise, or changed; take the one handed out"
    exercise = read_json(folder / ABOUT, Exercise, damaged, most_bytes=2**16)
    if exercise is None:
        raise UserError(f"{folder}: no exercise here; change to its folder, or name it")
    if not is_hidden(exercise.fault):
        raise UserError(f"{folder / ABOUT}: {damaged}")
    return exercise


def check_name(answer: str) -> None:
    """Raise UserError if an answer is neither the name of a fault nor `none`."""
    names = (*FAULTS, NONE)
    if answer not in names:
        raise UserError(
            f"{answer or 'an empty answer'}: no such fault; {did_you_mean(answer, names)}"
        )


def write_answer(folder: Path, answer: str) -> None:
    """Write down a student's answer; it takes the place of an earlier one.

    Raises UserError if the file cannot be written.
    """
    given = Answer(answer=answer, time=time.strftime("%Y-%m-%d %H:%M:%S"))
    with disk_errors(folder, ANSWER):
        write_json(folder / ANSWER, given.model_dump())


def read_answer(folder: Path) -> Answer | None:
    """The answer in a student's folder; None if there is none. Raises UserError if it cannot be
    read."""
    return read_json(folder / ANSWER, Answer, "not an answer; ask for it again", most_bytes=2**16)


def where_to_look(exercise: Exercise) -> str:
    """What to look at after a wrong answer, without the name of the fault."""
    fault = decoded_fault(exercise.fault)
    if fault is None:
        return "train the sound model too, and read every line of `toytrans check --all` of both"
    return f"read what `toytrans check` says of {', '.join(CARDS[fault].checks)}"


# Grading -------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """A row of the grades.

    right: yes or no; empty if nothing was answered. note: which file could not be read, and why.
    """

    student: str
    level: int | str = ""
    answer: str = ""
    right: str = ""
    fault: str = ""
    time: str = ""
    note: str = ""


def grade(folder: Path) -> list[Mark]:
    """A mark for each exercise in a folder and in the folders below it, by their paths.

    Raises UserError if there is no exercise.
    """
    places = _exercises_in(folder)
    if not places:
        raise UserError(f"{folder}: no exercises in it; name the folder that `--class` made")
    return [_mark(place, _student(place, folder)) for place in places]


def folders_without(folder: Path) -> list[str]:
    """What lies in the folder of a class and holds no exercise, such as an archive that was not
    unpacked."""
    places = _exercises_in(folder)
    if folder in places:
        return []
    graded = {place.relative_to(folder).parts[0] for place in places}
    return sorted({entry.name for entry in folder.glob("[!.]*")} - graded)


def _exercises_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.rglob(ABOUT))


def _student(place: Path, folder: Path) -> str:
    """The student's name: the path below the folder of the class, or the name of a single
    exercise."""
    return folder.resolve().name if place == folder else place.relative_to(folder).as_posix()


def _mark(place: Path, student: str) -> Mark:
    try:
        exercise = read_exercise(place)
    except UserError as error:
        return Mark(student, note=str(error))
    unanswered = Mark(student, exercise.level, fault=exercise.answer)
    try:
        given = read_answer(place)
    except UserError as error:
        return unanswered._replace(note=str(error))
    if given is None:
        return unanswered
    right = "yes" if given.answer == exercise.answer else "no"
    return unanswered._replace(answer=given.answer, right=right, time=given.time)


def summary(marks: Sequence[Mark]) -> str:
    """How many answers are right, how many are wrong, and how many are missing."""
    counts = Counter(mark.right for mark in marks)
    return f"{counts['yes']} right, {counts['no']} wrong, {counts['']} not answered"
