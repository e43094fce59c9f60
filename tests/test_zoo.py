"""Every model of the zoo gets the verdict that it must get."""

import pytest
from zoo import Entry, entries
from zoo.__main__ import is_right, run

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ested.tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]


def count(verdict: str) -> int:
    return sum(entry.verdict == verdict for entry in entries())


def test_the_zoo_is_large_enough():
    assert count("FAIL") >= 80 and count("PASS") >= 110


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.family}: {entry.name}")
def test_a_model_gets_its_verdict(entry: Entry):
    verdict, letters, told = run(entry)
    assert is_right(entry, verdict, letters), f"{entry.why} Got {verdict} {letters}:\n{told}"
