"""The harm of faults: every fault is measured, on a config that is valid, and documented."""

import re
from pathlib import Path
from typing import get_args

from conftest import script

from toytrans.config.load import load_config
from toytrans.config.names import FaultName
from toytrans.exercises.fault_cards import CARDS

ROOT = Path(__file__).parents[2]
FAULTS = set(get_args(FaultName))


def test_every_fault_is_trained_or_planted():
    harm = script("fault_harm")
    measured = {fault for group in harm.GROUPS.values() for fault in group.faults}
    assert measured | set(harm.PLANTED) == FAULTS
    for group in harm.GROUPS.values():
        changes = [f"{key}={value}" for key, value in group.changes.items()]
        for fault in group.faults:
            assert load_config(harm.TEXTBOOK, [*changes, f"fault={fault}"]).fault == fault


def test_the_page_has_a_row_for_every_fault_and_cards_name_the_command():
    page = (ROOT / "docs/teaching.md").read_text()
    rows = re.findall(r"^\| (?:textbook|one_head|mixed|planted) \| (\w+) \|", page, re.MULTILINE)
    assert set(rows) == FAULTS | {"none"}
    for fault, card in CARDS.items():
        assert f"--break {fault}" in card.shown_by or "check RUN --break" in card.shown_by
