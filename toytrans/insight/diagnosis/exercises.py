"""Exercises: a run with a fault that the student has to find.

    DIR/exercise.yaml    the config, its fault sealed
    DIR/exercise.json    number, seed, level, the same seal
    DIR/SHEET.md         what to do
    DIR/progress.json    answers and hints so far

The teacher's key draws the fault: key, seed, level and number give the same exercise again. So
`reveal` and `grade` need the key, and notice a changed exercise. The key is in no file.
"""

import contextlib
import hmac
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, get_args

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from pydantic import BaseModel, ConfigDict, Field

from toytrans.config.names import FaultName
from toytrans.config.sealed import NONCE, opened, seal
from toytrans.config.yaml import parse_value, read_yaml
from toytrans.errors import UserError, did_you_mean
from toytrans.files import Unreadable, csv_text, drafted, read_json, write_file, write_json
from toytrans.insight.diagnosis.exercise_sheet import (
    CONFIG_TEXT,
    MOST_ANSWERS,
    MOST_STUDENTS,
    Language,
    sheet,
)
from toytrans.insight.diagnosis.fault_cards import CARDS

CONFIG, ABOUT, SHEET, PROGRESS = "exercise.yaml", "exercise.json", "SHEET.md", "progress.json"

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
proof; hardly seen in a run, and perhaps none."""

NONE = "none"
HINTS = 3
"""Of each exercise."""

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
        return HINTS - self.closed

    @property
    def answer(self) -> str:
        """The right answer. Raises UserError for a changed seal."""
        return opened(self.fault) or NONE


class Progress(BaseModel):
    """progress.json: answers in their order with their times, and the number of hints."""

    model_config = ConfigDict(extra="forbid", strict=True)

    answers: list[str] = []
    times: list[str] = []
    hints: Annotated[int, Field(ge=0, le=HINTS)] = 0


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


def write(exercise: Exercise, folder: Path, language: Language = "en") -> None:
    """Write an exercise into a new folder. Raises UserError if the folder exists."""
    with _new(folder) as draft:
        _fill(draft, exercise, language)


def write_class(drawn: Sequence[Exercise], folder: Path, language: Language = "en") -> None:
    """Write exercises into numbered folders in a new folder. Raises UserError if it exists."""
    digits = max(2, len(str(len(drawn))))
    with _new(folder) as draft:
        for exercise in drawn:
            student = draft / f"{exercise.number:0{digits}}"
            student.mkdir()
            _fill(student, exercise, language)


@contextlib.contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """Make a folder under another name, which it gets when it is filled. Raises UserError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with drafted(folder) as draft:
            draft.mkdir()
            yield draft
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None


def _fill(folder: Path, exercise: Exercise, language: Language) -> None:
    text = sheet(exercise.level, language, exercise.closed, exercise.limit)
    write_file(folder / CONFIG, _config_text(exercise).encode())
    write_file(folder / SHEET, text.encode())
    write_json(folder / ABOUT, exercise.model_dump())


def _config_text(exercise: Exercise) -> str:
    return CONFIG_TEXT.format(seed=exercise.seed, fault=exercise.fault)


def read(folder: Path) -> Exercise:
    """The exercise of a folder. Raises UserError."""
    otherwise = "not an exercise, or changed; take the one handed out"
    exercise = read_json(folder / ABOUT, Exercise, otherwise, most_bytes=2**16)
    if exercise is None:
        raise UserError(
            f"{folder}: no exercise here; change to its folder, or name it with --exercise DIR"
        )
    try:
        opened(exercise.fault)
    except UserError as error:
        raise UserError(f"{folder / ABOUT}: {error}") from None
    return exercise


def progress(folder: Path) -> Progress:
    """The answers and hints so far. Raises UserError."""
    otherwise = "cannot be read; remove it to start again"
    saved = read_json(folder / PROGRESS, Progress, otherwise, most_bytes=2**20)
    return saved or Progress()


def answer(folder: Path, given: str) -> tuple[bool | None, str]:
    """Whether an answer is right (None: that is not told), and how many there were of how many. It
    is written down. Raises UserError."""
    given, names = given.strip(), (*get_args(FaultName), NONE)
    if given not in names:
        shown = given or "an empty answer"
        raise UserError(f"{shown}: no such fault; {did_you_mean(given, names)}")
    exercise = read(folder)
    with _alone(folder):
        so_far = progress(folder)
        if exercise.limit and len(so_far.answers) >= exercise.limit:
            raise UserError(f"{given}: not written down; all {exercise.limit} answers are given")
        so_far.answers.append(given)
        so_far.times.append(time.strftime("%Y-%m-%d %H:%M:%S"))
        _save(folder, so_far)
    count = f"{len(so_far.answers)} of {exercise.limit}" if exercise.limit else None
    right = None if exercise.closed else given == exercise.answer
    return right, count or str(len(so_far.answers))


def hint(folder: Path) -> tuple[list[str], int]:
    """The hints so far and one more, and how many there are. That it was asked for is written
    down."""
    exercise = read(folder)
    with _alone(folder):
        so_far = progress(folder)
        so_far.hints = min(so_far.hints + 1, exercise.most_hints)
        _save(folder, so_far)
    return hints_of(exercise)[: so_far.hints], exercise.most_hints


