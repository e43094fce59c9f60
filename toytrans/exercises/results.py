"""Results of models that learned in a live page, each a line that a student copies:

    reverse, small, seed 7, learned with everything: answer given 1.000, alone 1.000, 620 steps

A name may stand before it, "Ada: reverse, ...". The page writes such lines (templates/learn/save.js
of live/), and `read_results` reads a file of them into a table.
"""

import re
from pathlib import Path
from typing import NamedTuple

from toytrans.config.load import load_config
from toytrans.errors import UserError
from toytrans.files import read_named
from toytrans.references import SHIPPED
from toytrans.tokens import FIRST_SYMBOL_ID

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

A_RESULT = (
    "one looks like `reverse, small, seed 7, learned with everything: answer given 1.000, alone "
    "1.000, 620 steps`"
)
"""What is said of a line that is none."""

SOLVED = 0.99
"""A share of pairs that are right alone, with which a task counts as solved."""

MOST_BYTES = 10_000_000
"""Of a file of lines."""

_NUMBER, _SIZE = "[0-9]{1,10}", "[1-9][0-9]{0,3}"
_WORDS = "|".join(words for _, words in PARTS.values())
_LINE = re.compile(
    r"(?:(?P<student>.*?): )?"
    rf"(?P<task>{'|'.join(TASKS)}), "
    rf"(?P<model>{'|'.join(MODELS)}"
    rf"|d {_SIZE}, {_SIZE} heads?, {_SIZE}\+{_SIZE} layers, d_ff {_SIZE}), "
    rf"seed (?P<seed>{_NUMBER})"
    rf"(?:, lengths (?P<lengths>{_NUMBER} to {_NUMBER}))?, "
    rf"learned (?:with everything|without (?P<without>(?:{_WORDS})(?: and (?:{_WORDS}))*)): "
    r"answer given (?P<given>[01]\.[0-9]{3}), alone (?P<alone>[01]\.[0-9]{3}), "
    rf"(?P<steps>{_NUMBER}) steps"
)


class Result(NamedTuple):
    """A row of the table.

    numbers: parameters of the model. lengths: empty where they are those of the shipped config.
    without: what the model learned without; empty = nothing. given, alone: shares of pairs that are
    right, with the answer given and written alone.
    """

    student: str
    task: str
    model: str
    numbers: int
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
        raise UserError(f"{path}: holds no result of a live page; {A_RESULT}")
    return results, unread


def ranked(results: list[Result]) -> list[Result]:
    """Those that have solved their task first, with the fewest numbers at the top; then the others,
    with the most pairs right at the top."""
    solved = [each for each in results if each.alone >= SOLVED]
    others = [each for each in results if each.alone < SOLVED]
    return [
        *sorted(solved, key=lambda each: each.numbers),
        *sorted(others, key=lambda each: -each.alone),
    ]


def _result(found: re.Match[str]) -> Result:
    return Result(
        found["student"] or "",
        found["task"],
        found["model"],
        numbers_of(found["model"]),
        int(found["seed"]),
        found["lengths"] or "",
        found["without"] or "",
        float(found["given"]),
        float(found["alone"]),
        int(found["steps"]),
    )


def numbers_of(model: str) -> int:
    """The parameters of a model, by what a line calls it: those of the transformer with one table
    for both embeddings and the output, which is all that learns in a page."""
    shipped = load_config(SHIPPED / f"{model if model in MODELS else MODELS[0]}.yaml")
    keys = shipped.model
    width, inner = keys.d_model, keys.d_ff
    encoder_layers, decoder_layers = keys.n_encoder_layers, keys.n_decoder_layers
    if model not in MODELS:
        sizes = map(int, re.findall("[0-9]+", model))
        width, _, encoder_layers, decoder_layers, inner = sizes
    ids = FIRST_SYMBOL_ID + (shipped.data.symbols or 0)
    attention = 4 * (width * width + width)
    feed_forward = 2 * width * inner + inner + width
    norm = 2 * width
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return ids * width + encoder_layers * encoder_layer + decoder_layers * decoder_layer
