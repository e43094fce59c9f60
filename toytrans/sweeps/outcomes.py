"""What became of a run: its numbers, or the reason why it has none."""

import contextlib
from pathlib import Path

from pydantic import BaseModel

from toytrans.config import Config
from toytrans.errors import UserError
from toytrans.safe_io import Unreadable, read_json
from toytrans.sweeps.groups import PARTS, Member
from toytrans.sweeps.measure import ExactMatch
from toytrans.sweeps.processes import Failure
from toytrans.sweeps.trial import Taken, Trial, read_result
from toytrans.training.run import is_run, unfinished
from toytrans.training.writing import write_json

FAILED, TEST = "failed.json", "test"


class _Failed(BaseModel):
    """failed.json."""

    reason: str
    final: bool


def is_done(trial: Trial) -> bool:
    """Whether nothing is left to do: a trial has its result, or would fail again."""
    if trial.result() is not None:
        return True
    failure = read_failure(trial.path)
    return failure is not None and failure.final


def keep_failure(run: Path, failure: Failure | None) -> None:
    """Remember how a trial has ended. A full disk stops no sweep: the reason is printed too."""
    with contextlib.suppress(OSError):
        if failure is None:
            (run / FAILED).unlink(missing_ok=True)
        else:
            write_json(run / FAILED, {"reason": failure.reason, "final": failure.final})


def read_failure(run: Path) -> Failure | None:
    """Why a trial failed when it was last tried, as far as that can be read."""
    with contextlib.suppress(Unreadable):
        if saved := read_json(run / FAILED, _Failed, "not a failure"):
            return Failure(saved.reason, saved.final)
    return None


def outcome(run: Path, config: Config, measure: ExactMatch) -> Member:
    """A run by its files: its numbers, if it has been measured so."""
    try:
        result = read_result(run)
    except UserError as error:
        return Member(run, config, trouble=str(error))
    taken = (result or {"measures": {}})["measures"].get(TEST)
    if taken is not None and taken["asked"] == measure.asked():
        return with_numbers(run, config, taken)
    if failure := read_failure(run):
        return Member(run, config, trouble=failure.reason)
    if not is_run(run):
        return Member(run, config, trouble="not begun")
    step = unfinished(run)
    return Member(run, config, trouble=f"unfinished: {step}" if step else "not measured")


def with_numbers(run: Path, config: Config, taken: Taken) -> Member:
    """A run with what a measure gave."""
    values = {part: taken[part] for part in PARTS if taken.get(part) is not None}
    curve = {int(length): value for length, value in taken["by_length"].items()}
    if taken["asked"]["lengths"] is None:
        curve = {}
    free = float(taken.get("exact_match_difference") or 0.0)
    return Member(run, config, values, curve, free)
