"""The checks in a test suite of your own.

from toytrans.testing import assert_sound, parametrize_checks

def test_my_model():
    assert_sound(build_model(), pad_id=0, vocabulary_size=1000, start_id=1, eos_id=2)

@parametrize_checks(build_model(), pad_id=0, vocabulary_size=1000, expected={"order": "a bag"})
def test_my_model_check_by_check(check):
    check()
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from toytrans.checks.adapters import adapter_of
from toytrans.checks.caller import caller_unchanged
from toytrans.checks.registry import selected
from toytrans.checks.report import CheckFailed, Report, Result
from toytrans.checks.run import check
from toytrans.errors import UserError

if TYPE_CHECKING:
    import pytest

__all__ = ["CheckFailed", "asker", "assert_sound", "parametrize_checks"]


def assert_sound(model: Any, **given: Any) -> Report:
    """The report of `toytrans.check(model, **given)`, where every check that applies passes.

    Raises CheckFailed, an AssertionError with the text of the report, where one fails that was not
    expected to, or where pads, the future, a given loss or generate, or one that `only` names could
    not be judged: its message says what to give.
    """
    __tracebackhide__ = True  # of pytest: its failures show the caller's line
    report = check(model, **given)
    report.raise_if_failed()
    unjudged = [r for r in report.results if r.verdict not in ("PASS", "FAIL") and not r.expected]
    if given.get("only") and unjudged:
        first = unjudged[0]
        raise CheckFailed(f"{first.name} {first.verdict}: {first.message}\n{report}")
    return report


def parametrize_checks(
    model: Any, *, expected: Mapping[str, str] | None = None, **given: Any
) -> "pytest.MarkDecorator":
    """A mark that makes one pytest item of each check; the test calls its argument `check`.

    The first item that is run asks the model, with all of `toytrans.check(model, expected=expected,
    **given)`; the others look at the same report. An item fails as its check fails. One that
    cannot be judged fails where no model passes without it, and is skipped otherwise, as one that
    is not asked or does not apply. A failure that is expected is an xfail with its reason, and
    where such a check passes, the item is an XPASS.
    """
    import pytest

    @cache
    def report() -> Report:
        return check(model, expected=expected, **given)

    def item(name: str) -> Callable[[], None]:
        def check_of_model() -> None:
            __tracebackhide__ = True
            _require(report(), name)

        check_of_model.__name__ = name
        return check_of_model

    reasons = {key.partition(".")[0]: reason for key, reason in (expected or {}).items()}
    names = selected(given.get("only", ()), given.get("skip", ()))
    return pytest.mark.parametrize(
        "check",
        [
            pytest.param(
                item(name),
                id=name,
                marks=[pytest.mark.xfail(reason=reasons[name], raises=ExpectedFailure)]
                if name in reasons
                else [],
            )
            for name in names
        ],
    )


class ExpectedFailure(CheckFailed):
    """A failure of a check that is meant."""


def _require(report: Report, name: str) -> None:
    """Raise, or skip the test, as the result of a check is."""
    __tracebackhide__ = True
    import pytest

    result: Result | None = next((each for each in report.results if each.name == name), None)
    if result is None:
        raise CheckFailed(f"{name} could not be asked\n{report}")
    if result.verdict == "FAIL":
        failed = ExpectedFailure if result.expected else CheckFailed
        raise failed("\n".join(text for text, _ in report.lines_of(result)))
    if result.verdict == "PASS":
        return
    is_needed = result.check.essential or bool(result.give)
    if result.verdict == "cannot judge" and is_needed and not result.expected:
        raise CheckFailed(f"{name} cannot be judged: {result.message}")
    pytest.skip(f"{result.verdict}: {result.message}")


def asker(
    model: Any,
    *,
    precision: str = "float64",
    mode: Literal["eval", "train"] = "eval",
    **given: Any,
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function that asks a copy of a model as `toytrans.check` does: (src (B, S), tgt_in (B, T))
    -> logits (B, T, V).

    model, given: as `check` takes them. precision: of the copy, as "float32". mode: "train" asks it
    in train mode with dropout at 0. A model that cannot be copied is asked itself. Raises UserError
    as `check` does.
    """
    with caller_unchanged(model):
        adapter = adapter_of(model, **given)
    dtype = getattr(torch, precision, None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(f"precision {precision!r}: give float64, float32, bfloat16 or float16")
    asked = adapter.copied(dtype, training=mode == "train") or adapter

    def ask(src: Tensor, tgt_in: Tensor) -> Tensor:
        with torch.no_grad():
            return asked.ask(src, tgt_in)

    return ask
