"""Results of models that learned in a live page, each a line that a student copies:

    reverse, small, seed 7, learned with everything: answer given 1.000, alone 1.000, 620 steps

A name may stand before it, "Ada: reverse, ...". The page writes such lines (templates/learn/save.js
of live/), and `read_results` reads a file of them into a table.
"""

import re
from pathlib import Path
from typing import NamedTuple

from toytrans.errors import UserError
from toytrans.files import read_named

TASKS = ("reverse", "copy", "sort")
"""Tasks that a model can learn in a page."""

MODELS = ("small", "textbook")
"""Shipped configs whose models learn in a page."""

PARTS = {
    "causal": ("no_causal", "the causal mask"),
    "pad": ("pad_visible", "the pad mask"),
    "scale": ("no_scale", "the scale"),
    "places": ("no_position", "position codes"),
}
"""What a model can learn without there, by the page's name: the fault that takes it away here, and
the words of a line."""

MOST_BYTES = 10_000_000
"""Of a file of lines."""

_NUMBER = "[0-9]{1,10}"
_WORDS = "|".join(words for _, words in PARTS.values())
_LINE = re.compile(
    r"(?:(?P<student>.*?): )?"
    rf"(?P<task>{'|'.join(TASKS)}), "
    rf"(?P<model>{'|'.join(MODELS)}"
    rf"|d {_NUMBER}, {_NUMBER} heads?, {_NUMBER}\+{_NUMBER} layers, d_ff {_NUMBER}), "
    rf"seed (?P<seed>{_NUMBER})"
    rf"(?:, lengths (?P<lengths>{_NUMBER} to {_NUMBER}))?, "
    rf"learned (?:with everything|without (?P<without>(?:{_WORDS})(?: and (?:{_WORDS}))*)): "
    r"answer given (?P<given>[01]\.[0-9]{3}), alone (?P<alone>[01]\.[0-9]{3}), "
    rf"(?P<steps>{_NUMBER}) steps"
)


class Result(NamedTuple):
    """A row of the table. lengths: empty where they are those of the shipped config. without: what
    the model learned without; empty = nothing. given, alone: shares of pairs that are right."""

    student: str
    task: str
    model: str
    seed: int
    lengths: str
    without: str
    given: float
    alone: float
    steps: int


class Unread(NamedTuple):
    """A line that is no result."""

    number: int
    text: str


def read_results(path: Path) -> tuple[list[Result], list[Unread]]:
    """The results in a file, in its order, and the lines that are none. Empty lines and those that
    begin with # are left out. Raises UserError if the file cannot be read or holds no result."""
    text = read_named(path, MOST_BYTES, kind="file of results").decode(errors="replace")
    results, unread = list[Result](), list[Unread]()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            unread.append(Unread(number, line))
        else:
            results.append(_result(found))
    if not results:
        raise UserError(f"{path}: holds no line that a live page gives for a result")
    return results, unread


def _result(found: re.Match[str]) -> Result:
    return Result(
        found["student"] or "",
        found["task"],
        found["model"],
        int(found["seed"]),
        found["lengths"] or "",
        found["without"] or "",
        float(found["given"]),
        float(found["alone"]),
        int(found["steps"]),
    )
