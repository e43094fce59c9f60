"""Random configs, data files, command lines and run folders: does each end in an answer, never in a
bug of ours?

    python scripts/fuzz.py [--cases 10000] [--seed 0] [--seconds 20] [--only KIND]

A quarter of the cases each: a valid config with something in it replaced, dropped, moved or written
badly, which is loaded and, where it is accepted and small, built and trained for a step; files of
right lines, with something among them that does not belong there, read as training data; command
lines of every command, over a tiny run; and commands over a run one of whose files was changed, or
is a folder, a pipe, a link to itself, a device. Answers are: refused by a UserError or exit code 2,
accepted, or exit code 1 for a check that failed. Bugs are: exit code 70, any other exception, JSON
that is none, more than `--seconds` of the processor, and more than 2 GiB beyond what the process
held at the start; the smallest such case is shown, and the exit code is 1. Needs `hypothesis`
(extra dev).
"""

import argparse
import contextlib
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from toytrans.cli.app import main as toytrans
from toytrans.config.load import load_config
from toytrans.config.names import FaultName, FormatName, PositionName, TaskName
from toytrans.config.schema import Config
from toytrans.data.open import check_dataset, open_dataset
from toytrans.errors import UserError
from toytrans.training.trainer import Trainer

TINY = {
    "seed": 0,
    "data": {
        "task": "copy",
        "symbols": 5,
        "train_length": [1, 4],
        "valid_examples": 9,
        "test_examples": 9,
        "batch_tokens": 128,
    },
    "model": {
        "d_model": 8,
        "n_heads": 2,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
        "d_ff": 8,
    },
    "train": {"max_steps": 1, "precision": "fp32"},
}
MOST_MEMORY = 2 * 2**30
Case = Any
Verdict = str
Check = Callable[[Case], Verdict]

# Values --------------------------------------------------------------------------------------

EXTREMES = st.sampled_from(
    [0, -1, 1, 2, 3, 2**16, 2**20, 2**31 - 1, 2**31, 2**53, 2**63, 10**18, 10**400, 0.0, -0.5, 0.5]
    + [1e-320, 1e-8, 1.5, 1e16, 1e308, float("inf"), float("-inf"), float("nan")]
)
WORDS = st.sampled_from(
    [*get_args(TaskName), *get_args(PositionName), *get_args(FaultName), *get_args(FormatName)]
    + ["auto", "cpu", "cuda:0", "cuda:99999999999999999999", "mps", "start", "end", "wrap", "post"]
    + ["gelu", "cosine", "constant", "bf16", "fp64", "by_hand", "keys_and_queries", "~", "no", ""]
    + ["data.tsv", "data.src", "/dev/zero", ".", "\x1b[31m", "[red]", "\0", "x" * 300]
)
LEAVES = st.none() | st.booleans() | EXTREMES | st.integers(0, 9) | WORDS | st.text(max_size=9)
JUNK = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS | st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


def _keys(schema: dict[str, Any]) -> list[str]:
    """Every key of a config as a path."""
    sections = {"data": "DataConfig", "model": "ModelConfig", "train": "TrainConfig"}
    inner = {section: schema["$defs"][name]["properties"] for section, name in sections.items()}
    inner["data.files"] = schema["$defs"]["FilesConfig"]["properties"]
    paths = [f"{section}.{key}" for section, keys in inner.items() for key in keys]
    return [*schema["properties"], *paths]


KEYS = st.sampled_from(_keys(Config.model_json_schema()))
MUTATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "drop", "swap"]), KEYS, KEYS, JUNK), max_size=4
)
YAML_JUNK = st.sampled_from(
    ["&a", "*a", "!!python/object:os.system", "<<:", "? ", "- ", "{", "[" * 99, "'", '"', "|", "\t"]
    + ["---\n", "\x00", "\x85", "\ufeff", "2020-01-01", "9" * 5000, "1_0", "0x1f", "#", "\ud7ff"]
)


