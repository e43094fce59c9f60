"""Check every model of the zoo: python -m zoo [-k PART OF A NAME] [-w] [-q] [-p 2]."""

import argparse
import contextlib
import io
import multiprocessing
import sys
import time
import traceback
import warnings
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import torch

import toytrans
from toytrans.errors import UserError

from . import Entry, entries


class Result(NamedTuple):
    """What an entry got: its verdict, the checks that fail, what they say, and CPU seconds."""

    verdict: str
    checks: tuple[str, ...]
    words: str
    seconds: float

    def is_right(self, entry: Entry) -> bool:
        fits = not entry.checks or bool(set(self.checks) & set(entry.checks))
        return self.verdict in entry.verdicts and (self.verdict != "FAIL" or fits)


def run(entry: Entry, quick: bool = False) -> Result:
    """Check one model; quick: at the shortest length alone, where that can show its verdict."""
    begun = time.process_time()
    arguments: dict[str, Any] = entry.build()
    if quick and not entry.is_long:
        arguments["length"] = 7
    words, checks = "", ()
    try:
        report = toytrans.check(**arguments)
        verdict = report.verdict
        checks = tuple(result.name for result in report.failures)
        shown = [r for r in report.results if r.verdict in ("FAIL", "cannot judge")]
        words = "\n".join(f"{r.name} {r.verdict}: {r.message}" for r in shown)
    except UserError as refusal:
        verdict, words = "refused", str(refusal)
    except Exception:
        verdict, words = "crash", traceback.format_exc(limit=-4)
    return Result(verdict, checks, words, time.process_time() - begun)


def run_alone(number: int, quick: bool) -> Result:
    """As `run` on the entry of that number, in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stderr(io.StringIO()):
        return run(entries()[number], quick)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only entries whose family and name hold this")
    parser.add_argument("-w", action="store_true", help="show only those that are wrong")
    parser.add_argument("-q", action="store_true", help="as the tests do, at short lengths")
    parser.add_argument("-p", type=int, default=2, help="processes")
    given = parser.parse_args()
    known = dict(enumerate(entries()))
    chosen = {n: e for n, e in known.items() if given.k in f"{e.family} {e.name}"}
    wrong, seconds = 0, 0.0
    with multiprocessing.get_context("fork").Pool(given.p) as pool:
        results = pool.imap(partial(run_alone, quick=given.q), chosen)
        for entry, result in zip(chosen.values(), results, strict=True):
            right = result.is_right(entry)
            wrong, seconds = wrong + (not right), seconds + result.seconds
            if not right or not given.w:
                show(entry, result, right)
    kinds = ", ".join(
        f"{n} {verdict}" for verdict, n in Counter(e.verdict for e in chosen.values()).items()
    )
    print(f"{len(chosen)} entries ({kinds}), {wrong} wrong, {seconds:.0f} s of CPU")
    return int(wrong > 0)


def show(entry: Entry, result: Result, right: bool) -> None:
    mark, name = "   " if right else "!!!", f"{entry.family}: {entry.name}"
    names = " ".join(result.checks)
    got = f"{result.verdict:13}{names:30}{result.seconds:6.2f} s"
    print(f"{mark} {name:60} {entry.verdict:13}{got}", flush=True)
    if not right:
        print(f"      {entry.why} Expected {entry.verdict} {entry.checks}")
        print("\n".join(f"      {line}" for line in result.words.splitlines()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
