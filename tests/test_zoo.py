"""Every model of the zoo gets the verdict that it must get."""

from collections import Counter

import pytest
from zoo import Entry, entries
from zoo.__main__ import run

from toytrans.checks import plan

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ested.tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]


CHOSEN = [e for i, e in enumerate(entries()) if i % 9 == 0 or e.is_long]
"""A part of them, for time; `python -m zoo` checks all, at every length."""


def test_the_zoo_is_large():
    verdicts = Counter(entry.verdict for entry in entries())
    assert verdicts["FAIL"] >= 150 and verdicts["PASS"] >= 150


@pytest.mark.parametrize("entry", CHOSEN, ids=lambda entry: f"{entry.family}: {entry.name}")
def test_a_model_gets_its_verdict(entry: Entry, monkeypatch: pytest.MonkeyPatch):
    """Of a sound model that costs much, the longest sequences are left out."""
    if entry.verdict == "PASS":
        monkeypatch.setattr(plan, "WORK", 10e9)
    result = run(entry, quick=True)
    assert result.is_right(entry), f"{entry.why} Got {result.verdict}.\n{result.words}"