def mutated(mutations: list[tuple[str, str, str, Any]]) -> dict[str, Any]:
    """A valid config's values after some changes."""
    values: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value for key, value in TINY.items()
    }

    def place(path: str) -> tuple[dict[str, Any], str]:
        *sections, key = path.split(".")
        where = values
        for section in sections:
            if not isinstance(where.get(section), dict):
                where[section] = {}
            where = where[section]
        return where, key

    for what, first, second, value in mutations:
        (where, key), (there, other) = place(first), place(second)
        if what == "put":
            where[key] = value
        elif what == "drop":
            where.pop(key, None)
        else:
            where[key], there[other] = there.get(other), where.get(key)
    return values


@st.composite
def configs(draw: st.DrawFn) -> bytes:
    """The text of a config, and sometimes something that is none at a place in it."""
    values = mutated(draw(MUTATIONS))
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(YAML_JUNK) + text[at:]
    raw = text.encode("utf-8", "surrogatepass")
    return raw + draw(st.binary(max_size=8)) if draw(st.integers(0, 19)) == 0 else raw


# Data ----------------------------------------------------------------------------------------

SYMBOLS = st.sampled_from(["1", "2", "+", "x" * 70, "é", "\x1b[31m", "[red]", "\u200d", "\ufeff"])
SIDES = st.lists(SYMBOLS, max_size=6)
PAIRS = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=9)
WORST = st.sampled_from(
    [
        "\0",
        "\r",
        "\x0b",
        "\u2028",
        "\x85",
        "\t",
        "\n\n\n",
        "\ufeff",
        "{}",
        "null",
        "OUT:",
        "[" * 9999,
    ]
    + [
        '{"src": [1e999], "tgt": []}',
        '{"src": [NaN], "tgt": []}',
        '{"src": ["\\ud800"], "tgt": []}',
    ]
    + [f'{{"src": [{"[" * n}{"]" * n}], "tgt": [1]}}' for n in (300, 990, 30_000)]
    + [f'{{"src": [{"9" * 5000}], "tgt": [1]}}', "1 " * 600_000, "1" * 2_000_000, "1 " * 9000]
)


def written(name: FormatName, pairs: list[tuple[list[str], list[str]]], side: int) -> str:
    """Pairs in a format; for `text` one side of them."""
    lines = {
        "text": (" ".join(pair[side]) for pair in pairs),
        "tsv": ("\t".join(map(" ".join, pair)) for pair in pairs),
        "scan": (f"IN: {' '.join(src)} OUT: {' '.join(tgt)}" for src, tgt in pairs),
        "jsonl": (json.dumps({"src": src, "tgt": tgt}) for src, tgt in pairs),
    }
    return "".join(f"{line}\n" for line in lines[name])


@st.composite
def files(draw: st.DrawFn) -> tuple[FormatName, bytes, bytes]:
    """A format and the bytes of two files in it, the second for the targets of `text`; half of them
    with something in it that does not belong there, or nothing that does."""
    name: FormatName = draw(st.sampled_from(get_args(FormatName)))
    pairs = draw(PAIRS)
    texts = [written(name, pairs, side) for side in (0, 1)]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        side = draw(st.integers(0, 1))
        at = draw(st.integers(0, len(texts[side])))
        texts[side] = texts[side][:at] + draw(WORST | st.text(max_size=4)) + texts[side][at:]
    src, tgt = (text.encode("utf-8", "surrogatepass") for text in texts)
    junk = st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe"]) | st.binary(max_size=40)
    return name, draw(junk) + src, tgt


# Command lines -------------------------------------------------------------------------------

