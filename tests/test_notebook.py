"""docs/notebook.ipynb runs, and the outputs that it holds are those of this version."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient

NOTEBOOK = ROOT / "docs/notebook.ipynb"


def outputs(notebook: nbformat.NotebookNode) -> list[list[set[str]]]:
    """The forms of each output of each cell."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[set(one.get("data", {one.output_type: 0})) for one in cell.outputs] for cell in cells]


def first_lines(notebook: nbformat.NotebookNode) -> list[str]:
    """The first line of each output. # stands for a number: another processor may round it."""
    shown = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    texts = [one.get("text") or one.data["text/plain"] for one in shown]
    return [re.sub(r"\d[\d.e-]*", "#", text.splitlines()[0]) for text in texts]


@pytest.mark.filterwarnings("default")  # jupyter's own
def test_the_notebook_runs_and_has_the_outputs_that_it_holds(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    """A cell types a command; it is that of this Python, whatever PATH has."""
    command = tmp_path_factory.mktemp("programs") / "toytrans"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m toytrans "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    held, run = (nbformat.read(NOTEBOOK, as_version=4) for _ in "12")
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(run, timeout=None, coalesce_streams=True, resources=where).execute()
    assert outputs(run) == outputs(held)
    assert first_lines(run) == first_lines(held)
    shown = [forms for cell in outputs(held) for forms in cell]
    assert sum("text/html" in forms for forms in shown) == 4, "curve, report, masks, maps"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_the_notebook_is_small_and_names_no_machine():
    text = NOTEBOOK.read_text()
    assert len(text) < 100_000
    assert not re.search("/home|/root|/tmp|/work|elapsed_s|iopub", text)
    counts = re.findall(r'^   "execution_count": (\d+)', text, re.MULTILINE)
    assert counts == [str(number) for number in range(1, len(counts) + 1)]
