"""Exercises: a run with a fault that the student has to find.

    DIR/exercise.yaml    the config, its fault sealed
    DIR/exercise.json    number, seed, level, the same seal
    DIR/SHEET.md         what to do
    DIR/progress.jsonl   a line for each answer and each hint

The teacher's key draws the fault: key, seed, level and number give the same exercise again. So
`reveal` and `grade` need the key, and notice a changed exercise. The key is in no file.
"""

import hmac
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toytrans.config.names import FaultName
from toytrans.config.sealed import NONCE, opened, seal
from toytrans.config.yaml import parse_value, read_yaml, write_yaml
from toytrans.errors import UserError, did_you_mean
from toytrans.exercises.fault_cards import CARDS
from toytrans.exercises.sheet import MOST_ANSWERS, MOST_STUDENTS, Language, sheet
from toytrans.files import (
    append_line,
    csv_text,
    disk_errors,
    drafted,
    read_json,
    read_named,
    write_file,
    write_json,
)
from toytrans.user_code import SHIPPED

CONFIG, ABOUT, SHEET, PROGRESS = "exercise.yaml", "exercise.json", "SHEET.md", "progress.jsonl"
FILES = (CONFIG, ABOUT, SHEET, PROGRESS)

Level = Literal[1, 2, 3]

DRAWN: dict[Level, tuple[FaultName | None, ...]] = {
    1: ("no_causal", "labels_not_shifted", "pad_is_eos", "no_position", "no_residual"),
    2: ("no_causal", "triangle_off_by_one", "mask_flipped", "pad_visible", "wrong_start"),
    3: (
        *("wrong_scale", "no_scale", "loss_on_pads", "batch_mean_of_means"),
        *("no_norm", "no_feed_forward", None),
    ),
}
"""What each level draws from: seen in the run's table; seen in the masks, by the doctor or by a
check; hardly seen in a run, and perhaps none."""

NONE = "none"

KINDS: dict[str, tuple[FaultName, ...]] = {
    "what a token may attend to": (
        *("no_causal", "triangle_off_by_one", "pad_visible", "mask_flipped"),
    ),
    "what training reads, and what its loss counts": (
        *("labels_not_shifted", "pad_is_eos", "wrong_start", "loss_on_pads", "batch_mean_of_means"),
    ),
    "what the model computes": (
        *("wrong_scale", "no_scale", "no_position", "no_residual", "no_norm", "no_feed_forward"),
    ),
}
"""For the first hint."""