SEQUENCES = st.lists(SYMBOLS | st.text(max_size=3), max_size=6).map(" ".join)
NUMBERS = st.sampled_from(
    ["1", "1", "1", "2", "2", "3", "4", "0", "-1", "1.5", "x", "", "9" * 12, "9" * 400, "٣"]
)
PATHS = st.sampled_from(
    ["runs/tiny"] * 8
    + ["tiny.yaml"] * 8
    + ["data.tsv", ".", "..", "none", "/dev/zero", "/dev/null"]
    + ["fifo", "x" * 300, "\udcff", "\x1b[31m", "-", "", "new/x", "x.svg", "x.png"]
)
SETS = st.tuples(KEYS, JUNK).map(lambda pair: f"{pair[0]}={pair[1]}") | st.text(max_size=9)
OPTIONS: dict[str, list[tuple[str, st.SearchStrategy[str] | None]]] = {
    "train": [("--out", PATHS), ("--resume", None), ("--set", SETS)]
    + [("--device", WORDS), ("--break", WORDS), ("--config", st.just("tiny.yaml"))],
    "tasks": [("--config", PATHS)],
    "schema": [],
    "inspect-masks": [("--config", PATHS), ("--run", PATHS), ("--rows", NUMBERS), ("--json", None)]
    + [("--src", SEQUENCES), ("--tgt", SEQUENCES), ("--csv", None), ("--html", None)]
    + [("--steps", None), ("--set", SETS), ("--as", st.sampled_from(["hf", "t2t", "x"]))],
    "trace": [("--config", PATHS), ("--set", SETS), ("--rows", NUMBERS), ("--layer", NUMBERS)]
    + [("--src", SEQUENCES), ("--tgt", SEQUENCES), ("--head", NUMBERS), ("--pair", NUMBERS)]
    + [("--json", None), ("--save", PATHS)]
    + [("--example", st.sampled_from(["heads", "sdpa", "projections", "decoding", "x"]))]
    + [("--part", st.sampled_from(["encoder", "decoder", "cross", "x"]))],
    "attention": [("--run", PATHS), ("--checkpoint", NUMBERS), ("--layer", NUMBERS)]
    + [("--head", NUMBERS), ("--sample", NUMBERS), ("--plot", PATHS), ("--json", None)],
    "check": [("--config", PATHS), ("--set", SETS), ("--model", WORDS), ("--break", WORDS)]
    + [("--checkpoint", NUMBERS), ("--length", NUMBERS), ("--seed", NUMBERS), ("--json", None)],
    "faults": [],
    "doctor": [("--json", None)],
    "board": [("--quick", None), ("--data", PATHS), ("--json", None)],
    "gradients": [("--seeds", NUMBERS), ("--json", None)],
    "translate": [("--run", PATHS), ("--checkpoint", NUMBERS), ("--device", WORDS)],
    "eval": [("--split", st.sampled_from(["valid", "test", "train"])), ("--json", None)]
    + [("--src-file", PATHS), ("--tgt-file", PATHS), ("--examples", NUMBERS), ("--beam", NUMBERS)]
    + [("--lengths", st.sampled_from(["1:4", "4", "9:1", "1:99999999", "0:0", "x", "1:70000"]))]
    + [("--length-of", st.sampled_from(["src", "tgt"])), ("--decode", NUMBERS)]
    + [("--checkpoint", st.sampled_from(["best", "last", "1", "9", "x"])), ("--device", WORDS)],
}
ARGUMENTS = {
    "tasks": WORDS,
    "faults": WORDS,
    "trace": PATHS,
    "check": PATHS,
    "eval": PATHS,
    "doctor": PATHS,
    "board": WORDS,
    "attention": SEQUENCES,
    "translate": SEQUENCES,
}


NONE: st.SearchStrategy[list[Any]] = st.just([])


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    """A command with some of its options and arguments."""
    name = draw(st.sampled_from([*OPTIONS, "tarin", "--version", "--help", ""]))
    options = OPTIONS.get(name, [("--json", None)])
    words = [name, "--config", "tiny.yaml"] if name == "train" else [name]
    for index in draw(
        st.lists(st.integers(0, len(options) - 1), max_size=4) if options else st.just([])
    ):
        option, values = options[index]
        words += [option] if values is None else [option, draw(values)]
    for word in draw(st.lists(ARGUMENTS.get(name, PATHS), max_size=2)):
        words.append(word)
    return [word.replace("\0", "") for word in words]


