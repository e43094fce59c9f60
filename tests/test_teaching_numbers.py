"""What scripts/teaching_numbers.py measures are the rows that the pages show, each of them."""

from pathlib import Path

import pytest
from conftest import ROOT, script

TINY = {"train.max_steps": 2, "data.valid_examples": 8, "data.test_examples": 40}


def first_cells(page: str, head: str) -> list[tuple[str, str]]:
    """The first two cells of each row of a table."""
    text = (ROOT / f"docs/{page}.md").read_text()
    table = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in row.split("|")[1:3]) for row in table]


def test_the_tables_of_the_pages_have_the_rows_that_are_measured():
    numbers = script("teaching_numbers")
    shown = first_cells("teaching", "| group | fault |")
    trained = [
        (group, f or "none") for group, (fs, _) in numbers.GROUPS.items() for f in (None, *fs)
    ]
    assert shown == trained + [("planted", fault) for fault in numbers.PLANTED]
    assert [part for part, _ in first_cells("lessons/3-why", "| left out |")] == [*numbers.PARTS]
    assert [name for name, _ in first_cells("results", "| model | lengths")] == [*numbers.RIVALS]


@pytest.mark.slow
@pytest.mark.parametrize("section", ["faults", "parts", "rivals"])
def test_a_section_prints_its_table_and_goes_on_where_it_was_stopped(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    numbers = script("teaching_numbers")
    monkeypatch.setattr(numbers, "GROUPS", {"textbook": (("no_causal",), TINY)})
    monkeypatch.setattr(numbers, "PLANTED", ("no_scale",))
    for name in ("PARTS", "RIVALS"):
        tiny = {part: changes | TINY for part, changes in getattr(numbers, name).items()}
        monkeypatch.setattr(numbers, name, tiny)
    monkeypatch.setattr(numbers, "ROUNDS", 1)
    printed = []
    for _ in "12":
        numbers.main([section, "--seeds", "1", "--folder", str(tmp_path)])
        out = capsys.readouterr().out
        printed.append([line for line in out.splitlines() if line.startswith("| ")])
    rows = {"faults": 3, "parts": 9, "rivals": 3}[section]
    assert printed[0] == printed[1] and len(printed[0]) == 1 + rows
    assert (tmp_path / "parts/lessons.png").exists() == (section == "parts")
