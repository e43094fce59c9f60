"""Bad and hostile input ends in exit code 2 and one line that says what, where and the remedy, in
bounded time and memory; nothing is written or lost meanwhile; a bug of ours is told apart from it.
"""

import contextlib
import hashlib
import html
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from conftest import call, tiny_yaml
from safetensors import safe_open
from torch import Tensor

from toytrans.data.task_dataset import TaskDataset
from toytrans.training.checkpoint import checkpoint_file, saved_steps

pytestmark = pytest.mark.usefixtures("here", "in_time")
TRAIN = ("train", "c.yaml")
RESUME = (*TRAIN, "--out", "runs/c", "--resume", "--set", "train.max_steps=8")
UNTRAINED = ("--set", "train.max_steps=0")
LAST = ("eval", "runs/c", "--checkpoint", "last")


def says(message: str, *fragments: str) -> None:
    assert fragments
    for fragment in fragments:
        assert fragment in message


# Configs and data ----------------------------------------------------------------------------


def test_bad_configs_and_data_are_named_before_anything_is_written(refused):
    """tests/config/test_config.py and tests/data/test_files.py have every kind of refusal."""
    Path("bad.yaml").write_text("lr: 1e-3\ndata: {task: copy}\n")
    says(refused("train", "bad.yaml"), "bad.yaml:1", "lr", "did you mean train.lr?")
    says(refused(*TRAIN, "--device", "cuda:7"), "device cuda:7", "which has cpu", "auto")
    Path("a.src").write_bytes(b"1\n2\n\0\n")
    Path("a.tgt").write_bytes(b"1\n2\n")
    for files, *fragments in (
        ("[a.src, a.src]", "a.src:3", "not a text file"),
        ("[a.tgt, c.yaml]", "a.tgt has 2 lines", "line k"),
    ):
        Path("files.yaml").write_text(f"data: {{files: {{train: {files}}}}}\n")
        says(refused("train", "files.yaml"), *fragments)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("files", "words", "fragments"),
    [
        ({"s.txt": b"1 2\n1 x\n", "t.txt": b"1\n1\n"}, "", ("s.txt:2", "symbol 'x'")),
        ({"p.txt": b"1\t1\n"}, "", ("p.txt: the ending", ".tsv, .csv and .jsonl do")),
        ({"a": b"1\n", "b": b"1\n", "c": b"1\n"}, "", ("3 times --pairs",)),
        ({"s.txt": b"1\n", "t.txt": b"1\n"}, "--lengths 3:9", ("lengths 3:9", "no source")),
    ],
)
def test_bad_files_to_measure_are_named(run, refused, files, words, fragments):
    for name, raw in files.items():
        Path(name).write_bytes(raw)
    named = [word for name in files for word in ("--pairs", name)]
    says(refused("eval", str(run), *named, *words.split()), *fragments)


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def feed(raw: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), "utf-8"))

    return feed


@pytest.mark.parametrize(
    ("raw", "fragment"),
    [
        (b"1 2\n1 x\n", "symbol 'x'"),
        (b"1 2\n1 \xff\n", "UTF-8"),
        (b"1 2\n" + b"1 " * 10**6, "longer than 65,536 bytes"),
    ],
    ids=["unseen", "bytes", "endless"],
)
def test_a_bad_line_of_standard_input_is_numbered(run, command, stdin, raw, fragment):
    stdin(raw)
    answer = command("translate", str(run))
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    says(answer.err, "toytrans: standard input, line 2", fragment)


def test_an_argument_with_an_unseen_symbol_is_numbered(run, refused):
    said = refused("translate", str(run), "1 2", "3", "4 x 1")
    says(said, "toytrans: argument 3", "symbol 'x'", "5 symbols", "'0'")


# Runs ----------------------------------------------------------------------------------------


