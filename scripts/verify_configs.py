"""Run every config in full and check the promise in its header.

    python scripts/verify_configs.py [NAME ...] [--seeds SEED ...] [--scan DIR]

A header's line `# promise:  in_range 0.99, beyond 0.9, 15 s` is what is checked, on the test data
with the best checkpoint: `toytrans train`, its wall time start-up included, then `toytrans eval
--json`. Prints a row for every run, and ends with exit code 1 if a promise was broken. A config
that reads SCAN needs --scan, the folder of tasks_train_simple.txt and tasks_test_simple.txt. Those
of configs/gpu/ need a GPU and are run only by name, say gpu/big_reverse, once they promise
something.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CONFIGS = Path(__file__).parent.parent / "configs"
TOYTRANS = (sys.executable, "-m", "toytrans")


@dataclass(frozen=True)
class Promise:
    """Least exact match within and, where given, beyond training lengths; most seconds."""

    in_range: float
    beyond: float | None
    seconds: float


def promise_of(config: Path) -> Promise:
    """The promise in a config's header."""
    line = re.search(r"^# promise: (.*)$", config.read_text(), re.MULTILINE)
    if line is None:
        raise SystemExit(f"{config}: its header has no line '# promise:'")
    found = re.fullmatch(r"\s*in_range ([\d.]+)(?:, beyond ([\d.]+))?, ([\d.]+) s", line[1])
    if found is None:
        raise SystemExit(f"{config}: cannot read the promise {line[1]!r}")
    return Promise(float(found[1]), float(found[2]) if found[2] else None, float(found[3]))


def run(
    config: Path, seed: int, scan: Path | None, overrides: tuple[str, ...] = ()
) -> tuple[float, dict]:
    """Wall seconds of the training command, and what eval says."""
    sets = [f"seed={seed}", *overrides]
    if "format: scan" in config.read_text():
        if scan is None:
            raise SystemExit(f"{config}: needs --scan DIR")
        sets += [f"data.files.{s}={scan.resolve()}/tasks_{s}_simple.txt" for s in ("train", "test")]
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        options = [word for text in sets for word in ("--set", text)]
        began = time.monotonic()
        command = [*TOYTRANS, "train", "--config", str(config), "--out", out, *options]
        output_of(command)
        seconds = time.monotonic() - began
        return seconds, json.loads(output_of([*TOYTRANS, "eval", out, "--json"]))


def output_of(command: list[str]) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def share(part: dict | None) -> str:
    return f"{part['exact_match']:.4f}" if part else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="configs without .yaml; none: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--scan", type=Path)
    options = parser.parse_args()
    names = options.names or sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    if options.scan is None and not options.names:
        names.remove("scan_simple")
        print("scan_simple left out: it needs --scan DIR")
    broken = examples = errors = 0
    row = "{:<20} {:>4} {:>9} {:>9} {:>7} {:>9}  {}"
    print(row.format("config", "seed", "in range", "beyond", "wrong", "seconds", "promise"))
    for name in names:
        config = CONFIGS / f"{name}.yaml"
        promise = promise_of(config)
        for seed in options.seeds:
            seconds, found = run(config, seed, options.scan)
            inside, beyond = found.get("in_range"), found.get("beyond")
            kept = bool(inside) and inside["exact_match"] >= promise.in_range
            kept = kept and seconds <= promise.seconds
            if promise.beyond is not None:
                kept = kept and bool(beyond) and beyond["exact_match"] >= promise.beyond
            broken += not kept
            wrong = round(found["examples"] * (1 - found["exact_match"]))
            examples, errors = examples + found["examples"], errors + wrong
            verdict = "kept" if kept else f"BROKEN: {promise}"
            cells = (name, seed, share(inside), share(beyond), wrong, f"{seconds:.1f}", verdict)
            print(row.format(*cells), flush=True)
    print(f"{errors} wrong in {examples:,} test pairs of all runs together")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
