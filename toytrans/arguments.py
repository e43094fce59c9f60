"""Checks of what a program gives to `toytrans`' functions; commands let Typer check theirs."""

from collections.abc import Sequence
from typing import Any

from toytrans.errors import UserError


def checked_lengths(lengths: Any) -> tuple[int, int] | None:
    """Lengths as a pair of numbers. Raises UserError."""
    if lengths is None:
        return None
    pair = tuple(lengths) if isinstance(lengths, list | tuple) else ()
    if len(pair) != 2 or not all(type(n) is int for n in pair) or not 0 <= pair[0] <= pair[1]:
        raise UserError(f"lengths {lengths!r}: write the shortest and the longest, say (1, 400)")
    return pair


def check_whole(least: int, **numbers: int | None) -> None:
    """Raise UserError for an argument that is neither None nor a whole number from `least`."""
    for name, number in numbers.items():
        if number is not None and (type(number) is not int or number < least):
            raise UserError(f"{name} {number!r}: expected a whole number, {least} or more")


def check_choice(choices: Sequence[str], **values: str) -> None:
    """Raise UserError for an argument that is none of the choices."""
    for name, value in values.items():
        if value not in choices:
            raise UserError(f"{name} {value!r}: take {' or '.join(choices)}")
