"""Random configs, data files, command lines and run folders: each gets an answer, no bug of ours.

Answers are exit code 0, 2 with one line, or 1 for a check that failed. Bugs are exit code 70, any
other exception, JSON that is none, escape codes, more than 20 s of the processor, and more than
2 GiB beyond what the process held. CASES in the environment says how many of each kind are tried;
the smallest failing case is shown.
"""

import json
import os
import re
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from conftest import Answer, call, tiny_yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from toytrans.cli.app import app
from toytrans.config.faults import FAULTS
from toytrans.config.keys import keys
from toytrans.config.load import load_config
from toytrans.data.tasks import TASKS
from toytrans.errors import UserError
from toytrans.model.positions import scheme_names
from toytrans.resolve import resolve

pytestmark = pytest.mark.slow

CASES = int(os.environ.get("CASES", "150"))
SECONDS, MOST_MEMORY = 20.0, 2 * 2**30
CONFIG = tiny_yaml(train={"max_steps": 1})
Ask = Callable[..., int]


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory with a config, data, a pipe and a trained run; bounded memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fuzz"))
        Path("tiny.yaml").write_text(CONFIG)
        Path("data.tsv").write_text("1 2\t2 1\n3\t3\n4 1\t1 4\n")
        os.mkfifo("fifo")
        assert call("train", "tiny.yaml") == 0
        shutil.copytree("runs", "whole")
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + MOST_MEMORY, limits[1]))
        yield
        resource.setrlimit(resource.RLIMIT_DATA, limits)


