"""Faults with their cards, and exercises in which a fault has to be found."""

from typing import Literal

MOST_STUDENTS = 1000
MOST_ANSWERS = 100

Language = Literal["en", "ko"]
