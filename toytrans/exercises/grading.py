"""Grading: the answers that came back, judged by the exercises that were handed out.

    the class, as `write_class` made it       a row for each student, and what is right
    what came back, however it is nested      the file of each answer, and whose it is

Because rows and faults come from the class, a student who is missing has a row, and a file that was
changed after it was handed out changes no judgement. Where there is only one folder, in which
students have answered, it is both.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from toytrans.documents import read_json
from toytrans.errors import UserError
from toytrans.exercises.exercise import ABOUT, Answer, Exercise, read_exercise

NO_ANSWER = "no answer"
"""The note of a student from whom nothing came back."""


class Student(NamedTuple):
    """A student of the class, by the folder that was handed out.

    exercise: None where its file cannot be read, and why is the note
    """

    name: str
    folder: Path
    exercise: Exercise | None
    note: str = ""


class HandedIn(NamedTuple):
    """An answer that came back. answer: None where the file cannot be read, and why is the note."""

    file: Path
    answer: Answer | None
    note: str = ""


class Mark(NamedTuple):
    """A row of the grades.

    right: yes or no; empty if nothing was answered. because: the student's proof. note: what is odd
    about what came back.
    """

    student: str
    level: int | str = ""
    answer: str = ""
    right: str = ""
    fault: str = ""
    because: str = ""
    time: str = ""
    note: str = ""


def grade(folder: Path, class_folder: Path) -> tuple[list[Mark], list[str]]:
    """A mark for each student of a class, and what lies in the folder of answers and was not
    graded, such as an archive that was not unpacked.

    folder: where the answers are, at any depth
    class_folder: the class that was handed out; the same folder, if students answered in it
    Raises UserError if there is no folder of answers, or no exercise in the class.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder, nor a file of results")
    if is_one_folder := folder.resolve() == class_folder.resolve():
        class_folder = folder
    students = _students_in(class_folder)
    if not students:
        raise UserError(f"{class_folder}: no exercises in it; name the folder that `--class` made")
    handed_in: dict[str, list[HandedIn]] = {student.name: [] for student in students}
    strangers = list[HandedIn]()
    for each in _answers_in(folder):
        owner = _owner(each, folder, students)
        (handed_in[owner] if owner else strangers).append(each)
    marks = [_mark(student, handed_in[student.name], folder) for student in students]
    graded = [each.file for all_of_one in handed_in.values() for each in all_of_one]
    if is_one_folder:
        graded += [student.folder for student in students]
    return marks, _left_over(folder, graded, strangers)


# What is in the folders ----------------------------------------------------------------------


def _students_in(class_folder: Path) -> list[Student]:
    """The students, by the paths of their folders; of two copies of an exercise, the first."""
    students, seen = list[Student](), set[Exercise]()
    for place in sorted(path.parent for path in class_folder.rglob(ABOUT)):
        name = _name_below(place, class_folder)
        try:
            exercise = read_exercise(place)
        except UserError as error:
            students.append(Student(name, place, None, str(error)))
            continue
        if exercise not in seen:
            students.append(Student(name, place, exercise))
        seen.add(exercise)
    return students


def _answers_in(folder: Path) -> list[HandedIn]:
    """The answers, the last given one last. Their files may be called `answer (1).json` or
    `answer-ada.json`, because all of a class would have one name."""
    found = list[HandedIn]()
    for file in sorted(folder.rglob("*answer*.json")):
        try:
            answer = read_json(file, Answer, "not an answer; ask for it again", most_bytes=2**16)
        except UserError as error:
            found.append(HandedIn(file, None, str(error)))
        else:
            found.append(HandedIn(file, answer))
    return sorted(found, key=lambda each: each.answer.time if each.answer else "")


def _name_below(place: Path, folder: Path) -> str:
    """The path below a folder, or the name of the folder itself."""
    return folder.resolve().name if place == folder else place.relative_to(folder).as_posix()


def _owner(handed_in: HandedIn, folder: Path, students: Sequence[Student]) -> str | None:
    """The name of the student who handed an answer in; None if that cannot be told.

    A folder that is called as that of a student of the class says so, whatever else is around it.
    If there is none, because only files came back for example, the answer itself says whose it is.
    """
    below = handed_in.file.parent.relative_to(folder)
    called = [place.as_posix() for place in (below, *below.parents)]
    called += [place.name for place in (below, *below.parents)]
    names = {student.name for student in students}
    if named := next((name for name in called if name in names), None):
        return named
    if handed_in.answer is None:
        return None
    given = handed_in.answer.exercise
    same = [student.name for student in students if student.exercise == given]
    changed = [student.name for student in students if _has_number_of(student, given)]
    return next(iter([*same, *changed]), None)


def _has_number_of(student: Student, exercise: Exercise) -> bool:
    """Whether an exercise has the number in the class of a student, whatever else it says."""
    own = student.exercise
    return own is not None and (own.seed, own.student) == (exercise.seed, exercise.student)


def _left_over(folder: Path, graded: Sequence[Path], strangers: Sequence[HandedIn]) -> list[str]:
    """What at the top of the folder holds nothing that was graded, and answers of nobody."""
    if folder in graded:
        return []
    tops = {place.relative_to(folder).parts[0] for place in graded}
    of_nobody = {each.file.relative_to(folder).as_posix() for each in strangers}
    named = {Path(path).parts[0] for path in of_nobody}
    rest = {entry.name for entry in folder.glob("[!.]*")} - tops - named
    return sorted(rest | of_nobody)


# Marks ---------------------------------------------------------------------------------------


def _mark(student: Student, handed_in: Sequence[HandedIn], folder: Path) -> Mark:
    """A student's row; the last answer that can be read counts."""
    if student.exercise is None:
        return Mark(student.name, note=student.note)
    row = Mark(student.name, student.exercise.level, fault=student.exercise.answer)
    if not handed_in:
        return row._replace(note=NO_ANSWER)
    notes = [each.note for each in handed_in if each.note]
    if len(handed_in) > 1:
        places = ", ".join(each.file.relative_to(folder).as_posix() for each in handed_in)
        notes.append(f"handed in {len(handed_in)} times ({places}); the last answer counts")
    last = handed_in[-1]
    if last.answer is None:
        return row._replace(note="; ".join(notes))
    given = last.answer.exercise
    if given != student.exercise:
        is_own = _has_number_of(student, given)
        of_another = f"the answer is that of student {given.student}, seed {given.seed}"
        notes.append(f"{ABOUT} was changed before the answer" if is_own else of_another)
    is_right = last.answer.answer == student.exercise.answer and given == student.exercise
    return row._replace(
        answer=last.answer.answer,
        right="yes" if is_right else "no",
        because=last.answer.because,
        time=last.answer.time,
        note="; ".join(notes),
    )


def summary(marks: Sequence[Mark]) -> str:
    """How many answers are right, how many are wrong, and how many are missing."""
    counts = Counter(mark.right for mark in marks)
    students = "1 student" if len(marks) == 1 else f"{len(marks)} students"
    told = f"{counts['yes']} right, {counts['no']} wrong, {counts['']} not answered"
    return f"{students}: {told}"
