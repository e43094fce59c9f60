"""Does this version compute what another one did, bit for bit?

    python scripts/same_numbers.py save DIR [NAME ...] [--scan DIR]
    python scripts/same_numbers.py compare DIR [NAME ...] [--scan DIR]

`save` trains 50 steps of every config, and of one small config under each position scheme and
option of the model: fp32, CPU, one thread. It evaluates each greedily and with a beam, and keeps
the runs and what eval says in DIR. `compare`, run with another version of toytrans, trains and
evaluates the same again. It compares `metrics.jsonl` and what eval says, both without times. Exit
code 1 if anything differs.
SCAN is read from --scan: the folder of tasks_train_simple.txt and tasks_test_simple.txt.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from toytrans.model.positions import SCHEMES

CONFIGS = Path(__file__).parent.parent / "configs"
Record = dict[str, Any]


def anchored_by(name: str) -> list[str]:
    """Overrides that take a class of examples/anchors.py."""
    code = f"{CONFIGS}/examples/anchors.py:{name.title()}"
    keys = {"positions": code, "cross_positions": code, "source_bos": "true", "score_cap": "1"}
    return [f"model.{key}={value}" for key, value in keys.items()]


OPTIONS = {
    "post_norm": ["model.norm=post", "model.positions=sinusoidal"],
    "shared_layers": ["model.share_layers=true"],
    "untied": ["model.tie_embeddings=false"],
    "dropout": ["model.dropout=0.1"],
    "no_cap": ["model.score_cap=0"],
    "pads_closed_as_queries": ["model.pad_mask=keys_and_queries"],
    "random_positions": [
        "model.positions=learned",
        "model.random_positions=true",
        "model.max_positions=200",
    ],
    "bf16": ["train.precision=bf16"],
    "accumulate": ["train.accumulate=2", "train.label_smoothing=0.1"],
    **{f"anchors_{name}": anchored_by(name) for name in ("double", "repeat", "count", "fertility")},
    **{f"positions_{name}": [f"model.positions={name}"] for name in SCHEMES},
}
"""Overrides of `reverse`, by the name of their run."""


def runs(scan: Path | None) -> dict[str, tuple[Path, list[str]]]:
    """Config file and overrides of every run, by its name."""
    every: dict[str, tuple[Path, list[str]]]
    every = {path.stem: (path, []) for path in sorted(CONFIGS.glob("*.yaml"))}
    if scan is None:
        del every["scan_simple"]
        print("scan_simple left out: it needs --scan DIR")
    else:
        files = [f"data.files.{s}={scan.resolve()}/tasks_{s}_simple.txt" for s in ("train", "test")]
        every["scan_simple"] = (every["scan_simple"][0], files)
    reverse = CONFIGS / "reverse.yaml"
    return every | {name: (reverse, sets) for name, sets in OPTIONS.items()}


def toytrans(*words: str) -> str:
    """Standard output of one command on one thread. Ends the program if the command fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "toytrans", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def train(config: Path, overrides: list[str], out: Path) -> None:
    base = ["train.max_steps=50", "train.log_every=5", "train.precision=fp32"]
    if not any("files" in text for text in overrides):
        base += ["data.valid_examples=100", "data.test_examples=100"]
    sets = [word for text in (*base, *overrides) for word in ("--set", text)]
    toytrans("train", "--config", str(config), "--out", str(out), "--device", "cpu", *sets)


def records(run: Path) -> list[Record]:
    """The lines of metrics.jsonl without what the clock decides."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    clock = ("elapsed_s", "evaluation_s", "tokens_per_s")
    return [{k: v for k, v in json.loads(line).items() if k not in clock} for line in lines]


def evaluations(run: Path) -> list[Record]:
    """What eval says, greedily and with a beam of 3."""
    ways: tuple[list[str], ...] = ([], ["--beam", "3"])
    return [json.loads(toytrans("eval", str(run), "--json", "--trust-code", *w)) for w in ways]


NAMES = {
    "examples": "pairs",
    "decoded": "decoded",
    "wrong": "wrong",
    "exact_match": "free_exact_match",
    "free_token_accuracy": "free_token_accuracy",
    "forced_exact_match": "forced_exact_match",
    "token_accuracy": "forced_token_accuracy",
    "loss": "loss",
    "eos_early": "ended_early",
    "eos_late": "ended_late",
    "eos_never": "never_ended",
}
"""What eval said until 0.4.0, and the name of the same number now."""


def comparable(documents: list[Record]) -> list[Record]:
    """The numbers of all pairs and of those in range, by the names that they have now."""
    found = []
    for document in documents:
        if "parts" in document:
            parts, names = document["parts"], {name: name for name in NAMES.values()}
        else:
            parts, names = {"all": document, "in_range": document.get("in_range")}, NAMES
        found.append(
            {
                part: {new: parts[part][old] for old, new in names.items()}
                for part in ("all", "in_range")
                if parts.get(part)
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("save", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--scan", type=Path)
    options = parser.parse_args()
    every = runs(options.scan)
    different = 0
    for name in options.names or every:
        kept, document = options.folder / name, options.folder / f"{name}.json"
        if options.action == "save":
            if not document.exists():
                train(*every[name], kept)
                document.write_text(json.dumps(evaluations(kept)))
            print(f"{name:<26} saved", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            train(*every[name], Path(folder) / "run")
            trained = records(Path(folder) / "run") == records(kept)
            after = comparable(evaluations(Path(folder) / "run"))
        evaluated = after == comparable(json.loads(document.read_text()))
        different += not (trained and evaluated)
        words = {True: "equal", False: "DIFFERENT"}
        print(f"{name:<26} training {words[trained]}, eval {words[evaluated]}", flush=True)
    print(f"{different} different" if options.action == "compare" else f"kept in {options.folder}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
