"""The checks in a test suite of your own.

from toytrans.testing import assert_sound

def test_my_model():
    assert_sound(build_model(), pad_id=0, vocabulary_size=1000, start_id=1, eos_id=2)
"""

from typing import Any

from toytrans.checks.report import CheckFailed, Report
from toytrans.checks.run import check

__all__ = ["CheckFailed", "assert_sound"]


def assert_sound(model: Any, **given: Any) -> Report:
    """The report of `toytrans.check(model, **given)`, where every check that applies passes.

    Raises CheckFailed, an AssertionError with the text of the report, where one fails, or where
    pads, the future, a given loss or one that `only` names could not be judged: its message says
    what to give.
    """
    __tracebackhide__ = True  # of pytest: its failures show the caller's line
    report = check(model, **given)
    report.raise_if_failed()
    unjudged = [result for result in report.results if result.verdict != "PASS"]
    if given.get("only") and unjudged:
        first = unjudged[0]
        raise CheckFailed(f"{first.name} {first.verdict}: {first.message}\n{report}")
    return report