def test_what_is_no_run_is_named_with_the_way_to_one(refused):
    says(refused("eval"), "runs", "no run", "toytrans train textbook")
    Path("notes").mkdir()
    shutil.copy("c.yaml", "notes/config.yaml")
    says(refused("eval", "notes"), "notes", "not a run directory", "data.json")
    says(refused("translate", "c.yaml", "1"), "c.yaml", "not a run directory")
    says(refused("eval", "none"), "none", "no such run directory", "toytrans train")
    says(refused("check", "x" * 300), "x" * 300)


@pytest.mark.parametrize("which", ["999", "\N{SUPERSCRIPT TWO}"])
def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(run, refused, which):
    (run / "checkpoints/step-\N{SUPERSCRIPT TWO}.safetensors").touch()  # it only looks like one
    message = refused("eval", str(run), "--json", f"--checkpoint={which}")
    says(message, "runs/c", f"no checkpoint {which}", "best, last", "4, 6")
    shutil.rmtree(run / "checkpoints")
    says(refused("eval", str(run)), "runs/c", "no checkpoint yet", "--resume")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("not JSON", "damaged"),
        ({"symbols": ["0", "1"]}, "do not belong together"),
    ],
)
def test_data_facts_that_no_training_has_are_refused(run, refused, change, words):
    facts = json.loads((run / "data.json").read_bytes())
    text = change if isinstance(change, str) else json.dumps(facts | change)
    (run / "data.json").write_text(text)
    says(refused("eval", str(run)), "runs/c/", words)


def test_a_damaged_config_of_a_run_is_named(run, refused):
    file = run / "resolved.yaml"
    text = file.read_text()
    file.write_text(text + "extra: 1\n")
    line = text.count("\n") + 1
    says(refused("eval", str(run)), f"runs/c/resolved.yaml:{line}", "extra", "unknown key")
    file.write_text(text.replace("d_ff: 32", "d_ff: 64"))
    says(refused("eval", str(run)), "resolved.yaml", "trained with", "model.d_ff (32 -> 64)")


def test_json_is_strict_where_numbers_are_not_finite(run, command):
    """Weights so large that losses overflow; NaN is a name that JSON lacks."""

    def change(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
        weights = (name for name in tensors if name.startswith("weights/"))
        tensors.update({name: tensors[name] * 1e28 for name in weights})

    for step in saved_steps(run):
        change_checkpoint(run, step, change)
    answer = command("eval", "--json")
    assert answer.code == 0, answer.err
    numbers = json.loads(answer.out, parse_constant=pytest.fail)["parts"]["all"]
    assert numbers["loss"] is None


# Checkpoints with a right checksum -----------------------------------------------------------


def change_checkpoint(run: Path, step: int, change: Callable[..., object]) -> None:
    """Change the tensors and the metadata of a checkpoint, and vouch for it by its checksum."""
    file = checkpoint_file(run, step)
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    tensors = safetensors.torch.load_file(file)
    change(tensors, metadata)
    vouch_for(run, step, safetensors.torch.save(tensors, metadata))


def vouch_for(run: Path, step: int, raw: bytes) -> None:
    """Other bytes for a checkpoint, and their checksum."""
    checkpoint_file(run, step).write_bytes(raw)
    listed = json.loads((run / "checkpoints.json").read_bytes())
    listed[str(step)] = hashlib.sha256(raw).hexdigest()
    (run / "checkpoints.json").write_text(json.dumps(listed))


def of_one_more(tensor: Tensor) -> Tensor:
    return torch.zeros([size + 1 for size in tensor.shape])


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("weights", of_one_more, "in the model of the config"),
        ("weights", lambda tensor: tensor * float("nan"), "NaN or infinity"),
        ("weights", None, "is missing"),
        ("surplus", lambda _: torch.zeros(2), "tensor surplus"),
        ("optimizer", of_one_more, "optimizer"),
        ("random", lambda tensor: tensor[1:].clone(), "random"),
    ],
)
def test_a_part_that_training_never_writes_is_refused(run, refused, part, change, words):
    """The first tensor of a part is changed, or left out. Weights alone are read to measure."""

    def of_part(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
        name = min((name for name in tensors if name.startswith(part)), default=part)
        tensor = tensors.pop(name, None)
        if change:
            tensors[name] = change(tensor)

    change_checkpoint(run, 6, of_part)
    says(refused(*(RESUME if part in ("optimizer", "random") else LAST)), "step-6", words)


OPENS_A_FILE = b"cbuiltins\nopen\n(S'opened'\nS'w'\ntR."  # as pickle, when it is loaded
LIES = b'{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    "raw",
    [
        OPENS_A_FILE,
        (2**63).to_bytes(8, "little") + b"{}",
        len(LIES).to_bytes(8, "little") + LIES + bytes(4),
    ],
)
def test_files_that_are_no_safetensors_or_lie_are_refused_and_not_run(run, refused, raw):
    vouch_for(run, 6, raw)
    says(refused(*LAST), "step-6.safetensors: ", "step 4 is used")
    assert not Path("opened").exists()


