"""`toytrans exercise`: runs with a fault that students have to find."""

import secrets
from pathlib import Path
from typing import Annotated, Literal

import typer

from toytrans.cli.common import columns, note, output, plain, write_new
from toytrans.cli.render.proofs import print_card
from toytrans.insight.diagnosis.exercise_sheet import MOST_STUDENTS
from toytrans.safe_io import to_bytes

app = typer.Typer(no_args_is_help=True, help="Set, solve and grade exercises: find the fault.")

Folder = Annotated[Path, typer.Option("--exercise", metavar="DIR", help="The exercise's folder.")]
Key = Annotated[str, typer.Option(metavar="KEY", help="The teacher's key, printed by `new`.")]
HERE = Path()
MOST_NAMES = 10
"""Of a note."""


@app.command()
def new(
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the run.")] = 0,
    level: Annotated[
        int, typer.Option(min=1, max=3, help="1: the table shows it. 3: hardly seen, or none.")
    ] = 1,
    students: Annotated[
        int | None,
        typer.Option(
            "--class",
            min=1,
            max=MOST_STUDENTS,
            metavar="N",
            help="An exercise for each of N students.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The teacher's key. Default: a new one, printed."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder. Default: exercise-SEED or class-SEED."),
    ] = None,
) -> None:
    """Write an exercise, or one for each student of a class, into a new folder.

    It names the fault nowhere. Seed, level and key give the same exercise again.
    """
    from toytrans.insight.diagnosis import exercises

    made = secrets.token_hex(6) if key is None else key
    chosen: Literal[1, 2, 3] = (1, 2, 3)[level - 1]
    folder = out or Path(f"{'exercise' if students is None else 'class'}-{seed}")
    if students is None:
        exercises.write(exercises.draw(made, seed, chosen), folder)
    else:
        drawn = [exercises.draw(made, seed, chosen, n + 1) for n in range(students)]
        exercises.write_class(drawn, folder)
    console = output()
    what = f"{students} exercises" if students else "an exercise"
    console.print(plain(f"{folder}: {what} of level {level}; start with {_first_sheet(folder)}"))
    if key is None:
        console.print(f"teacher's key: {made}")
        note("keep the key: no file has it, and `exercise reveal` and `exercise grade` need it")


def _first_sheet(folder: Path) -> Path:
    from toytrans.insight.diagnosis import exercises

    return min([*folder.glob(exercises.SHEET), *folder.glob(f"*/{exercises.SHEET}")])


@app.command()
def check(
    answer: Annotated[str, typer.Argument(metavar="ANSWER", help="The fault's name, or none.")],
    exercise: Folder = HERE,
) -> None:
    """Tell whether an answer is right. Exit code 1 if it is wrong."""
    from toytrans.insight.diagnosis import exercises

    right, count = exercises.answer(exercise, answer)
    if not right:
        output().print(f"wrong: it is not {answer}; answers so far: {count}")
        raise typer.Exit(1)
    output().print(f"right: {answer}; answers: {count}")


@app.command()
def hint(exercise: Folder = HERE) -> None:
    """Give the next of three hints, below those given before."""
    from toytrans.insight.diagnosis import exercises

    console, hints = output(), exercises.hint(exercise)
    for number, text in enumerate(hints, 1):
        console.print(plain(f"{number}. {text}"))
    last = "; there are no more" if len(hints) == exercises.HINTS else ""
    console.print(f"hints used: {len(hints)} of {exercises.HINTS}{last}")


@app.command()
def reveal(key: Key, exercise: Folder = HERE) -> None:
    """Tell the right answer, to the teacher."""
    from toytrans.insight.diagnosis import exercises
    from toytrans.insight.diagnosis.fault_cards import CARDS

    answer = exercises.reveal(exercise, key)
    console = output()
    card = next((fault for fault in CARDS if fault == answer), None)
    if card is None:
        console.print("none: nothing is broken")
    else:
        print_card(console, card, CARDS[card])


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a class.")],
    key: Key,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a new CSV file too.")
    ] = None,
) -> None:
    """Grade the exercises of a class: last answers, numbers of answers and of hints."""
    from toytrans.insight.diagnosis import exercises

    marks = exercises.grade(folder, key)
    if csv is not None:
        write_new("--csv", csv, to_bytes(exercises.as_csv(marks)))
    from rich.box import SIMPLE_HEAD

    headings = ("student", "answer", "right", "fault")
    table = columns(headings, ("answers", "hints"), box=SIMPLE_HEAD)
    for mark in marks:
        table.add_row(
            plain(mark.student),
            plain(mark.answer or "-"),
            "yes" if mark.right else "no",
            mark.fault or "-",
            str(mark.answers),
            str(mark.hints),
        )
    console = output()
    console.print(table)
    for mark in marks:
        if mark.note:
            console.print(plain(f"{mark.student}: {mark.note}"))
    console.print(f"{sum(mark.right for mark in marks)} of {len(marks)} right")
    if names := exercises.left_out(folder):
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        note(f"not graded, no exercise found in them: {', '.join(names[:MOST_NAMES])}{more}")
