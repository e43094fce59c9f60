"""The smallest example of a failure as a Python script, which anybody can run to see it again."""

from toytrans.checks.outcome import Counterexample
from toytrans.checks.report import Report, Result

OF_IDS = '''\
"""{name}: {title}.

{cause}: {message}

{example}.

Written by `toytrans check --save-example`. Run it where the command was run: it asks the model as
the check did, and fails as long as the output moves.
"""

import torch

{loading}
from toytrans.testing import asker

{given}

{ids}

ask = asker(**given, precision={precision!r}, mode={mode!r})
was, now = ask(src, tgt_in)[0, {place}], ask(src_after, tgt_in_after)[0, {place}]
moved = float((now - was).abs().max())
print(f"output {place} moves by {{moved:.2g}}; {tolerance:.1g} would be rounding")
assert moved <= {tolerance!r}
'''

OF_CHECK = '''\
"""{name}: {title}.

{cause}: {message}

Written by `toytrans check --save-example`. Run it where the command was run: it asks the check
again, and fails as long as the check does.
"""

{loading}
from toytrans.testing import assert_sound

{given}

print(assert_sound(**given, only={name!r}, length={length}, seed={seed}))
'''


def failure_to_save(report: Report) -> Result | None:
    """The first failure of a report that has an example in ids, else the first of all."""
    failures = report.failures
    in_ids = (each for each in failures if each.example is not None and each.example.is_whole)
    return next(in_ids, next(iter(failures), None))


def example_script(report: Report, result: Result, loading: str, given: str) -> str:
    """A script that shows a failure again: with the tensors of its smallest example where its ids
    are all that changes, else by asking the check.

    loading: lines that import what `given` needs; given: lines that assign the arguments of
    `toytrans.check` to that name.
    """
    assert result.cause is not None
    about = {
        "name": result.name,
        "title": result.title,
        "cause": result.cause.code,
        "message": result.message,
        "loading": loading,
        "given": given,
    }
    example = result.example
    if example is None or not example.is_whole:
        length, seed = result.outcome.length, min(report.tried["seeds"])
        return OF_CHECK.format(**about, length=length, seed=seed)
    return OF_IDS.format(
        **about,
        example=example.text,
        ids=_lines_of_ids(example),
        precision=example.precision,
        mode=example.mode,
        place=example.place,
        tolerance=example.tolerance,
    )


def _lines_of_ids(example: Counterexample) -> str:
    """The ids before the change and after it, as tensors."""
    names = ("src", "tgt_in", "src_after", "tgt_in_after")
    values = (*example.before[:2], *example.after[:2])
    return "\n".join(
        f"{name} = torch.tensor({ids.tolist()}, dtype=torch.int64)"
        for name, ids in zip(names, values, strict=True)
    )
