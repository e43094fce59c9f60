"""`toytrans exercise`: write exercises in which a fault has to be found, answer and grade them."""

import codecs
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import typer

from toytrans.cli.explain import print_card
from toytrans.cli.new_files import check_new, write_new
from toytrans.cli.terminal import note, output, plain, show
from toytrans.documents import csv_bytes
from toytrans.errors import UserError, listed
from toytrans.exercises import exercise as exercises
from toytrans.exercises import grading, results
from toytrans.html import table_html
from toytrans.report.page import Section
from toytrans.report.page import page as page_of
from toytrans.table import Table, TextColumn


def new(
    seed: int | None,
    level: int,
    faults: str | None,
    students: int | None,
    language: Literal["en", "ko"],
    out: Path | None,
) -> None:
    """Write an exercise, or one for each student of a class, into a new folder."""
    if seed is None:
        seed = secrets.randbelow(1_000_000)
    drawn_from = None if faults is None else exercises.faults_named(faults)
    chosen = cast(Literal[1, 2, 3], level)  # Typer has refused any other
    if students is None:
        folder = out or Path(f"exercise-{seed}")
        exercises.write_exercise(folder, seed, chosen, language, drawn_from)
        _say(f"{folder}: an exercise of level {level}; start with {folder / exercises.SHEET}")
    else:
        folder = out or Path(f"class-{seed}")
        exercises.write_class(folder, students, seed, chosen, language, drawn_from)
        _say(f"{folder}: exercises of level {level}, a folder for each of {students} students")
        _say("hand out copies, a folder each, and collect every answer.json in a new folder:")
        _say(f"toytrans exercise grade COLLECTED --class {folder}")


def answer(
    name: str,
    folder: Path,
    because: str,
) -> None:
    """Answer with the name of a fault. Who works alone is told at once if it is right."""
    name = name.strip()
    exercises.check_name(name)
    exercise = exercises.read_exercise(folder)
    exercises.check_answer(exercise, name)
    if exercise.student is not None:
        exercises.write_answer(folder, exercise, name, because.strip())
        _say(f"written down: {name}; it is judged when the class is graded")
    elif because:
        raise UserError("--because is for a class; you are told at once whether you are right")
    elif name != exercise.answer:
        _say(f"wrong: it is not {name}; {exercises.where_to_look(exercise)}")
        raise typer.Exit(1)
    elif name == exercises.NONE:
        _say("right: nothing is broken")
    else:
        _say("right:")
        print_card(name)


def grade(
    folder: Path,
    class_folder: Path | None,
    csv: Path | None,
    page: Path | None,
) -> None:
    """Judge the answers of a class, and tell the faults. A single exercise is told too."""
    for file in (csv, page):
        check_new(file)
    if folder.is_file():
        _table_of_results(folder, csv, page)
        return
    marks, left_over = grading.grade(folder, class_folder or folder)
    _write_table(folder.resolve().name, grading.summary(marks), marks, csv, page)
    shown = [[mark.student, mark.answer or "-", mark.right or "-", mark.fault] for mark in marks]
    show(Table("", [TextColumn("student"), "answer", "right", "fault"], shown))
    for mark in marks:
        if mark.note and mark.note != grading.NO_ANSWER:  # the table shows that
            _say(f"{mark.student}: {mark.note}")
    _say(grading.summary(marks))
    if left_over:
        note(f"not graded, no answer of a student of the class in them: {listed(left_over)}")
    is_in_class = len(marks) > 1 or class_folder is not None
    if is_in_class and not all(mark.right for mark in marks):
        raise typer.Exit(1)


def _table_of_results(file: Path, csv: Path | None, page: Path | None) -> None:
    """Show what models have learned in a page, and the lines that say nothing of it."""
    found, unread = results.read_results(file)
    models = "1 model" if len(found) == 1 else f"{len(found)} models"
    _write_table(file.name, models, found, csv, page)
    shown = [
        [
            *(row.student or "-", _what_learned(row), f"{row.alone:.3f}", f"{row.given:.3f}"),
            *map(str, (row.numbers, row.seed, row.steps)),
        ]
        for row in results.ranked(found)
    ]
    texts = TextColumn("student"), TextColumn("learned")
    show(Table("", [*texts, "alone", "given", "numbers", "seed", "steps"], shown))
    for line in unread:
        _say(f"line {line.number} is no result: {line.text}")
    if unread:
        _say(results.A_RESULT)


def _what_learned(row: results.Result) -> str:
    lengths = f", lengths {row.lengths}" if row.lengths else ""
    without = f", without {row.without}" if row.without else ""
    return f"{row.task}, {row.model}{lengths}{without}"


def _write_table(
    title: str,
    summary: str,
    rows: Sequence[grading.Mark | results.Result],
    csv: Path | None,
    page: Path | None,
) -> None:
    """Write rows as CSV and as a page, where these are asked for. The CSV begins with a byte order
    mark, without which Excel garbles names that are not ASCII."""
    fields = type(rows[0])._fields
    if csv is not None:
        write_new(csv, codecs.BOM_UTF8 + csv_bytes([fields, *rows]))
    if page is not None:
        table = table_html(Table("", fields, rows, kind="data sortable lines"))
        grades = Section("grades", "Grades", summary, blocks=[table])
        write_new(page, page_of(title, [grades]).encode(errors="replace"))


def _say(text: str) -> None:
    output().print(plain(text))