@pytest.fixture
def ask(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs a command: its exit code, after a look at what it printed."""

    def run(*words: str) -> int:
        given = os.open("lines", os.O_RDWR | os.O_CREAT)
        os.write(given, b"1 2\n\n3\n")
        os.lseek(given, 0, os.SEEK_SET)
        with open(given) as lines, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", lines)
            before = signal.signal(signal.SIGPROF, too_slow)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                code = call(*words)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.signal(signal.SIGPROF, before)
        answer = Answer(code, *capfdbinary.readouterr())
        assert code in (0, 1, 2), answer
        assert b"\x1b" not in answer.out + answer.err and b"Traceback (most" not in answer.err
        if "--json" in words and code != 2 and "--help" not in words:
            json.loads(answer.out, parse_constant=pytest.fail)
        return code

    return run


def too_slow(number: int, frame: object) -> None:
    raise TimeoutError(f"not done within {SECONDS} s of the processor")


def fuzz(strategy: st.SearchStrategy[Any], check: Callable[[Any], int]) -> Counter[int]:
    """How often each exit code came."""
    codes: Counter[int] = Counter()

    @seed(int(os.environ.get("SEED", "0")))
    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(case: Any) -> None:
        codes[check(case)] += 1

    one()
    return codes


EXTREMES = st.sampled_from(
    [0, -1, 1, 2, 2**16, 2**20, 2**31, 2**63, 10**400, 0.0, -0.5, 0.5, 1e-320, 1e-8, 1e308]
    + [float("inf"), float("-inf"), float("nan")]
)
WORDS = st.sampled_from(
    [*TASKS, *scheme_names(), *FAULTS, "text", "tsv", "csv", "jsonl", "scan"]
    + ["auto", "cpu", "cuda:0", "post", "gelu", "cosine", "bf16", "~", "no", ""]
    + ["data.tsv", "data.src", "/dev/zero", ".", "\x1b[31m", "[red]", "\0", "x" * 300]
)
LEAVES = st.none() | st.booleans() | EXTREMES | st.integers(0, 9) | WORDS | st.text(max_size=9)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([key.path for key in keys()])
MUTATIONS = st.lists(st.tuples(st.sampled_from(["put", "put", "drop"]), KEYS, JUNK), max_size=4)
YAML_JUNK = st.sampled_from(
    ["&a", "*a", "!!python/object:os.system", "<<:", "? ", "- ", "{", "[" * 99, "'", '"', "|", "\t"]
    + ["---\n", "\x00", "\x85", "\ufeff", "2020-01-01", "9" * 5000, "1_0", "0x1f", "#", "\ud7ff"]
)


@st.composite
def configs(draw: st.DrawFn) -> bytes:
    """A valid config after some changes, and sometimes something that is none at a place in it."""
    values = yaml.safe_load(CONFIG)
    for what, path, value in draw(MUTATIONS):
        *sections, key = path.split(".")
        where = values
        for section in sections:
            where = where[section] if isinstance(where.get(section), dict) else {}
        if what == "put":
            where[key] = value
        else:
            where.pop(key, None)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(YAML_JUNK | st.text(max_size=8)) + text[at:]
    return text.encode("utf-8", "surrogatepass")


def is_small(path: Path) -> bool:
    """Whether what a config asks for is done in a moment. Refused configs are."""
    try:
        config = resolve(load_config(path))
    except UserError:
        return True
    model, data, train = config.model, config.data, config.train
    depth = max(model.n_encoder_layers, model.n_decoder_layers)
    longest = max((high for _, high in data.lengths.values()), default=0)
    sizes = [model.d_model * model.d_ff * depth, longest**2, data.batch_tokens]
    sizes += [data.valid_examples or 0, data.test_examples or 0, data.symbols or 0]
    few = max(sizes) * train.accumulate * train.max_steps < 10_000
    return few and (model.max_positions or 0) < 1000


def test_random_configs(ask: Ask) -> None:
    def check(raw: bytes) -> int:
        Path("case.yaml").write_bytes(raw)
        shutil.rmtree("case", ignore_errors=True)
        return ask("train", "case.yaml", "--out", "case") if is_small(Path("case.yaml")) else -1

    codes = fuzz(configs(), check)
    assert codes[0] and codes[2], "either occurs"


SYMBOLS = st.sampled_from(["1", "2", "+", "x" * 70, "é", "\x1b[31m", "[red]", "\u200d", "\ufeff"])
WORST = st.sampled_from(
    ["\0", "\r", "\x0b", "\u2028", "\x85", "\t", "\n\n\n", "\ufeff", "{}", "null", "OUT:"]
    + ['{"src": [1e999], "tgt": []}', '{"src": ["\\ud800"], "tgt": []}', "[" * 9999]
    + ["1 " * 600_000, "1" * 2_000_000, f'{{"src": [{"[" * 990}{"]" * 990}], "tgt": [1]}}']
)
LINES = {
    "text": ["1 2", "", "é + [red]"],
    "tsv": ["1 2\t2 1", "\t", "é\t\x1b[31m"],
    "csv": ["1 2,2 1", ",", '"é, [red]","\n"'],
    "scan": ["IN: 1 2 OUT: 2 1", "IN: OUT:", "IN: é OUT: [red]"],
    "jsonl": ['{"src": [1, 2], "tgt": ["2", 1]}', '{"src": [], "tgt": ["é"]}'],
}


KEYS_OF_FILES = st.fixed_dictionaries(
    {},
    optional={
        "columns": st.sampled_from([[1, 2], [2, 1], [1, 3]]),
        "header": st.booleans(),
        "fields": st.sampled_from([["src", "tgt"], ["tgt.a", "src"]]),
        "split": st.sampled_from(["blanks", "characters"]),
        "unknown": st.sampled_from(["error", "symbol"]),
        "min_frequency": st.integers(1, 3),
    },
)
"""Keys below data.files, of which some do not belong to a format."""


@st.composite
def files(draw: st.DrawFn) -> tuple[dict[str, object], bytes, bytes]:
    """Keys with a format, and the bytes of two files in it, the second for the targets of `text`;
    half of them with something in it that does not belong there."""
    name = draw(st.sampled_from([*LINES]))
    count = draw(st.integers(1, 9))
    lines = st.lists(st.sampled_from(LINES[name]), min_size=count, max_size=count)
    texts = ["".join(f"{line}\n" for line in draw(lines)) for _ in range(2)]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        side = draw(st.integers(0, 1))
        at = draw(st.integers(0, len(texts[side])))
        texts[side] = texts[side][:at] + draw(WORST | st.text(max_size=4)) + texts[side][at:]
    src, tgt = (text.encode("utf-8", "surrogatepass") for text in texts)
    junk = st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe"]) | st.binary(max_size=40)
    more = draw(st.just({}) | KEYS_OF_FILES)
    return {"format": name, **more}, draw(junk) + src, tgt


def test_random_data_files(ask: Ask) -> None:
    def check(case: tuple[dict[str, object], bytes, bytes]) -> int:
        keys, src, tgt = case
        Path("case.src").write_bytes(src)
        Path("case.tgt").write_bytes(tgt)
        train = ["case.src", "case.tgt"] if keys["format"] == "text" else "case.src"
        data = {"files": {"train": train, **keys}}
        Path("files.yaml").write_text(tiny_yaml(data=data, train={"max_steps": 0}))
        shutil.rmtree("case", ignore_errors=True)
        return ask("train", "files.yaml", "--out", "case")

    codes = fuzz(files(), check)
    assert codes[0] and codes[2], "either occurs"


NAMES = "train eval inspect-masks trace attention check demo translate doctor explain new runs"
OPTIONS = {
    name: {option: parameter for parameter in command.params for option in parameter.opts}
    for name, command in typer.main.get_command(app).commands.items()
    if name in NAMES.split()
}
SEQUENCES = st.lists(SYMBOLS | st.text(max_size=3), max_size=6).map(" ".join)
PATHS = st.sampled_from(
    ["runs/tiny", "tiny.yaml"] * 8
    + ["data.tsv", ".", "..", "none", "/dev/zero", "/dev/null", "fifo", "x" * 300, "\udcff"]
    + ["\x1b[31m", "-", "", "new/x", "x.svg", "x.png"]
)
NUMBERS = st.sampled_from(["1", "2", "3", "0", "-1", "1.5", "9" * 12, "9" * 400, "٣", "1:4", "9:1"])
SETS = st.tuples(KEYS, JUNK).map(lambda pair: f"{pair[0]}={pair[1]}")
VALUES = PATHS | NUMBERS | NUMBERS | SEQUENCES | SETS | WORDS | st.sampled_from(["valid", "best"])


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    """A command with some of its options and arguments."""
    name = draw(st.sampled_from([*OPTIONS, "--version", "tarin", ""]))
    words = [name, "tiny.yaml"] if name == "train" else [name]
    known = OPTIONS.get(name, {})
    flags = [option for option in known if option.startswith("--")]
    for option in draw(st.lists(st.sampled_from(flags), max_size=4)) if flags else ():
        words += [option] if known[option].is_flag else [option, draw(VALUES)]
    words += draw(st.lists(PATHS | SEQUENCES, max_size=2))
    return [word.replace("\0", "") for word in words]


def test_random_command_lines(ask: Ask) -> None:
    codes = fuzz(commands(), lambda words: ask(*words))
    assert codes[0] and codes[2], "either occurs"


OVER_A_RUN = [
    *("doctor runs/tiny", "doctor runs/tiny --json", "eval runs/tiny --json", "translate 1"),
    *("trace 1", "trace runs/tiny --json", "check runs/tiny", "inspect-masks runs/tiny"),
    *("runs", "train --config tiny.yaml --resume --set train.max_steps=2"),
]
INSTEAD = ["nothing", "a directory", "a pipe", "a link to itself", "a device"]
VALUES_OF_JSON = [b"null", b"[]", b"{}", b"-1", b"1e999", b"NaN", b"9" * 5000, b"[" * 9999]
CHANGED = st.tuples(st.integers(0, 10**4), st.sampled_from(VALUES_OF_JSON) | st.binary(max_size=9))


def spoil(path: Path, what: str | tuple[int, bytes]) -> None:
    """Put something in the place of a file of a run, or of one of its JSON values."""
    if isinstance(what, tuple):
        if path.is_file():
            raw, (at, put) = path.read_bytes(), what
            found = list(re.finditer(rb'"[^"]*"|[-0-9.e]+|null|\[\]', raw))
            start, end = found[at % len(found)].span() if found else (0, len(put))
            path.write_bytes(raw[:start] + put + raw[end:])
        return
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if what == "a directory":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what != "nothing":
        path.symlink_to("/dev/zero" if what == "a device" else path.name)


def test_random_run_folders(ask: Ask) -> None:
    entries = sorted(path.relative_to("whole") for path in Path("whole/tiny").rglob("*"))
    changes = st.sampled_from(INSTEAD) | CHANGED
    cases = st.tuples(st.sampled_from(entries), changes, st.sampled_from(OVER_A_RUN))

    def check(case: Any) -> int:
        entry, what, words = case
        shutil.rmtree("runs", ignore_errors=True)
        shutil.copytree("whole", "runs")
        spoil("runs" / entry, what)
        return ask(*words.split())

    codes = fuzz(cases, check)
    assert codes[0] and codes[2], "either occurs"
