"""The harm of faults: docs/teaching.md has the measured harm of each."""

import re
from pathlib import Path
from typing import get_args

from toytrans.config.names import FaultName
from toytrans.exercises.fault_cards import CARDS

ROOT = Path(__file__).parents[2]
FAULTS = set(get_args(FaultName))


def test_the_page_has_a_row_for_every_fault_and_cards_name_the_command():
    page = (ROOT / "docs/teaching.md").read_text()
    rows = re.findall(r"^\| (?:textbook|one_head|mixed|planted) \| (\w+) \|", page, re.MULTILINE)
    assert set(rows) == FAULTS | {"none"}
    for fault, card in CARDS.items():
        assert f"--break {fault}" in card.shown_by or "check RUN --break" in card.shown_by
