"""Every model of the zoo gets the verdict that it must get."""

from collections import Counter

import pytest
from zoo import Entry, entries

import toytrans
from toytrans.checks import plan
from toytrans.checks.result import CHECKS
from toytrans.errors import UserError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ested.tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning"),
]


def test_the_zoo_holds_models_that_fail_each_check_and_sound_ones():
    verdicts = Counter(entry.verdict for entry in entries())
    assert verdicts["FAIL"] >= 80 and verdicts["PASS"] >= 40
    failing = {check for entry in entries() if entry.verdict == "FAIL" for check in entry.checks}
    assert failing == {*CHECKS}


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.family}: {entry.name}")
def test_a_model_gets_its_verdict(entry: Entry, monkeypatch: pytest.MonkeyPatch):
    """Of a sound model that costs much, the longest sequences are left out."""
    if entry.verdict == "PASS":
        monkeypatch.setattr(plan, "WORK", 10e9)
    arguments = entry.build() | ({} if entry.is_long else {"length": 7})
    try:
        report = toytrans.check(**arguments)
        verdict = report.verdict
        words = "\n".join([str(report), *(found.message for found in report.results)])
        of = {kind: {found.name for found in report.of(kind)} for kind in ("PASS", "FAIL")}
    except UserError as refusal:
        verdict, words, of = "refused", str(refusal), {}
    assert verdict in entry.verdict.split(" or "), f"{entry.why}\n{words}"
    assert verdict != "FAIL" or not entry.checks or of["FAIL"] & set(entry.checks), words
    assert verdict != "PASS" or of["PASS"] >= set(entry.checks), words
    assert entry.says in words
