"""Exercises: a training with a fault that a student has to find.

An exercise is a folder. A seed draws its fault, which is written down with its name hidden:

    exercise.yaml    the config that the student trains
    SHEET.md         what to do
    exercise.json    whose exercise it is, and its fault
    answer.json      in a class: the student's answer

Who works alone is told at once whether an answer is right. In a class every student has a folder
with a fault of their own, and answers are written down until `grading` judges them all.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

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
    """What exercise.json holds. The fault is hidden, as in the config.

    student: the number in the class, such as 07; None for one who works alone
    may_be_sound: whether the fault was drawn from some of which one is none at all
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    seed: int
    level: Level
    student: str | None
    may_be_sound: bool
    fault: str

    @property
    def answer(self) -> str:
        """The right answer: the name of the fault, or `none`."""
        return decoded_fault(self.fault) or NONE


# Writing exercises ---------------------------------------------------------------------------


def faults_named(text: str) -> tuple[str | None, ...]:
    """The faults in a list with commas, of which `none` is one. Raises UserError for a name that is
    none of them."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        check_name(name)
    return tuple(None if name == NONE else name for name in names)


def draw(
    seed: int, level: Level, number: int = 1, faults: Sequence[str | None] | None = None
) -> str | None:
    """The fault of a seed's exercise, or of that with a number in a class; None if nothing is
    broken in it. The same arguments always give the same one.

    faults: what is drawn from; None: what the level draws from
    """
    return random.Random(f"{seed} {level} {number}").choice(faults or DRAWN[level])


def write_exercise(
    folder: Path,
    seed: int,
    level: Level,
    language: Language,
    faults: Sequence[str | None] | None = None,
) -> None:
    """Write an exercise for one who works alone into a new folder.

    Raises UserError if the folder exists or cannot be written.
    """
    exercise = _drawn(seed, level, None, faults)
    with disk_errors(folder, "the exercise"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with drafted(folder) as draft:
            _write(exercise, draft, language)


def write_class(
    folder: Path,
    students: int,
    seed: int,
    level: Level,
    language: Language,
    faults: Sequence[str | None] | None = None,
) -> None:
    """Write an exercise for each student of a class into a new folder, in folders 01, 02 and so on.

    Raises UserError if the folder exists or cannot be written.
    """
    digits = max(2, len(str(students)))
    with disk_errors(folder, "the exercises"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with drafted(folder) as draft:
            for number in range(1, students + 1):
                exercise = _drawn(seed, level, f"{number:0{digits}}", faults)
                _write(exercise, draft / f"{number:0{digits}}", language)


def _drawn(
    seed: int, level: Level, student: str | None, faults: Sequence[str | None] | None
) -> Exercise:
    fault = draw(seed, level, int(student or 1), faults)
    return Exercise(
        seed=seed,
        level=level,
        student=student,
        may_be_sound=None in (faults or DRAWN[level]),
        fault=hide(fault),
    )


def _write(exercise: Exercise, folder: Path, language: Language) -> None:
    folder.mkdir(parents=True)
    textbook = read_yaml(SHIPPED / "textbook.yaml").values
    about = "# Reverse sequences with the textbook model. The name of the fault is hidden.\n"
    config = about + write_yaml({"seed": exercise.seed, "fault": exercise.fault, **textbook})
    write_file(folder / CONFIG, config.encode())
    write_file(folder / SHEET, sheet(exercise, language).encode())
    write_json(folder / ABOUT, exercise.model_dump())


def sheet(exercise: Exercise, language: Language) -> str:
    """The student's sheet, as Markdown. Its text is in sheet.LANGUAGE.yaml."""
    text = read_yaml(Path(__file__).parent / f"sheet.{language}.yaml").values
    written: str = text["sheet"].format(
        level=exercise.level,
        **text["levels"][f"level_{exercise.level}"],
        commands="\n".join(f"   toytrans {line}" for line in COMMANDS[exercise.level]),
        or_none=text["or_none"] if exercise.may_be_sound else "",
        or_why=text["or_why"] if exercise.may_be_sound else "",
        **text["alone" if exercise.student is None else "in_class"],
    )
    return written


# Answering -----------------------------------------------------------------------------------


class Answer(BaseModel):
    """What answer.json holds.

    exercise: the one that is answered, so that a copy of another's answer is known for one
    because: the proof, in the student's words
    time: when the answer was given, on the student's clock
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    exercise: Exercise
    answer: str
    because: str
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


def check_answer(exercise: Exercise, answer: str) -> None:
    """Raise UserError if no exercise of this kind can have this answer."""
    check_name(answer)
    if answer == NONE and not exercise.may_be_sound:
        raise UserError("none: something is broken in this exercise; answer with a fault's name")


def write_answer(folder: Path, exercise: Exercise, answer: str, because: str) -> None:
    """Write down the answer of a student of a class; it takes the place of an earlier one.

    Raises UserError if the file cannot be written.
    """
    given = Answer(
        exercise=exercise,
        answer=answer,
        because=because,
        time=time.strftime("%Y-%m-%d %H:%M:%S"),
    )
    with disk_errors(folder, ANSWER):
        write_json(folder / ANSWER, given.model_dump())


def where_to_look(exercise: Exercise) -> str:
    """What to look at after a wrong answer, without the name of the fault."""
    fault = decoded_fault(exercise.fault)
    if fault is None:
        return "train the sound model too, and read every line of `toytrans check --all` of both"
    return f"read what `toytrans check` says of {', '.join(CARDS[fault].checks)}"