@pytest.mark.parametrize(
    ("words", "change", "said"),
    [
        (LAST, lambda progress: progress["window"].update(tokens=-7), "damaged"),
        (RESUME, lambda progress: progress["window"].pop("tokens"), "damaged"),
    ],
)
def test_a_progress_of_other_types_is_refused(run, refused, words, change, said):
    def of_metadata(_: dict[str, Tensor], metadata: dict[str, str]) -> None:
        progress = json.loads(metadata["progress"])
        change(progress)
        metadata["progress"] = json.dumps(progress)

    change_checkpoint(run, 6, of_metadata)
    says(refused(*words), "step-6", said)


# Options and sizes ---------------------------------------------------------------------------


def test_lengths_that_are_no_range_are_refused(run, refused):
    for lengths in ("9:1", "x", ""):
        says(refused("eval", "--lengths", lengths), f"--lengths {lengths}", "FROM:TO", "1:400")
    says(refused("eval", "--lengths", "1:70000"), "lengths 1:70000", "at most 65536")


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        (["model.d_ff=1000000000000"], "model.d_ff"),
        (
            ["data.test_length=[1, 60000]", "data.test_examples=10000"],
            "data.test_examples: 10,000 pairs of up to 60,000 symbols",
        ),
        (
            ["data.task=duplicate", "data.test_length=[1, 30000]", "data.test_examples=10000"],
            "data.test_examples: 10,000 pairs of up to 60,000 symbols",
        ),
        (["model.d_model=65536"], "parameters"),
    ],
)
def test_sizes_that_fill_a_machine_are_refused_before_anything_is_made(refused, changes, fragment):
    assert fragment in refused(*TRAIN, *(word for one in changes for word in ("--set", one)))
    assert not Path("runs").exists()


# Files without an end ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "3 GiB"])
def test_what_has_no_end_is_refused_unread_wherever_it_is_named(run, refused, kind):
    """tests/training/test_checkpoint.py has checkpoints."""
    words = "a pipe or a device" if kind == "pipe" else "larger than"
    (run / "data.json").rename("data.json")
    for path in ("endless", run / "data.json"):
        if kind == "pipe":
            os.mkfifo(path)
        else:
            Path(path).touch()
            os.truncate(path, 3 * 2**30)
    assert "data.json" in refused(*LAST)
    Path("data.json").replace(run / "data.json")
    Path("files.yaml").write_text("data: {files: {train: endless, valid: a.tsv, format: tsv}}\n")
    for arguments in (
        ("train", "endless"),
        ("train", "files.yaml"),
        ("eval", str(run), "--pairs", "endless", "--pairs", "endless"),
    ):
        assert words in refused(*arguments), arguments


LAUGHS = "a: &a [1, 2]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS = {
    LAUGHS: "aliases",
    "a: " + "[" * 10_000: "nested too deeply",
    "data: {task: copy}\nseed: " + "9" * 990_000 + "\n": "990000 digits",
}


