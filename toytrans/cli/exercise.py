"""`toytrans exercise`: runs with a fault that students have to find."""

import secrets
from pathlib import Path
from typing import Annotated, Literal

import typer

from toytrans.cli.common import write_new
from toytrans.cli.explain import print_card
from toytrans.cli.terminal import note, output, plain, print_table
from toytrans.errors import listed
from toytrans.exercises import MOST_ANSWERS, MOST_STUDENTS
from toytrans.files import csv_bytes, read_whole

app = typer.Typer(no_args_is_help=True, help="Set, solve and grade exercises: find the fault.")

Folder = Annotated[Path, typer.Argument(metavar="[DIR]", help="The exercise's folder.")]
Key = Annotated[
    str, typer.Option("--key", metavar="KEY", help="The teacher's key, printed by `new`.")
]
HERE = Path()

MOST_BYTES = 10_000_000
"""Of a file of grades."""


def _say(text: str) -> None:
    output().print(plain(text))


@app.command()
def new(
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the run.")] = 0,
    level: Annotated[
        int, typer.Option(min=1, max=3, help="1: the table shows it. 3: hardly seen, or none.")
    ] = 1,
    students: Annotated[
        int | None,
        typer.Option("--class", min=1, max=MOST_STUDENTS, help="One for each of so many students."),
    ] = None,
    closed: Annotated[
        bool,
        typer.Option("--closed", help="Grading alone tells what is right; `check` tells no cause."),
    ] = False,
    answers: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_ANSWERS, help="Most answers. Default: any; 1 with --closed."),
    ] = None,
    language: Annotated[
        Literal["en", "ko"], typer.Option(help="Language of the student's sheet.")
    ] = "en",
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="The teacher's key. Default: a new one, printed."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder. Default: exercise-SEED or class-SEED."),
    ] = None,
) -> None:
    """Write an exercise, or one for each student of a class, into a new folder.

    It names the fault nowhere. The same options and key give the same exercise again.
    """
    from toytrans.exercises import exercise as exercises

    made = secrets.token_hex(6) if key is None else key
    chosen: Literal[1, 2, 3] = (1, 2, 3)[level - 1]
    folder = out or Path(f"{'exercise' if students is None else 'class'}-{seed}")
    limit = answers or (1 if closed else None)
    drawn = [
        exercises.draw(made, seed, chosen, n + 1, closed=closed, limit=limit)
        for n in range(students or 1)
    ]
    exercises.write(drawn, folder, language, numbered=students is not None)
    what = f"{students} exercises" if students else "an exercise"
    first = min([*folder.glob(exercises.SHEET), *folder.glob(f"*/{exercises.SHEET}")])
    _say(f"{folder}: {what} of level {level}; start with {first}")
    if key is None:
        _say(f"teacher's key: {made}")
        note("keep the key: no file has it, and `exercise reveal` and `exercise grade` need it")


@app.command()
def check(
    answer: Annotated[str, typer.Argument(metavar="ANSWER", help="The fault's name, or none.")],
    exercise: Folder = HERE,
) -> None:
    """Tell whether an answer is right; a right one stands. Exit code 1 if it is wrong.

    Of a closed exercise, the answer is written down only.
    """
    from toytrans.exercises import exercise as exercises

    right, count = exercises.answer(exercise, answer)
    if right is None:
        _say(f"written down: {answer}; answers: {count}; the grading judges it")
    elif right:
        _say(f"right: {answer}; answers: {count}")
    else:
        _say(f"wrong: it is not {answer}; answers so far: {count}")
        raise typer.Exit(1)


@app.command()
def hint(exercise: Folder = HERE) -> None:
    """Give the next hint, below those given before: three in all, two of a closed exercise."""
    from toytrans.exercises import exercise as exercises

    hints, most = exercises.hint(exercise)
    for number, text in enumerate(hints, 1):
        _say(f"{number}. {text}")
    last = "; there are no more" if len(hints) == most else ""
    _say(f"hints used: {len(hints)} of {most}{last}")


@app.command()
def reveal(key: Key, exercise: Folder = HERE) -> None:
    """Tell the right answer, to the teacher."""
    from toytrans.exercises import exercise as exercises

    answer = exercises.reveal(exercise, key)
    if answer == exercises.NONE:
        _say("none: nothing is broken")
    else:
        print_card(answer)


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a class.")],
    key: Key,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a CSV file; one that exists is replaced."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write an HTML page; one that exists is replaced."),
    ] = None,
) -> None:
    """Grade the exercises of a class: answers, numbers of answers and of hints, times."""
    from toytrans.exercises import exercise as exercises

    marks, columns = exercises.grade(folder, key), exercises.Mark._fields
    total = exercises.summary(marks)
    if csv is not None:
        _write_grades(csv, csv_bytes([columns, *marks]))
    if page is not None:
        from toytrans.report.page import Grid, Section
        from toytrans.report.page import page as page_of

        table = Grid(columns, marks, "data sortable lines")
        grades = Section("grades", "Grades", text=total, table=table)
        _write_grades(page, page_of(folder.resolve().name, [grades]).encode(errors="replace"))
    numbers = ("answer", "right", "fault", "answers", "hints")  # whole on one line
    rows = [[m.student, *(str(getattr(m, name)) or "-" for name in numbers)] for m in marks]
    print_table(("student",), numbers, rows)
    for mark in marks:
        if mark.note:
            _say(f"{mark.student}: {mark.note}")
    _say(total)
    if names := exercises.left_out(folder):
        note(f"not graded, no exercise found in them: {listed(names)}")


def _write_grades(path: Path, raw: bytes) -> None:
    """Write a file of grades, which replaces one that begins alike. Raises UserError."""
    begins = raw[: raw.index(b"\n") + 1]
    is_ours = path.is_file() and read_whole(path, MOST_BYTES).startswith(begins)
    write_new(path, raw, replace=is_ours)
