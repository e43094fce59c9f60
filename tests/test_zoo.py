"""Every model of the zoo gets the verdict that it must get."""

from collections import Counter

import pytest
from zoo import Entry, entries

import toytrans
from toytrans.checks import run
from toytrans.checks.rules import CHECKS
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


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_a_model_gets_its_verdict(entry: Entry, monkeypatch: pytest.MonkeyPatch):
    """Of a sound model that costs much, the longest sequences are left out. A faulty one is asked
    for the checks that find it, of which one failure is the verdict, whatever others say."""
    extent = {"effort": "quick"} if entry.is_quick else {} if entry.is_long else {"length": 7}
    arguments = entry.build() | extent
    if entry.verdict == "PASS":
        monkeypatch.setattr(run, "WORK", 10e9)
    elif entry.verdict == "FAIL" and entry.checks:
        arguments["only"] = entry.checks
    try:
        report = toytrans.check(**arguments)
        verdict = report.verdict
        words = "\n".join([str(report), *(found.message for found in report.results)])
        parts = [part for found in report.results for part in found.parts.values()]
        doubts = {part.cause.code for part in parts if part.cause and part.cause.is_doubt}
        failed = report.failures[:1] if entry.is_first else report.of("FAIL")
        causes = {found.cause.code for found in failed if found.cause} | doubts
    except UserError as refusal:
        verdict, words, causes, doubts = "refused", str(refusal), set(), set()
    assert verdict in entry.verdict.split(" or "), words
    if verdict == "PASS":
        assert {found.name for found in report.of("PASS")} >= set(entry.checks), words
    assert not entry.cause or entry.cause in causes, words
    assert entry.doubts is None or doubts == {*entry.doubts.split()}, words
    assert entry.says in words
