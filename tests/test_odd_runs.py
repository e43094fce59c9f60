"""Runs whose files or names are odd: a page, a table and a notebook show what is sound of them."""

import csv
import io
import os
import re
import shutil
from pathlib import Path

import pytest
from conftest import Command

import toytrans
from toytrans.config.faults import hide


@pytest.fixture(autouse=True)
def one(run: Path, here: Path) -> Path:
    """A run in the working directory whose page is made at once: it has no checkpoint."""
    shutil.copytree(run, here / "whole")
    ignored = shutil.ignore_patterns("checkpoints")
    return Path(shutil.copytree(run, here / "one", ignore=ignored))


def pages(command: Command, *runs: str) -> str:
    """The page of some runs, without its scripts."""
    Path("page.html").unlink(missing_ok=True)
    answer = command("report", *runs, "--out", "page.html")
    assert answer.code == 0, answer.err
    text = Path("page.html").read_text()
    return text[text.index("<main") : text.rindex("</main>")]


# Records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["null", "1e999", '"text"'])
def test_odd_numbers_end_in_no_traceback(value: str, one: Path, command: Command):
    metrics = one / "metrics.jsonl"
    metrics.write_text(re.sub(r'("(?!step)\w+": )[^,}]+', rf"\g<1>{value}", metrics.read_text()))
    pages(command, "one")
    assert command("doctor", "one").code in (0, 1)
    shutil.copy(one / "metrics.jsonl", "whole/metrics.jsonl")
    kept = toytrans.curves(toytrans.load("whole"))
    assert repr(kept) and kept._repr_html_() is not None


def test_lines_that_are_no_records_are_counted(one: Path, command: Command):
    metrics = one / "metrics.jsonl"
    metrics.write_text(f'[]\n{metrics.read_text()}{{"step": 9')  # as a kill may leave the last one
    assert "one/metrics.jsonl: lines that hold no record: 1" in pages(command, "one")
    metrics.write_text('{"step": 1}\n{"step": 2, "loss": null, "valid_exact_match": null}\n')
    page = pages(command, "one", "whole")
    assert page.count("not measured") >= 2 and "hold no record: " not in page


def test_a_page_of_several_runs_says_which_are_broken(one: Path, command: Command):
    hidden = hide("no_causal")
    for name, fault in (("broken", "no_causal"), ("exercise", hidden)):
        shutil.copytree(one, name)
        config = Path(name, "resolved.yaml")
        config.write_text(config.read_text().replace("fault: null", f"fault: {fault}"))
    page = pages(command, "broken", "exercise")
    assert page.count("broken on purpose: no_causal") == page.count("an exercise") == 1


# Names -----------------------------------------------------------------------------------------

NO_UTF8 = os.fsdecode(b"run-\xff\xfe")


def test_a_name_that_is_no_utf8_is_written_as_it_is(command: Command):
    os.rename("whole", NO_UTF8)
    assert command("eval", NO_UTF8, "--csv", "table.csv", "--plot", "plot.svg").code == 0
    assert os.fsencode(NO_UTF8) in Path("table.csv").read_bytes()
    words = ("export", NO_UTF8, "--format", "safetensors", "--out", "weights")
    assert command(*words).code == 0


@pytest.mark.parametrize("start", ["=", "-", "\t"])
def test_no_cell_is_a_formula(start: str, command: Command):
    name = f"{start}HYPERLINK(1)"
    os.rename("whole", name)
    assert command("eval", "--csv", "table.csv", "--", name).code == 0
    rows = list(csv.DictReader(io.StringIO(Path("table.csv").read_bytes().decode(), newline="")))
    runs = {(row["run"], row["seed"]) for row in rows if row["of"] == "run"}
    assert runs == {(f"'{name}", "0")}
