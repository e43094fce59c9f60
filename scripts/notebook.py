"""Execute docs/notebook.ipynb in an empty folder, and write it back with its outputs.

    python scripts/notebook.py

A test executes it too. The file holds no times and no paths of a machine.
"""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "docs/notebook.ipynb"


def executed(folder: str | Path) -> nbformat.NotebookNode:
    """The notebook with the outputs that it has in a folder. Raises CellExecutionError."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=120, resources=resources, record_timing=False).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(executed(folder), NOTEBOOK)
