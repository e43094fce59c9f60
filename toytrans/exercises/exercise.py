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

from toytrans.config.names import NONCE, FaultName, opened, seal
from toytrans.config.yaml import parse_value, read_yaml, write_yaml
from toytrans.errors import UserError, did_you_mean
from toytrans.exercises import MOST_ANSWERS, MOST_STUDENTS, Language
from toytrans.exercises.fault_cards import CARDS
from toytrans.files import (
    append_line,
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

COMMANDS: dict[Level, tuple[str, ...]] = {
    1: ('translate runs/exercise "5 7 9"', "doctor runs/exercise"),
    2: ("doctor runs/exercise", "inspect-masks runs/exercise", "check runs/exercise"),
    3: ("check runs/exercise", "trace runs/exercise", "eval runs/exercise"),
}
"""Where to look, on the sheet of each level."""

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
                write_file(place / CONFIG, _config_text(exercise).encode())
                write_file(place / SHEET, sheet(exercise, language).encode())
                write_json(place / ABOUT, exercise.model_dump())
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None


def _config_text(exercise: Exercise) -> str:
    """The textbook config with a sealed fault."""
    values = read_yaml(SHIPPED / "textbook.yaml").values
    about = "# Reverse sequences with the textbook model; the fault is sealed.\n"
    return about + write_yaml({"seed": exercise.seed, "fault": exercise.fault, **values})


def sheet(exercise: Exercise, language: Language) -> str:
    """The student's sheet, as Markdown; its text is in sheet.LANGUAGE.yaml."""
    text = read_yaml(Path(__file__).parent / f"sheet.{language}.yaml").values
    words, level, limit = text["words"], exercise.level, exercise.limit
    kind = "closed_" if exercise.closed else ""
    count = words["limit"].format(limit=limit, s="s" * (limit > 1)) if limit else ""
    written: str = text["sheet"].format(
        level=level,
        **text["levels"][f"level_{level}"],
        commands="\n".join(f"   toytrans {line}" for line in COMMANDS[level]),
        or_none=words["or_none"] if level == 3 else "",
        or_why=words["or_why"] if level == 3 else "",
        answers=count + words[f"{kind}answers"],
        hints=words[f"{kind}hints"],
    )
    return written


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


def progress(folder: Path) -> tuple[dict[str, str], int, str]:
    """The answers so far and when each was first given; the number of hints; how many lines are not
    readable, and do not count. Raises UserError for a file that cannot be read at all."""
    path, answers = folder / PROGRESS, dict[str, str]()
    hints = broken = 0
    for line in read_named(path, 2**20).splitlines() if os.path.lexists(path) else ():
        try:
            event = Event.model_validate_json(line)
        except ValidationError:
            broken += 1
            continue
        if event.answer is None:
            hints += 1
        else:
            answers.setdefault(event.answer, event.time)
    return answers, hints, f"{PROGRESS}: {broken} lines cannot be read" if broken else ""


def _add(folder: Path, answer: str | None) -> None:
    """Write an answer or a hint down. Raises UserError."""
    event = Event(answer=answer, time=time.strftime("%Y-%m-%d %H:%M:%S"))
    with disk_errors(folder, PROGRESS):
        append_line(folder / PROGRESS, f"{event.model_dump_json()}\n".encode())


def answer(folder: Path, given: str) -> tuple[bool | None, str]:
    """Whether an answer is right (None: that is not told), and how many there were of how many. A
    new one is written down. Raises UserError."""
    given, names = given.strip(), (*get_args(FaultName), NONE)
    if given not in names:
        shown = given or "an empty answer"
        raise UserError(f"{shown}: no such fault; {did_you_mean(given, names)}")
    exercise, answers = read(folder), list(progress(folder)[0])
    again = " (given before, counts once)" if given in answers else ""
    if not again:
        if exercise.limit and len(answers) >= exercise.limit:
            raise UserError(f"{given}: not written down; all {exercise.limit} answers are given")
        _add(folder, given)
        answers.append(given)
    right = None if exercise.closed else given == exercise.answer
    return right, f"{len(answers)}" + (f" of {exercise.limit}" if exercise.limit else "") + again


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
    right: yes or no; empty where nothing was answered. note: what was lost, changed or copied."""

    student: str
    level: int | str = ""
    answer: str = ""
    right: str = "no"
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
    places = _places(folder)
    if not any(os.path.exists(place / ABOUT) for place in places):
        raise UserError(f"{folder}: no exercises in it; name the folder that `--class` made")
    marks = [_mark(place, place.relative_to(folder).as_posix(), key) for place in places]
    seals = Counter(seal for _, seal in marks if seal)
    if not seals and any(mark.note.startswith(CHANGED) for mark, _ in marks):
        raise UserError(f"{folder}: --key gives none of these exercises; it is the wrong key")
    copied = "another folder has this exercise too"
    return [
        mark._replace(right="no", note=copied) if seals[seal] > 1 else mark for mark, seal in marks
    ]


def left_out(folder: Path) -> list[str]:
    """Names in a folder that `grade` gives no mark: files, and folders without an exercise."""
    graded = {place.relative_to(folder).parts[0] for place in _places(folder)}
    return sorted({each.name for each in folder.glob("[!.]*")} - graded)


def _places(folder: Path) -> list[Path]:
    """The folders with a file of an exercise, others of which may be lost: in a folder, or in
    folders in it, as some archives are unpacked."""
    paths = [f"{above}/{name}" for above in ("*", "*/*") for name in FILES]
    found = {path.parent for each in paths for path in folder.glob(each)}
    return sorted(place for place in found if place.parent not in found)


def _mark(folder: Path, student: str, key: str) -> tuple[Mark, str]:
    """The mark of one student, copies apart, and the seal of an exercise that the key gives."""
    try:
        if not os.path.exists(folder / ABOUT):
            raise UserError(f"{ABOUT} is missing")
        exercise = read(folder)
    except UserError as error:
        return Mark(student, note=str(error)), ""
    try:
        answers, hints, unread = progress(folder)
    except UserError as error:
        answers, hints, unread = {}, 0, str(error)
    counted = list(answers)[: exercise.limit]
    known = _is_of(exercise, key)
    problem = _problem_of_config(folder, exercise) if known else CHANGED
    is_right = known and exercise.answer in counted
    answer = exercise.answer if is_right else (counted or [""])[-1]
    note = "; ".join(filter(None, (problem, unread)))
    right = "yes" if is_right and not problem else "no" if answer or note else ""
    done = len(answers), min(hints, exercise.most_hints), answers.get(answer, "")
    fault, seal = (exercise.answer, exercise.fault) if known else ("", "")
    return Mark(student, exercise.level, answer, right, *done, fault, note), seal


def _problem_of_config(folder: Path, exercise: Exercise) -> str:
    """Why exercise.yaml is not the one handed out; empty if its values are those."""
    try:
        found = read_yaml(folder / CONFIG).values
    except UserError as error:
        return str(error)
    handed_out = parse_value(_config_text(exercise), CONFIG)
    return "" if found == handed_out else f"{CONFIG}: not the config that was handed out"


def summary(marks: Sequence[Mark]) -> str:
    """How many are right, wrong, not answered, and not right with a note that says why."""
    counts = Counter("note" if mark.note and mark.right == "no" else mark.right for mark in marks)
    text = f"{counts['yes']} right, {counts['no']} wrong, {counts['']} not answered"
    return text + (f", {counts['note']} with a note" if counts["note"] else "")