class Exercise(BaseModel):
    """exercise.json. number: 1, or that of the student of a class. fault: sealed.

    closed: right or wrong is told at grading only. limit: the most answers that count.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: Literal[1] = 1
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    level: Level
    number: Annotated[int, Field(ge=1, le=MOST_STUDENTS)]
    fault: str
    closed: bool = False
    limit: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None

    @property
    def most_hints(self) -> int:
        """The last one says what is wrong, and a closed exercise has it not."""
        return 2 if self.closed else 3

    @property
    def answer(self) -> str:
        """The right answer. Raises UserError for a changed seal."""
        return opened(self.fault) or NONE


def draw(
    key: str,
    seed: int,
    level: Level,
    number: int = 1,
    *,
    closed: bool = False,
    limit: int | None = None,
) -> Exercise:
    """The exercise that a key gives. Raises UserError for an empty key."""
    if not key.strip():
        raise UserError("--key: empty; give some text")
    address = f"toytrans exercise {seed} {level} {number}"
    address += f" closed {closed} limit {limit}" if closed or limit else ""
    drawn = hmac.digest(key.strip().encode(errors="surrogateescape"), address.encode(), "sha256")
    choices = DRAWN[level]
    fault = choices[int.from_bytes(drawn[:8]) % len(choices)]
    sealed = seal(fault, drawn[8 : 8 + NONCE], closed=closed)
    return Exercise(seed=seed, level=level, number=number, fault=sealed, closed=closed, limit=limit)


def write(
    drawn: Sequence[Exercise], folder: Path, language: Language = "en", numbered: bool = False
) -> None:
    """Write an exercise into a new folder, or several into numbered folders in it.

    Raises UserError if the folder exists.
    """
    digits = max(2, len(str(len(drawn))))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with drafted(folder) as draft:
            for exercise in drawn:
                place = draft / f"{exercise.number:0{digits}}" if numbered else draft
                place.mkdir(parents=True)
                text = sheet(exercise.level, language, exercise.closed, exercise.limit)
                write_file(place / CONFIG, _config_text(exercise).encode())
                write_file(place / SHEET, text.encode())
                write_json(place / ABOUT, exercise.model_dump())
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None


def _config_text(exercise: Exercise) -> str:
    """The textbook config with a sealed fault."""
    values = read_yaml(SHIPPED / "textbook.yaml").values
    about = "# Reverse sequences with the textbook model; the fault is sealed.\n"
    return about + write_yaml({"seed": exercise.seed, "fault": exercise.fault, **values})


def read(folder: Path) -> Exercise:
    """The exercise of a folder. Raises UserError."""
    otherwise = "not an exercise, or changed; take the one handed out"
    exercise = read_json(folder / ABOUT, Exercise, otherwise, most_bytes=2**16)
    if exercise is None:
        raise UserError(f"{folder}: no exercise here; change to its folder, or name it")
    try:
        opened(exercise.fault)
    except UserError as error:
        raise UserError(f"{folder / ABOUT}: {error}") from None
    return exercise


# Answers and hints ---------------------------------------------------------------------------


class Event(BaseModel):
    """A line of progress.jsonl. answer: None for a hint."""

    model_config = ConfigDict(extra="forbid", strict=True)

    answer: str | None
    time: str


def progress(folder: Path) -> tuple[list[Event], int]:
    """The answers so far, and the number of hints. Raises UserError."""
    path = folder / PROGRESS
    if not os.path.lexists(path):
        return [], 0
    try:
        events = [Event.model_validate_json(line) for line in read_named(path, 2**20).splitlines()]
    except ValidationError:
        raise UserError(f"{path}: cannot be read; remove it to start again") from None
    answers = [event for event in events if event.answer is not None]
    return answers, len(events) - len(answers)


def _add(folder: Path, answer: str | None) -> None:
    """Write an answer or a hint down. Raises UserError."""
    event = Event(answer=answer, time=time.strftime("%Y-%m-%d %H:%M:%S"))
    with disk_errors(folder, PROGRESS):
        append_line(folder / PROGRESS, f"{event.model_dump_json()}\n".encode())


def answer(folder: Path, given: str) -> tuple[bool | None, str]:
    """Whether an answer is right (None: that is not told), and how many there were of how many. It
    is written down. Raises UserError."""
    given, names = given.strip(), (*get_args(FaultName), NONE)
    if given not in names:
        shown = given or "an empty answer"
        raise UserError(f"{shown}: no such fault; {did_you_mean(given, names)}")
    exercise, count = read(folder), len(progress(folder)[0])
    if exercise.limit and count >= exercise.limit:
        raise UserError(f"{given}: not written down; all {exercise.limit} answers are given")
    _add(folder, given)
    right = None if exercise.closed else given == exercise.answer
    return right, f"{count + 1}" + (f" of {exercise.limit}" if exercise.limit else "")


def hint(folder: Path) -> tuple[list[str], int]:
    """The hints so far and one more, and how many there are. It is written down that it was asked
    for. Raises UserError."""
    exercise, used = read(folder), progress(folder)[1]
    if used < exercise.most_hints:
        _add(folder, None)
    return hints_of(exercise)[: min(used + 1, exercise.most_hints)], exercise.most_hints


def hints_of(exercise: Exercise) -> list[str]:
    """Where to look, which check shows it, what it is."""
    fault = opened(exercise.fault)
    if fault is None:
        return [
            "Train the sound model too, with --set fault=null, and compare the two runs.",
            "Read every check of `toytrans check --all`.",
            "Nothing is broken.",
        ]
    (kind,) = (kind for kind, faults in KINDS.items() if fault in faults)
    return [
        f"The fault is in {kind}.",
        f"Of `toytrans check`, read {', '.join(CARDS[fault].checks)}.",
        f"What is wrong: {CARDS[fault].what}.",
    ]


# The teacher ---------------------------------------------------------------------------------


def reveal(folder: Path, key: str) -> str:
    """The right answer. Raises UserError for a wrong key, and for a changed exercise."""
    exercise = read(folder)
    if not _is_of(exercise, key):
        raise UserError(
            f"{folder}: --key does not give this exercise: a wrong key, or a changed exercise"
        )
    return exercise.answer


def _is_of(exercise: Exercise, key: str) -> bool:
    address = exercise.seed, exercise.level, exercise.number
    return draw(key, *address, closed=exercise.closed, limit=exercise.limit) == exercise


class Mark(NamedTuple):
    """A row of the grades. answer: a right one, or else the last. time: when it was given.
    note: why it is not right whatever the answer."""

    student: str
    level: int | None = None
    answer: str = ""
    right: bool = False
    answers: int = 0
    hints: int = 0
    time: str = ""
    fault: str = ""
    note: str = ""


CHANGED = "not the exercise that was handed out"


def grade(folder: Path, key: str) -> list[Mark]:
    """A mark for each exercise in a folder, by the names of their folders.

    Raises UserError if there is no exercise, or if the key gives none of them.
    """
    if not any(folder.glob(f"*/{ABOUT}")):
        raise UserError(f"{folder}: no exercises in it; name the folder that `--class` made")
    marks = [_mark(each, key) for each in sorted(folder.iterdir()) if _has_files(each)]
    seals = Counter(seal for _, seal in marks if seal)
    if not seals and any(mark.note == CHANGED for mark, _ in marks):
        raise UserError(f"{folder}: --key gives none of these exercises; it is the wrong key")
    copied = "another folder has this exercise too"
    return [
        mark._replace(right=False, note=copied) if seals[seal] > 1 else mark for mark, seal in marks
    ]


def left_out(folder: Path) -> list[str]:
    """Names in a folder that `grade` gives no mark: files, and folders without an exercise."""
    visible = (each for each in folder.iterdir() if not each.name.startswith("."))
    return sorted(each.name for each in visible if not _has_files(each))


def _has_files(folder: Path) -> bool:
    """Whether a folder has a file of an exercise, some of whose files may be lost."""
    return any(os.path.exists(folder / name) for name in FILES)


def _mark(folder: Path, key: str) -> tuple[Mark, str]:
    """The mark of one student, copies apart, and the seal of an exercise that the key gives."""
    try:
        if not os.path.exists(folder / ABOUT):
            raise UserError(f"{ABOUT} is missing")
        exercise, (answers, hints) = read(folder), progress(folder)
    except UserError as error:
        return Mark(folder.name, note=str(error)), ""
    mark = Mark(folder.name, exercise.level, answers=len(answers))
    mark = mark._replace(hints=min(hints, exercise.most_hints))
    counted = answers[: exercise.limit]
    known = _is_of(exercise, key)
    right = [event for event in counted if known and event.answer == exercise.answer]
    for event in [*right, *reversed(counted)][:1]:
        mark = mark._replace(answer=event.answer or "", time=event.time)
    if not known:
        return mark._replace(note=CHANGED), ""
    problem = _problem_of_config(folder, exercise)
    right_now = bool(right) and not problem
    return mark._replace(right=right_now, fault=exercise.answer, note=problem), exercise.fault


def _problem_of_config(folder: Path, exercise: Exercise) -> str:
    """Why exercise.yaml is not the one handed out; empty if its values are those."""
    try:
        found = read_yaml(folder / CONFIG).values
    except UserError as error:
        return str(error)
    handed_out = parse_value(_config_text(exercise), CONFIG)
    return "" if found == handed_out else f"{CONFIG}: not the config that was handed out"


def as_csv(marks: Sequence[Mark]) -> str:
    """The marks, a line each, under a line of headings."""
    rows = [mark._asdict() | {"right": "yes" if mark.right else "no"} for mark in marks]
    return csv_text([Mark._fields, *(list(row.values()) for row in rows)])
