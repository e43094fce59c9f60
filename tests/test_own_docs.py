"""The examples of docs/own.md and docs/checks.md are the files of docs/examples/."""

from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("example", sorted((DOCS / "examples").glob("my_*.py")), ids=str)
def test_the_page_shows_the_examples(example: Path):
    """tests/test_documented_commands.py runs them."""
    assert f"```python\n{example.read_text()}```" in (DOCS / "own.md").read_text()


def test_the_page_of_checks_shows_its_example():
    example = (DOCS / "examples/checked_model.py").read_text()
    assert f"```python\n{example}```" in (DOCS / "checks.md").read_text()