# Run folders ---------------------------------------------------------------------------------

CHECKPOINT = "checkpoints/step-1"
FILES_OF_A_RUN = [
    *("config.yaml", "data.json", "environment.json", "metrics.jsonl", "checkpoints", CHECKPOINT),
    *(f"{CHECKPOINT}/{name}.safetensors" for name in ("weights", "optimizer", "random")),
    f"{CHECKPOINT}/checkpoint.json",
]
OVER_A_RUN = [
    *("doctor runs/tiny", "doctor runs/tiny --json", "eval runs/tiny --json", "translate 1"),
    *("attention 1", "trace runs/tiny --json", "check runs/tiny", "inspect-masks --run runs/tiny"),
    "train --config tiny.yaml --resume --set train.max_steps=2",
]
INSTEAD = ["nothing", "a directory", "a pipe", "a link to itself", "a device"]


@st.composite
def run_folders(draw: st.DrawFn) -> tuple[str, str | tuple[int, bytes | str], str]:
    """A file of a run; what is in its place, or, at a place in it, what is changed; a command."""
    values = st.sampled_from(["null", "[]", "{}", "-1", "1e999", "NaN", "9" * 5000, "[" * 9999])
    change = st.tuples(st.integers(0, 10**4), st.binary(max_size=9) | values)
    what = draw(st.sampled_from(INSTEAD) | change)
    return draw(st.sampled_from(FILES_OF_A_RUN)), what, draw(st.sampled_from(OVER_A_RUN))


def spoil(path: Path, what: str | tuple[int, bytes | str]) -> None:
    """Put something in the place of a file of a run, or change it: bytes are written over it, text
    takes the place of one of its JSON values."""
    if not isinstance(what, str):
        if path.is_file():
            at, put = what
            raw = path.read_bytes()
            found = list(re.finditer(rb'"[^"]*"|[-0-9.e]+|null|\[\]', raw))
            if isinstance(put, bytes) or not found:
                at, put = at % (len(raw) + 1), put if isinstance(put, bytes) else put.encode()
                path.write_bytes(raw[:at] + put + raw[at + len(put) :])
            else:
                value = found[at % len(found)]
                path.write_bytes(raw[: value.start()] + put.encode() + raw[value.end() :])
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if what == "a directory":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what in ("a link to itself", "a device"):
        path.symlink_to("/dev/zero" if what == "a device" else path.name)


# Checks --------------------------------------------------------------------------------------


def check_config(raw: bytes) -> Verdict:
    """Load a config; build and train it where it is small."""
    Path("case.yaml").write_bytes(raw)
    try:
        config = load_config(Path("case.yaml"))
        model, data = config.model, config.data
        work = model.d_model * model.d_ff * max(model.n_encoder_layers, model.n_decoder_layers)
        examples = max(data.valid_examples or 0, data.test_examples or 0, data.symbols or 0)
        longest = max((high for _, high in data.lengths.values()), default=0)
        if max(work, examples, longest**2, data.batch_tokens) * config.train.accumulate > 9999:
            return "accepted, not built"
        if config.model.max_positions not in (None, *range(1000)):
            return "accepted, not built"
        _train(config)
    except UserError as error:
        assert "\n" not in str(error)
        return "refused"
    return "accepted"


def _train(config: Config) -> None:
    """A step, or none, as far as a trainer goes before it writes anything."""
    import torch

    from toytrans.data.batches import training_batches

    source = open_dataset(config)
    check_dataset(config, source)
    if config.device not in ("auto", "cpu"):
        return
    precision = "fp64" if config.train.precision == "fp64" else "fp32"
    trainer = Trainer(config, source, Path("case"), torch.device("cpu"), precision)
    batches = training_batches(source, config)
    trainer._step([next(batches) for _ in range(config.train.accumulate)])
    trainer._evaluate()