def hints_of(exercise: Exercise) -> list[str]:
    """Where to look, what proves it, what it is."""
    fault = opened(exercise.fault)
    if fault is None:
        return [
            "Train the sound model too, with --set fault=null, and compare the two runs.",
            "Read every proof of `toytrans check`.",
            "Nothing is broken.",
        ]
    kind = next(kind for kind, faults in KINDS.items() if fault in faults)
    letters = " ".join(f"({letter})" for letter in CARDS[fault].proofs)
    return [
        f"The fault is in {kind}.",
        f"Of `toytrans check`, read {letters}.",
        f"What is wrong: {CARDS[fault].what}.",
    ]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Commands in one folder change its progress one after the other."""
    with (folder / ABOUT).open("rb") as held:
        for _ in range(TRIES if fcntl is not None else 0):
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(SECONDS_BETWEEN_TRIES)
        else:
            if fcntl is not None:
                raise UserError(f"{folder}: another command is at this exercise; wait for its end")
        yield


def _save(folder: Path, so_far: Progress) -> None:
    try:
        write_json(folder / PROGRESS, so_far.model_dump())
    except OSError as error:
        raise UserError(f"{folder / PROGRESS}: cannot be written ({error.strerror})") from None


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


@dataclass(frozen=True)
class Mark:
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


def grade(folder: Path, key: str) -> list[Mark]:
    """A mark for each exercise in a folder, by the names of their folders.

    Raises UserError if there is no exercise, or if the key gives none of them.
    """
    if not any(folder.glob(f"*/{ABOUT}")):
        raise UserError(f"{folder}: no exercises in it; name the folder that `--class` made")
    folders = [each for each in sorted(folder.iterdir()) if _has_files(each)]
    marks = _without_copies(folders, [_mark(each, key) for each in folders])
    if not any(mark.fault for mark in marks) and any(mark.note == CHANGED for mark in marks):
        raise UserError(f"{folder}: --key gives none of these exercises; it is the wrong key")
    return marks


def left_out(folder: Path) -> list[str]:
    """Names in a folder that `grade` gives no mark: files, and folders without an exercise."""
    visible = (each for each in folder.iterdir() if not each.name.startswith("."))
    return sorted(each.name for each in visible if not _has_files(each))


def _has_files(folder: Path) -> bool:
    """Whether a folder has a file of an exercise, some of whose files may be lost."""
    return any(os.path.exists(folder / name) for name in (ABOUT, CONFIG, SHEET, PROGRESS))


def _without_copies(folders: Sequence[Path], marks: Sequence[Mark]) -> list[Mark]:
    """The marks; one exercise in several folders is right in none of them."""
    seals = [
        read(each).fault if mark.fault else "" for each, mark in zip(folders, marks, strict=True)
    ]
    return [
        replace(mark, right=False, note="another folder has this exercise too")
        if seal and seals.count(seal) > 1
        else mark
        for seal, mark in zip(seals, marks, strict=True)
    ]


TRIES, SECONDS_BETWEEN_TRIES = 100, 0.05
"""How often a command asks for an exercise that another one holds."""

CHANGED = "not the exercise that was handed out"


def _mark(folder: Path, key: str) -> Mark:
    if not os.path.exists(folder / ABOUT):
        return Mark(folder.name, note=f"{ABOUT} is missing")
    try:
        exercise, so_far = read(folder), progress(folder)
    except (UserError, Unreadable) as error:
        return Mark(folder.name, note=str(error))
    known = _is_of(exercise, key)
    given = so_far.answers[: exercise.limit]
    right = known and exercise.answer in given
    place = given.index(exercise.answer) if right else len(given) - 1
    problem = _problem_of_config(folder, exercise) if known else CHANGED
    return Mark(
        student=folder.name,
        level=exercise.level,
        answer=given[place] if given else "",
        right=right and not problem,
        answers=len(so_far.answers),
        hints=so_far.hints,
        time=so_far.times[place] if 0 <= place < len(so_far.times) else "",
        fault=exercise.answer if known else "",
        note=problem,
    )


def _problem_of_config(folder: Path, exercise: Exercise) -> str:
    """Why exercise.yaml is not the one handed out; empty if its values are those."""
    if not os.path.exists(folder / CONFIG):
        return f"{CONFIG} is missing"
    try:
        found = read_yaml(folder / CONFIG).values
    except UserError as error:
        return str(error)
    handed_out = parse_value(_config_text(exercise), CONFIG)
    return "" if found == handed_out else f"{CONFIG}: not the config that was handed out"


def as_csv(marks: Sequence[Mark]) -> str:
    """The marks, a line each, under a line of headings."""
    names = list(Mark.__dataclass_fields__)
    words = {True: "yes", False: "no"}
    rows = [asdict(mark) | {"right": words[mark.right]} for mark in marks]
    return csv_text([names, *([row[name] for name in names] for row in rows)])
