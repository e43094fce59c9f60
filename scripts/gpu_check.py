"""Prove on a CUDA machine that recorded steps and searches equal eager ones, and time both.

    python scripts/gpu_check.py steps decoding resume --out proofs.json
    python scripts/gpu_check.py start attention solve rounding --out solve.json
    python scripts/gpu_check.py speed deterministic --out speed.json

Each line is meant to take less than ten minutes; without names, all parts run. The file is written
after every row. Exit code 1: something differs or fails.

Proofs run in processes of their own, one for each position scheme and some at once: a capture that
breaks can spoil all that follows it in its process.

A GPU may add up in another order each time. So eager is compared with itself too. Losses differ if
they are more than a tolerance apart, and more than ten times what eager ones are; weights, if they
are a hundred times the tolerance apart, and ten times what eager ones are.

Needs torch, numpy, pydantic, pyyaml, safetensors, typer, rich, tqdm and this source tree; no
network. On a machine without CUDA, `--device cpu` runs the same code with a stand-in that records
nothing.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import gpu_proofs
import gpu_speed
import torch
from gpu_rows import SCHEMES, Machine, Row

PROOFS: dict[str, Callable[[Machine], Iterator[Row]]] = {
    "steps": gpu_proofs.steps,
    "decoding": gpu_proofs.decoding,
    "rounding": gpu_proofs.rounding,
    "resume": gpu_proofs.resume,
}
PARTS = PROOFS | {
    "start": gpu_speed.start,
    "attention": gpu_speed.attention,
    "speed": gpu_speed.speed,
    "deterministic": gpu_speed.deterministic,
    "solve": gpu_speed.solve,
}


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    parts = options.parts or list(PARTS)
    found = about(options)
    print(", ".join(f"{key} {value}" for key, value in found.items()))
    failed = 0

    def keep(part: str, rows: list[Row]) -> None:
        found.setdefault(part, []).extend(rows)
        if options.out:  # after every row, in case the time is up
            options.out.write_text(json.dumps(found, indent=1))

    with tempfile.TemporaryDirectory() as folder:
        if len(options.schemes) > 1 and (proofs := [part for part in parts if part in PROOFS]):
            for document, code in in_processes(options, proofs, Path(folder)):
                failed += code != 0
                for part in proofs:
                    keep(part, document.get(part, []))
            parts = [part for part in parts if part not in PROOFS]
        machine = Machine(options, Path(folder))
        for part in parts:
            keep(part, [])
            for row in PARTS[part](machine):
                keep(part, [row])
    failed += machine.failed
    print("all equal" if not failed else f"{failed} rows or processes differ or failed")
    return 1 if failed else 0


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line. It ends with exit code 2 where something does not fit."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="parts: " + "; ".join(f"{name}: {part.__doc__}" for name, part in PARTS.items()),
    )
    parser.add_argument("parts", nargs="*", metavar=f"{{{','.join(PARTS)}}}", help="default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=200, help="updates that are compared")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a stretch that is timed")
    parser.add_argument("--quick", action="store_true", help="smallest sizes")
    parser.add_argument("--schemes", nargs="+", choices=list(SCHEMES), default=list(SCHEMES))
    parser.add_argument("--at-once", type=int, default=5, help="processes of proofs")
    parser.add_argument("--out", type=Path, help="all rows as JSON")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        known = f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}"
        parser.exit(2, f"gpu_check.py: {known}\n")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "gpu_check.py: no CUDA device here; --device cpu tries the program\n")
    return options


def about(options: argparse.Namespace) -> dict[str, Any]:
    """The machine, and what it was asked."""
    cuda = options.device == "cuda"
    found = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if cuda else "cpu, with a stand-in",
        "updates": options.steps,
    }
    if cuda:
        found["GiB"] = round(torch.cuda.get_device_properties(0).total_memory / 2**30)
    return found


def in_processes(
    options: argparse.Namespace, proofs: list[str], folder: Path
) -> Iterator[tuple[dict[str, Any], int]]:
    """The rows and the exit code of each scheme's process, as they end."""

    def run(name: str) -> tuple[dict[str, Any], int]:
        out = folder / f"{name}.json"
        command = [sys.executable, "-u", "-X", "faulthandler", __file__, *proofs]
        command += ["--device", options.device, "--steps", str(options.steps)]
        command += ["--schemes", name, "--out", str(out)]
        command += ["--quick"] if options.quick else []
        code = subprocess.run(command).returncode
        return json.loads(out.read_text()) if out.exists() else {}, code

    with ThreadPoolExecutor(options.at_once) as pool:
        for done in as_completed([pool.submit(run, name) for name in options.schemes]):
            yield done.result()


if __name__ == "__main__":
    sys.exit(main())
