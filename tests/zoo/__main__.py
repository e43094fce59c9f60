"""Run the zoo and print what each model got: python -m tests.zoo [-k PART OF A NAME] [-w]."""

import argparse
import contextlib
import sys
import time
import traceback
import warnings
from typing import Any

import torch

import toytrans
from toytrans.errors import UserError

from . import Entry, entries


def run(entry: Entry) -> tuple[str, set[str], str]:
    """The verdict it gets, the letters of the proofs that fail, and what they say."""
    arguments: dict[str, Any] = entry.build()
    try:
        report = toytrans.check(**arguments)
    except UserError as refusal:
        return "refused", set(), str(refusal)
    except Exception:
        return "crash", set(), traceback.format_exc(limit=-4)
    verdict = getattr(report, "verdict", "PASS" if report.passed else "FAIL")
    wanted = "FAIL" if verdict == "FAIL" else "cannot judge"
    told = [f for f in report.findings if f.verdict == wanted]
    failing = {f.letter for f in report.findings if f.verdict == "FAIL"}
    return verdict, failing, "\n".join(f"({f.letter}) {f.words}" for f in told)


def is_right(entry: Entry, verdict: str, letters: set[str]) -> bool:
    fits = not entry.letters or verdict != "FAIL" or bool(letters & set(entry.letters))
    return verdict in entry.verdicts and fits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only entries whose name or family holds this")
    parser.add_argument("-w", action="store_true", help="only those that are wrong")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wrong, seconds = 0, 0.0
    chosen = [e for e in entries() if given.k in f"{e.family} {e.name}"]
    for entry in chosen:
        begun = time.perf_counter()
        with contextlib.redirect_stderr(None):
            verdict, letters, words = run(entry)
        took = time.perf_counter() - begun
        seconds += took
        right = is_right(entry, verdict, letters)
        wrong += not right
        if right and given.w:
            continue
        mark, failing = "    " if right else "!!! ", "".join(sorted(letters))
        name = f"{entry.family}: {entry.name}"
        print(f"{mark}{name:60} {entry.verdict:12} {verdict:12} {failing:8} {took:6.2f} s")
        if not right:
            print(f"        wanted {entry.letters!r}; {entry.why}")
            print("\n".join(f"        {line}" for line in words.splitlines()))
    kinds = {kind: sum(e.verdict == kind for e in chosen) for kind in ("FAIL", "PASS")}
    print(f"{len(chosen)} entries, {kinds}, {wrong} wrong, {seconds:.1f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
