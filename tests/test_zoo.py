"""Every model of the zoo gets the verdict that it must get."""

from collections import Counter

import pytest
from zoo import Entry, entries
from zoo.__main__ import run

from toytrans.checks import CHECKS, plan

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ested.tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]


def test_the_zoo_holds_models_that_fail_each_check_and_sound_ones():
    verdicts = Counter(entry.verdict for entry in entries())
    assert verdicts["FAIL"] >= 80 and verdicts["PASS"] >= 40
    assert {name for entry in entries() for name in entry.checks} == {*CHECKS}


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.family}: {entry.name}")
def test_a_model_gets_its_verdict(entry: Entry, monkeypatch: pytest.MonkeyPatch):
    """Of a sound model that costs much, the longest sequences are left out."""
    if entry.verdict == "PASS":
        monkeypatch.setattr(plan, "WORK", 10e9)
    result = run(entry, quick=True)
    assert result.is_right(entry), f"{entry.why} Got {result.verdict}.\n{result.words}"