def test_bombs_of_yaml_are_refused_in_little_memory(refused):
    """In 100 MiB more than the process has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 100 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        for text, words in BOMBS.items():
            Path("bomb.yaml").write_text(text)
            assert words in refused("check", "--config", "bomb.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# Names and escapes ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..yaml", "a\x1b[31m.yaml"])
def test_a_config_that_names_no_run_asks_for_one(refused, name):
    os.rename("c.yaml", name)
    assert "is no name for a run" in refused("train", f"./{name}")
    assert os.listdir() == [name]


EVIL = ["\x1b[31mred", "[bold]", "[/]", "<b>", "&amp;", "\x9b5m", "\u202eleft", "é\x07"]


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on symbols that a terminal, Rich or HTML would obey, in a folder of such a name."""
    folder = tmp_path_factory.mktemp("evil")
    pairs = (f"{' '.join(EVIL[k:])}\t{' '.join(EVIL[:k])}" for k in range(len(EVIL)))
    (folder / "a.tsv").write_text("\n".join(pairs) + "\n")
    files = {name: str(folder / "a.tsv") for name in ("train", "valid")}
    (folder / "evil.yaml").write_text(tiny_yaml(data={"files": files}))
    out, run = io.StringIO(), folder / "\x1b[31m[red]run"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        assert call("train", str(folder / "evil.yaml"), "--out", str(run)) == 0
    assert "\\x1b[31m" in out.getvalue() and harmless(out.getvalue())
    return run


def harmless(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    "words",
    [
        "eval RUN",
        "translate RUN \x1b[32munseen",
        "trace RUN SYMBOLS --panel heads",
        "inspect-masks RUN --html page.html",
        "inspect-masks --src SYMBOLS --tgt SYMBOLS",
        "check --model \x1b[31mmine:made",
        "train \x1b[31m[red].yaml",
        "eval RUN --\x1b[31m",
    ],
)
def test_escapes_and_markup_are_shown_not_obeyed(evil, command, stdin, words):
    symbols = " ".join(EVIL)
    stdin(f"{symbols}\n".encode())
    parts = {"RUN": str(evil), "SYMBOLS": symbols}
    answer = command(*(parts.get(word, word) for word in words.split(" ")))
    assert answer.code in (0, 1, 2), answer.err
    said = answer.out + answer.err
    assert said and harmless(said)
    if "--html" in words:
        page = Path("page.html").read_text()
        assert "<b>" not in page
        said += html.unescape(page)
    if words in ("inspect-masks --src SYMBOLS --tgt SYMBOLS", "trace RUN SYMBOLS --panel heads"):
        assert "[bold]" in said and "<b>" in said and "\\x1b[31" in said


# Streams and the environment -----------------------------------------------------------------


def shell(line: str) -> subprocess.CompletedProcess[str]:
    line = line.replace("toytrans", f"{sys.executable} -m toytrans")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True)


def test_streams_that_end_are_no_bugs_of_ours(monkeypatch):
    """schema prints plainly, faults through Rich."""
    done = shell("(sleep 0.2; toytrans explain faults; echo code $? >&2) | true")
    assert done.stderr == "code 141\n"
    done = shell("toytrans explain schema > /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "standard output: No space left" in done.stderr
    assert shell("toytrans explain faults >&- <&- 2>&-").returncode == 0
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert call(*TRAIN) == 0, "a training outlives its log"


# A bug of ours --------------------------------------------------------------------------------


def test_a_bug_of_ours_is_one_line_that_names_its_report(command, monkeypatch):
    def broken(*_: Any, **__: Any) -> None:
        raise EOFError("out of order\nin two lines")

    monkeypatch.setattr(TaskDataset, "samples", broken)
    answer = command("explain", "copy")
    assert (answer.code, answer.out) == (70, "")
    says(answer.err.splitlines()[-1], "toytrans: internal error", "EOFError", "out of order")
    (report,) = Path(tempfile.gettempdir()).iterdir()
    assert str(report) in answer.err
    says(report.read_text(), "Traceback", "EOFError: out of order", "test_bad_input.py")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/full")
    answer = command("explain", "copy")
    assert answer.code == 70 and answer.err.endswith("in two lines); see above\n")
    says(answer.err, "Traceback", "test_bad_input.py")