def check_files(case: tuple[FormatName, bytes, bytes]) -> Verdict:
    """Read files as training data, and prepare what training asks for."""
    name, first, second = case
    Path("case.src").write_bytes(first)
    Path("case.tgt").write_bytes(second)
    train = ["case.src", "case.tgt"] if name == "text" else "case.src"
    config = Config.model_validate(TINY | {"data": {"files": {"train": train, "format": name}}})
    try:
        source = open_dataset(config)
        check_dataset(config, source)
        assert source.notes and len(source.facts.vocabulary) >= 3
    except UserError as error:
        assert "\n" not in str(error).replace("case", "")
        return "refused"
    return "accepted"


def check_command(words: list[str]) -> Verdict:
    """Run a command in this process: 0, 1 and 2 are answers."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
    given = io.TextIOWrapper(io.BytesIO(b"1 2\n\n3\n"), "utf-8")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    streams = mock.patch.multiple(sys, stdout=out, stderr=err, stdin=given)
    try:
        with streams, mock.patch.object(sys, "argv", ["toytrans", *words]):
            toytrans()
    except SystemExit as stop:
        code = stop.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for stream in (out, err):
        stream.flush()
    said = b"".join(stream.buffer.getvalue() for stream in (out, err))
    assert code in (0, 1, 2), said.decode()[-500:]
    assert b"\x1b" not in said and b"Traceback (most" not in said, said[-500:]
    if "--json" in words and code != 2 and "--help" not in words:
        json.loads(out.buffer.getvalue(), parse_constant=no_json)
    return {0: "accepted", 1: "a check failed", 2: "refused"}[code]


def check_run_folder(case: tuple[str, str | tuple[int, bytes | str], str]) -> Verdict:
    """Run a command over a run that somebody has spoiled."""
    name, what, words = case
    shutil.rmtree("runs", ignore_errors=True)
    shutil.copytree("whole", "runs")
    spoil(Path("runs/tiny") / name, what)
    return check_command(words.split())


def no_json(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


KINDS: dict[str, tuple[st.SearchStrategy[Any], Check]] = {
    "configs": (configs(), check_config),
    "data files": (files(), check_files),
    "command lines": (commands(), check_command),
    "run folders": (run_folders(), check_run_folder),
}

# Running -------------------------------------------------------------------------------------


@contextlib.contextmanager
def workplace() -> Iterator[None]:
    """A folder of its own to work in, with a config, data, a pipe and a trained run."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
            Path("data.tsv").write_text("1 2\t2 1\n3\t3\n4 1\t1 4\n")
            os.mkfifo("fifo")
            assert check_command(["train", "--config", "tiny.yaml"]) == "accepted"
            shutil.copytree("runs", "whole")
            yield
        finally:
            os.chdir(before)


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """MOST_MEMORY for the body, beyond what the process holds."""
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/statm") as status:
        held = int(status.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + MOST_MEMORY, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Seconds of the processor for the body, and thirty times these to wait; then TimeoutError."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"not done within {seconds} s, or {30 * seconds} s of waiting")

    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, 30 * seconds),
    }
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, most in timers.values():
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def fuzz(kind: str, cases: int, start: int, seconds: float) -> Counter[Verdict]:
    """Verdicts on random cases of one kind; raises whatever a bug raises, on its smallest case."""
    strategy, check = KINDS[kind]
    counts: Counter[Verdict] = Counter()

    @seed(start)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(strategy)
    def one(case: Case) -> None:
        with limited(seconds):
            counts[check(case)] += 1

    one()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="that one case may take")
    parser.add_argument("--only", choices=KINDS)
    options = parser.parse_args()
    kinds = [options.only] if options.only else list(KINDS)
    with workplace(), bounded_memory():
        for kind in kinds:
            began = time.monotonic()
            counts = fuzz(kind, -(-options.cases // len(kinds)), options.seed, options.seconds)
            words = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.most_common())
            took = time.monotonic() - began
            print(
                f"{kind}: {counts.total():,} cases in {took:.0f} s: {words}; bugs: none", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
