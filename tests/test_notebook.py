"""docs/notebook.ipynb runs, and the outputs that it holds are those of this version."""

import json
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


@pytest.mark.filterwarnings("default")  # jupyter's own
def test_the_notebook_runs_and_has_the_outputs_that_it_holds(tmp_path: Path):
    held, run = (nbformat.read(NOTEBOOK, as_version=4) for _ in "12")
    NotebookClient(run, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert outputs(run) == outputs(held)
    shown = [forms for cell in outputs(held) for forms in cell]
    assert sum("text/html" in forms for forms in shown) == 4, "curve, report, masks, maps"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_the_notebook_is_small_and_names_no_machine():
    text = NOTEBOOK.read_text()
    assert len(text) < 100_000
    for word in ("/home", "/root", "/tmp", "/work", "elapsed_s", "iopub"):
        assert word not in text, word
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
