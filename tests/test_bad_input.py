"""Bad and hostile input ends in exit code 2 and one line that says what, where and the remedy, in
bounded time and memory; nothing is written or lost meanwhile; a bug of ours is told apart from it.
"""

import contextlib
import errno
import html
import importlib.metadata
import io
import json
import os
import pickletools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, call, change_checkpoint, tiny_yaml, vouch_for
from forked import COMMAND, Forked
from torch import Tensor

import toytrans
from toytrans.config.load import load_config
from toytrans.data import files as data_files
from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.tasks.base import TaskPairs
from toytrans.errors import UserError
from toytrans.training.checkpoint import checkpoint_file, saved_steps
from toytrans.training.run import RunFolder

pytestmark = pytest.mark.usefixtures("here", "in_time")
Refused = Callable[..., str]
TRAIN = ("train", "--config", "c.yaml")
RESUME = (*TRAIN, "--resume", "--set", "train.max_steps=8")
UNTRAINED = ("--set", "train.max_steps=0")
LAST = ("eval", "runs/c", "--checkpoint", "last")


def says(message: str, *fragments: str) -> None:
    assert fragments
    for fragment in fragments:
        assert fragment in message


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found
    return found


def stdin(patch: pytest.MonkeyPatch, raw: bytes) -> None:
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), "utf-8"))


# Configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        (b"data: [1,\n", ("bad.yaml:", "not YAML")),
        (b"lr: 1e-3\ndata: {task: copy}\n", ("bad.yaml:1", "lr", "did you mean train.lr?")),
        (b"data: {task: copy}\ndevice: cuda:7\n", ("device cuda:7", "cpu", "auto")),
    ],
)
def test_a_bad_config_trains_nothing(refused, text, fragments):
    Path("bad.yaml").write_bytes(text)
    says(refused("train", "--config", "bad.yaml"), *fragments)
    assert sorted(os.listdir()) == ["bad.yaml", "c.yaml"]


def test_an_absent_device_is_refused_with_those_that_exist(run, refused):
    for words in ((*TRAIN, "--out", "new"), ("eval", str(run))):
        said = refused(*words, "--device", "cuda:7")
        says(said, "device cuda:7", "this machine, which has cpu", "auto")
    assert not Path("new").exists()


# Data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "raw", "fragments"),
    [
        (
            "{train: [a.src, a.tgt]}",
            {"a.src": b"1\n2\n3\n", "a.tgt": b"1\n2\n"},
            ("a.src has 3 lines", "a.tgt 2", "line k"),
        ),
        ("{train: a.tsv}", {"a.tsv": b"1\t1\n\0\t1\n"}, ("a.tsv:2", "not a text file")),
        ("{train: a.tsv}", {"a.tsv": b"1\t1\n"}, ("a.tsv", "one source", "data.files.valid")),
        (
            "{train: a.tsv, valid: a.tsv, test: t.tsv}",
            {"a.tsv": b"1\t1\n", "t.tsv": b"1\t1\n1 1\t1\n1 x\t1\n"},
            ("t.tsv:3", "symbol 'x'", "in training"),
        ),
    ],
)
def test_bad_data_is_named_with_its_line_before_anything_is_written(refused, files, raw, fragments):
    for name, text in raw.items():
        Path(name).write_bytes(text)
    Path("c.yaml").write_text(f"data:\n  files: {files}\n")
    says(refused(*TRAIN), *fragments)
    assert not Path("runs").exists()


def test_data_that_would_fill_the_memory_is_named_with_its_line(monkeypatch):
    def reading(text: str) -> str:
        Path("a.tsv").write_text(text)
        Path("c.yaml").write_text("data: {files: {train: a.tsv, valid: a.tsv}}\n")
        config = load_config(Path("c.yaml"))
        with pytest.raises(UserError) as caught:
            check_dataset(config, open_dataset(config))
        return str(caught.value)

    assert "a.tsv:2: 1,200 symbols for a source of 1" in reading(f"1\t1\n2\t{'1 ' * 1200}\n")
    assert "a.tsv:2: a line of more than" in reading("1\t1\n" + "1 " * 600_000 + "\t1\n")
    monkeypatch.setattr(data_files, "MOST_IDS", 99)
    said = reading(f"1\t1\n{'1 ' * 40}\t1\n1\t1\n")
    assert "a.tsv:2: 40 symbols; padded to these, 3 sequences" in said
    monkeypatch.setattr(data_files, "MOST_LINES", 3)
    assert "a.tsv: more than 3 lines" in reading("1\t1\n" * 4)


@pytest.mark.parametrize(
    ("src", "tgt", "fragments"),
    [
        (b"1 2\n1 x\n", b"1 2\n1 2\n", ("s.txt:2", "symbol 'x'")),
        (b"1\n2\n3\n", b"1\n", ("s.txt has 3 lines", "t.txt 1")),
        (b"", b"1\n", ("s.txt", "empty")),
        (b"1\n", None, ("t.txt", "no such file")),
    ],
)
def test_bad_files_to_measure_are_named_with_their_line(run, refused, src, tgt, fragments):
    Path("s.txt").write_bytes(src)
    if tgt is not None:
        Path("t.txt").write_bytes(tgt)
    says(refused("eval", str(run), "--pairs", "s.txt", "--pairs", "t.txt"), *fragments)


def test_files_to_measure_have_the_form_and_the_lengths_asked_for(run, refused):
    Path("p.tsv").write_text("1 2\t2 1\n")
    Path("s.txt").write_text("1 2\n")
    twice = ("eval", str(run), "--pairs", "p.tsv", "--pairs", "p.tsv")
    says(refused(*twice), "p.tsv: a tab in each line", "tsv")
    says(refused(*twice, "--pairs", "p.tsv"), "3 times --pairs")
    says(refused("eval", str(run), "--pairs", "p.txt"), "p.txt: the ending", ".tsv or .jsonl")
    parallel = ("--pairs", "s.txt", "--pairs", "s.txt")
    says(refused("eval", *parallel, "--lengths", "3:9"), "lengths 3:9", "no source")


def test_an_argument_with_an_unseen_symbol_is_numbered(run, command):
    answer = command("translate", str(run), "1 2", "3", "4 x 1")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    says(answer.err, "toytrans: argument 3", "symbol 'x'", "5 symbols", "'0'")
    assert answer.out.count("\n") == 2  # the two before it are translated


@pytest.mark.parametrize(
    ("raw", "fragment"),
    [
        (b"1 2\n1 x\n", "symbol 'x'"),
        (b"1 2\n1 \xff\n", "UTF-8"),
        (b"1 2\n" + b"1 " * 10**6, "longer than 65,536 bytes"),
    ],
    ids=["unseen", "bytes", "endless"],
)
def test_a_bad_line_of_standard_input_is_numbered(run, command, monkeypatch, raw, fragment):
    stdin(monkeypatch, raw)
    answer = command("translate", str(run))
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    says(answer.err, "toytrans: standard input, line 2", fragment)


def test_a_mark_of_byte_order_is_no_part_of_the_first_symbol(run, command, monkeypatch):
    stdin(monkeypatch, b"\xef\xbb\xbf1 2\n3\n")
    marked = command("translate")
    stdin(monkeypatch, b"1 2\n3\n")
    assert marked == command("translate") and marked.code == 0
    Path("marked.yaml").write_text("\ufeff" + tiny_yaml(data={"files": {"train": "a.tsv"}}))
    Path("a.tsv").write_text("\ufeff1 2\t2 1\n3\t3\n")
    assert command("train", "--config", "marked.yaml", *UNTRAINED).code == 0
    assert json.loads(Path("runs/marked/data.json").read_text())["symbols"] == ["1", "2", "3"]


# Runs ----------------------------------------------------------------------------------------


def test_without_any_run_the_way_to_one_is_named(refused):
    for words in (("eval",), ("translate", "1")):
        says(refused(*words), "runs", "no run", "toytrans train --config")
    Path("runs/notes").mkdir(parents=True)
    says(refused("translate"), "runs", "no run", "toytrans train --config")


@pytest.mark.parametrize("name", ["eval", "check"])
def test_a_directory_that_is_no_run_is_named(refused, name):
    Path("notes").mkdir()
    shutil.copy("c.yaml", "notes/config.yaml")
    says(refused(name, "notes"), "notes", "not a run directory", "data.json")
    says(refused(name, "c.yaml"), "c.yaml", "not a run directory")
    says(refused(name, "none"), "none", "no such run directory", "toytrans train")
    assert "x" * 300 in refused(name, "x" * 300)


def test_a_damaged_best_checkpoint_is_not_quietly_replaced_by_another(run, refused):
    progress = RunFolder.open(run).progress()
    assert progress is not None and progress.best_step is not None
    checkpoint_file(run, progress.best_step).write_bytes(b"")
    for words in (("eval", str(run)), ("translate", "1 2")):
        says(refused(*words), f"step-{progress.best_step}.safetensors", "--checkpoint")


def test_of_a_damaged_first_checkpoint_the_last_one_is_named(run, refused):
    checkpoint_file(run, 4).write_bytes(b"")
    first = ("eval", str(run), "--checkpoint", "4")
    says(refused(*first), "there is step 6: take it with --checkpoint 6")
    checkpoint_file(run, 6).unlink()
    says(refused(*first), "there is no other checkpoint; train again")


@pytest.mark.parametrize("which", ["999", "-1", "first", "\N{SUPERSCRIPT TWO}", ""])
def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(run, refused, which):
    (run / "checkpoints/step-\N{SUPERSCRIPT TWO}.safetensors").touch()  # it only looks like one
    message = refused("eval", str(run), "--json", f"--checkpoint={which}")
    says(message, "runs/c", f"no checkpoint {which}", "best, last", "4, 6")


def test_a_run_without_checkpoints_is_told_to_train(run, refused):
    shutil.rmtree(run / "checkpoints")
    says(refused("eval", str(run)), "runs/c", "no checkpoint yet", "--resume")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("not JSON", "damaged"),
        ("[]", "damaged"),
        ({"symbols": ["0", "1"]}, "do not belong together"),
        ({"symbols": [0, 1, 2, 3, 4]}, "damaged"),
        ({"train_length": [4, 1]}, "damaged"),
        ({"target_growth": 10**9}, "damaged"),
        ({"target_growth": float("inf")}, "damaged"),
        ({"surplus": 1}, "damaged"),
    ],
)
def test_data_facts_that_no_training_has_are_refused(run, refused, change, words):
    facts = json.loads((run / "data.json").read_bytes())
    text = change if isinstance(change, str) else json.dumps(facts | change)
    (run / "data.json").write_text(text)
    says(refused("eval", str(run)), "runs/c/", words)


def test_a_damaged_config_of_a_run_is_named(run, refused):
    file = run / "config.yaml"
    text = file.read_text()
    file.write_text(text + "extra: 1\n")
    line = text.count("\n") + 1
    says(refused("eval", str(run)), f"runs/c/config.yaml:{line}", "extra", "unknown key")
    file.write_text(text.replace("d_ff: 32", "d_ff: 64"))
    says(refused("eval", str(run)), "checkpoints", "(32,)", "(64,)", "do not belong together")


@pytest.mark.parametrize("raw", [b"\xff", b"[" * 100_000, b'{"precision": []}'])
def test_a_damaged_environment_tells_nothing(run, raw):
    assert RunFolder.open(run).precision == "fp32"
    (run / "environment.json").write_bytes(raw)
    assert RunFolder.open(run).precision is None


def test_json_is_strict_where_numbers_are_not_finite(run, command):
    """Weights so large that losses overflow; NaN is a name that JSON lacks."""

    def change(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
        weights = (name for name in tensors if name.startswith("weights/"))
        tensors.update({name: tensors[name] * 1e28 for name in weights})

    for step in saved_steps(run):
        change_checkpoint(run, step, change)
    for words in ("eval", "eval runs/c runs/c", "demo decoding"):
        answer = command(*words.split(), "--json")
        assert answer.code == 0, answer.err
        assert json.loads(answer.out, parse_constant=pytest.fail)
    assert json.loads(command("eval", "--json").out)["loss"] is None


# Checkpoints with a right checksum -----------------------------------------------------------


def change_part(part: str, change: Callable[..., Any]) -> Callable[[Path], None]:
    """Change a part of the last checkpoint, by the name of its first tensor."""

    def of_tensors(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
        change(tensors, min(name for name in tensors if name.startswith(part)))

    return lambda run: change_checkpoint(run, 6, of_tensors)


def put(change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], str], None]:
    return lambda tensors, name: tensors.update({name: change(tensors[name]).contiguous()})


def of_one_more(tensor: Tensor) -> Tensor:
    return torch.zeros([size + 1 for size in tensor.shape])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(of_one_more), "has shape"),
        (put(lambda t: t * float("nan")), "NaN or infinity"),
        (put(lambda t: t.long()), "int64)"),
        (lambda tensors, name: tensors.pop(name), "is missing"),
        (
            lambda tensors, name: tensors.update({"weights/x": torch.zeros(2)}),
            "has no tensor weights/x",
        ),
        (lambda tensors, name: tensors.update(surplus=torch.zeros(2)), "has no tensor surplus"),
    ],
)
def test_weights_that_training_never_writes_are_refused(run, refused, change, words):
    change_part("weights", change)(run)
    says(refused(*LAST), "step-6", words)


OPENS_A_FILE = b"cbuiltins\nopen\n(S'opened'\nS'w'\ntR."


def with_header(header: bytes, length: int | None = None, data: bytes = b"") -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    "raw",
    [
        OPENS_A_FILE,
        b"",
        with_header(b"{}", 2**63),
        with_header(b"[" * 100_000),
        with_header(b'{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}', data=b"\0" * 4),
        with_header(b'{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
        with_header(b'{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', data=b"\0" * 4),
        with_header(b'{"x":{"dtype":"F4","shape":[4],"data_offsets":[0,4]}}', data=b"\0" * 4),
    ],
)
def test_files_that_are_no_safetensors_or_lie_are_refused_and_not_run(run, refused, raw):
    opcodes = {code.name for code, _, _ in pickletools.genops(OPENS_A_FILE)}
    assert {"GLOBAL", "REDUCE", "STOP"} <= opcodes  # it would call open when loaded
    vouch_for(run, 6, raw)
    says(refused(*LAST), "step-6.safetensors: ", "--checkpoint 4")
    assert not Path("opened").exists()


def change_progress(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the progress in the metadata of the last checkpoint."""

    def of_metadata(_: dict[str, Tensor], metadata: dict[str, str]) -> None:
        progress = json.loads(metadata["progress"])
        change(progress)
        metadata["progress"] = json.dumps(progress)

    return lambda run: change_checkpoint(run, 6, of_metadata)


@pytest.mark.parametrize(
    "change",
    [
        lambda progress: progress.update(surplus=1),
        lambda progress: progress.update(step=3),
        lambda progress: progress.update(step="6"),
        lambda progress: progress.update(elapsed_s=float("inf")),
        lambda progress: progress["window"].update(tokens=-7),
    ],
)
def test_a_progress_of_other_types_is_refused(run, refused, change):
    change_progress(change)(run)
    says(refused(*LAST), "step-6.safetensors: damaged", "--checkpoint 4")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (change_progress(lambda progress: progress.pop("window")), "its sums"),
        (change_part("optimizer", put(of_one_more)), "optimizer"),
        (change_part("optimizer", put(lambda t: t.int())), "optimizer"),
        (change_part("optimizer", lambda ts, n: ts.pop(n)), "is missing"),
        (change_part("random", put(lambda t: t[1:])), "random"),
        (change_part("random", put(torch.zeros_like)), "random"),
        (change_part("random", lambda ts, n: ts.pop(n)), "random"),
    ],
)
def test_a_checkpoint_that_only_looks_whole_is_not_resumed_from(run, refused, damage, words):
    damage(run)
    says(refused(*RESUME), words, "move it away, then --resume goes on from step 4")


# Options -------------------------------------------------------------------------------------


def test_what_there_is_to_inspect_must_be_given(refused):
    message = refused("inspect-masks", "--src", "1 2", "--src", "3", "--tgt", "2 1")
    says(message, "2 --src", "1 --tgt", "one --tgt for each --src")
    says(refused("inspect-masks"), "nothing to inspect", "--config", "--src", "--tgt")
    given = ("--src", "1 9", "--tgt", "1")
    says(refused("inspect-masks", "--config", "c.yaml", *given), "src '1 9'", "symbol '9'")


def test_lengths_that_are_no_range_are_refused(run, refused):
    for lengths in ("9:1", "x", "1:2:3", "1-4", ":4", "1.5"):
        said = refused("eval", "--lengths", lengths)
        says(said, f"--lengths {lengths}", "FROM:TO", "1:400")
    says(refused("eval", "--lengths", "1:70000"), "lengths 1:70000", "at most 65536")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("eval", "--examples", "0"), "--examples"),
        (("eval", "--split", "train"), "--split"),
        (("train", "a.yaml", "b.yaml"), "b.yaml"),
        (("tarin",), "tarin"),
    ],
)
def test_a_wrong_command_line_is_explained_by_the_parser(command, arguments, fragment):
    answer = command(*arguments)
    assert (answer.code, answer.out) == (2, "")
    says(answer.err, "Error", fragment)
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.d_ff", 10**12),
        ("model.n_encoder_layers", 10**6),
        ("data.symbols", 10**9),
        ("data.train_length", [1, 10**9]),
        ("data.test_examples", 10**8),
        ("data.batch_tokens", 10**9),
        ("train.max_steps", "9" * 500),
        ("train.accumulate", 10**9),
    ],
)
def test_sizes_that_fill_a_machine_are_refused_before_anything_is_made(refused, key, value):
    assert key in refused(*TRAIN, "--set", f"{key}={value}")
    assert not Path("runs").exists()


def test_sizes_that_fill_a_machine_together_are_refused(refused):
    long = ("--set", "data.test_length=[1, 60000]", "--set", "data.test_examples=10000")
    assert "data.test_examples: 10,000 pairs of up to 60,000 symbols" in refused(*TRAIN, *long)
    assert "parameters" in refused(*TRAIN, "--set", "model.d_model=65536")


def test_the_parameters_that_are_counted_are_nearly_all(monkeypatch):
    from toytrans.config.schema import ModelConfig
    from toytrans.model.initialisation import count_parameters
    from toytrans.model.transformer import Transformer
    from toytrans.tokens import Vocabulary

    vocabulary = Vocabulary(tuple(map(str, range(40))))
    for changes in ({}, {"tie_embeddings": False, "positions": "learned"}, {"share_layers": True}):
        model = ModelConfig.model_validate(changes)
        built = count_parameters(Transformer(model, vocabulary))
        with monkeypatch.context() as patch:
            patch.setattr("toytrans.config.schema.MOST_PARAMETERS", built)
            model.check_size(len(vocabulary))
            patch.setattr("toytrans.config.schema.MOST_PARAMETERS", int(0.9 * built))
            with pytest.raises(UserError, match="parameters"):
                model.check_size(len(vocabulary))


# Files without an end ------------------------------------------------------------------------


def sparse(path: str, size: int = 3 * 2**30) -> str:
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def fifo(path: str) -> str:
    os.mkfifo(path)
    return path


MADE: dict[str, Callable[[str], str]] = {
    "device": lambda path: "/dev/zero",
    "pipe": fifo,
    "3 GiB": sparse,
}


@pytest.mark.parametrize("kind", MADE)
def test_what_has_no_end_is_refused_unread_wherever_it_is_named(run, refused, kind):
    words = "larger than" if kind == "3 GiB" else "a pipe or a device"
    path = MADE[kind]("endless")
    Path("files.yaml").write_text("data: {files: {train: a.tsv, valid: a.tsv}}\n")
    named = ("--set", f"data.files.train={path}", "--set", "data.files.format=tsv")
    for arguments in (
        ("train", "--config", path),
        ("train", "--config", "files.yaml", *named),
        ("check", "--config", "files.yaml", *named),
        ("eval", str(run), "--pairs", path, "--pairs", path),
    ):
        assert words in refused(*arguments), arguments
    if kind != "device":
        for name in ("config.yaml", "data.json", "checkpoints/step-6.safetensors"):
            (run / name).rename("away")
            MADE[kind](str(run / name))
            assert name in refused(*LAST) or name == "config.yaml"
            Path("away").replace(run / name)


LAUGHS = "a: &a [1, 2]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS = {
    "laughs": (LAUGHS, "aliases"),
    "brackets": ("a: " + "[" * 10_000, "nested deeper"),
    "list": ("data: {task: copy}\nmodel: {positions: [" + "x, " * 300_000 + "x]}", "10,000"),
    "keys": ("".join(f"k{k}: 1\n" for k in range(90_000)), "10,000"),
    "dots": ("data: {task: copy}\n? " + "a." * 450_000 + "\n: 1\n", "unknown key"),
    "digits": ("data: {task: copy}\nseed: " + "9" * 990_000 + "\n", "seed"),
}


MEMORY = """
import resource, sys
from pathlib import Path
from toytrans.config.load import load_config
from toytrans.errors import UserError
load_config(Path("c.yaml"))  # what a config needs is imported
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        load_config(Path(path))
    except UserError as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)  # MiB
"""


def test_bombs_of_yaml_are_refused_in_little_memory():
    for name, (text, _) in BOMBS.items():
        Path(name).write_text(text)
    names = [*BOMBS, sparse("sparse"), fifo("pipe"), "/dev/zero"]
    *lines, mebibytes = Forked(MEMORY, *names).ended().out.splitlines()
    assert len(lines) == len(names)
    for line, (_, words) in zip(lines, BOMBS.values(), strict=False):
        assert words in line[-300:] or words in line[:300]
    assert int(mebibytes) < 100


# Names and escapes ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..yaml", "a\x1b[31m.yaml", "a\nb.yaml", "\udcff.yaml"])
def test_a_config_that_names_no_run_asks_for_one(refused, name):
    os.rename("c.yaml", name)
    assert "is no name for a run" in refused("train", "--config", f"./{name}")
    assert os.listdir() == [name]


@pytest.mark.parametrize("name", ["-x.yaml", ".yaml", f"{'x' * 250}.yaml", "a b.yaml"])
def test_strange_names_of_runs_stay_below_runs(command, name):
    os.rename("c.yaml", name)
    answer = command("train", "--config", f"./{name}", *UNTRAINED)
    assert answer.code == 0, answer.err
    assert sorted(os.listdir()) == sorted([name, "runs"])
    assert os.listdir("runs") == [Path(name).stem]


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
        assert call("train", "--config", str(folder / "evil.yaml"), "--out", str(run)) == 0
    assert "\\x1b[31m" in out.getvalue() and harmless(out.getvalue())
    return run


def harmless(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    "words",
    [
        "eval RUN",
        "eval RUN RUN",
        "eval RUN --json",
        "translate RUN",
        "translate RUN \x1b[32munseen",
        "attention RUN SYMBOLS",
        "attention RUN SYMBOLS --json",
        "attention RUN SYMBOLS --plot x.svg",
        "inspect-masks RUN",
        "inspect-masks RUN --as hf",
        "inspect-masks RUN --html",
        "inspect-masks --src SYMBOLS --tgt SYMBOLS",
        "trace RUN",
        "demo leaks RUN",
        "check --model \x1b[31mmine:made",
        "train --config \x1b[31m[red].yaml",
        "train --config c.yaml --set data.symbols=\x1b[31m",
        "train --config c.yaml --set \x1b[31m",
        "eval RUN --split \x1b[31m",
        "eval RUN --\x1b[31m",
        "\x1b[31m",
    ],
)
def test_escapes_and_markup_are_shown_not_obeyed(evil, command, monkeypatch, words):
    symbols = " ".join(EVIL)
    stdin(monkeypatch, f"{symbols}\n".encode())
    parts = {"RUN": str(evil), "SYMBOLS": symbols}
    answer = command(*(parts.get(word, word) for word in words.split(" ")))
    assert answer.code in (0, 1, 2), answer.err
    said = answer.out + answer.err
    assert said and harmless(said)
    if "--html" in words:
        assert "<b>" not in answer.out
        said = html.unescape(answer.out)
    if Path("x.svg").exists():
        drawn = Path("x.svg").read_text()
        assert harmless(drawn.replace("\t", "")) and "<b>" not in drawn
    if words in ("inspect-masks --src SYMBOLS --tgt SYMBOLS", "attention RUN SYMBOLS"):
        assert "[bold]" in said and "<b>" in said and "\\x1b[31" in said


# Pipes and streams ---------------------------------------------------------------------------


def shell(line: str) -> subprocess.CompletedProcess[str]:
    line = line.replace("toytrans", f"{sys.executable} -m toytrans")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)


def test_streams_that_end_are_no_bugs_of_ours():
    """schema prints plainly, faults through Rich."""
    done = shell("(sleep 0.2; toytrans explain faults; echo code $? >&2) | true")
    assert done.stderr == "code 141\n"
    done = shell("toytrans explain schema > /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "standard output: No space left" in done.stderr
    assert shell("toytrans explain faults >&- <&- 2>&-").returncode == 0
    assert shell("toytrans explain no 2>/dev/full").returncode == 2


def test_a_poor_encoding_shows_symbols_as_escapes():
    words = ("inspect-masks", "--src", "é 1", "--tgt", "1", "--as", "hf")
    done = Forked(COMMAND, *words, environment=os.environ | {"PYTHONIOENCODING": "ascii"}).ended()
    assert done.code == 0 and "\\xe9" in done.out and "\\xb7" not in done.out


def test_a_training_outlives_its_log(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert call(*TRAIN) == 0
    assert saved_steps(Path("runs/c"))[-1] == 6


def test_a_working_directory_that_is_gone_is_said_in_one_line():
    line = f"mkdir gone; cd gone; rmdir ../gone; PYTHONPATH={ROOT} toytrans train textbook"
    done = shell(line)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "the working directory is gone" in done.stderr


# The environment -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"WORLD_SIZE": "1" * 20},
        {"RANK": "2"},
        {"WORLD_SIZE": "0"},
        {"MASTER_ADDR": "::1", "MASTER_PORT": "9" * 20},
        {"TORCHELASTIC_USE_AGENT_STORE": "True"},
        {
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "x",
        },
    ],
)
def test_an_environment_that_is_not_torchruns_is_refused(refused, monkeypatch, values):
    for name, value in ({"RANK": "0", "WORLD_SIZE": "2"} | values).items():
        monkeypatch.setenv(name, value)
    assert "torchrun" in refused(*TRAIN) and not Path("runs").exists()


def test_a_source_tree_that_is_not_installed_works(command, monkeypatch):
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert command("--version").out == f"toytrans {toytrans.__version__}\n"
    assert command(*TRAIN, *UNTRAINED).code == 0
    known = json.loads(Path("runs/c/environment.json").read_text())
    assert known["toytrans"] == toytrans.__version__


# A full disk ---------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk(folder: str, pattern: str, number: int = 1) -> Iterator[list[str]]:
    """Within it, flushing files of the pattern fails for lack of space, from the given one on; the
    files whose flush failed."""
    met: list[str] = []
    seen: list[int] = []
    flush = os.fsync

    def refuse(descriptor: int) -> None:
        status = os.fstat(descriptor)
        for path in Path(folder).glob(pattern):
            if os.path.samestat(status, path.stat()):
                seen.append(descriptor)
                if len(seen) < number:
                    break
                met.append(path.name)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        yield met


def test_a_disk_that_fills_up_leaves_the_checkpoint_before_whole(command):
    with full_disk("runs/c", "checkpoints/*.draft", 2) as met:
        answer = command(*TRAIN)
    assert len(met) == 1  # step 2 was saved, step 4 was on its way
    assert answer.code == 2
    assert "Traceback" not in answer.err
    last = answer.err.splitlines()[-1]
    says(last, "toytrans: runs/c", "step 4", os.strerror(errno.ENOSPC), "step 2", "resume")
    assert os.listdir("runs/c/checkpoints") == ["step-2.safetensors"]
    measured = command("eval", "--json")
    assert (measured.code, json.loads(measured.out)["checkpoint"]) == (0, 2)
    resumed = command(*TRAIN, "--resume")
    assert resumed.code == 0 and "resumed at step 2" in resumed.err


@pytest.mark.parametrize("out", ["new", "empty"])
def test_a_disk_that_is_full_at_once_blocks_no_later_training(command, out):
    Path("empty").mkdir()
    arguments = (*TRAIN, *UNTRAINED, "--out", out)
    with full_disk(out, "*.draft") as met:
        answer = command(*arguments)
    assert len(met) == 1 and answer.code == 2
    assert os.listdir(out) == ["metrics.jsonl"]
    assert command(*arguments).code == 0


@pytest.mark.parametrize(
    ("pattern", "number"),
    [("*.draft", 1), ("*.draft", 3), ("metrics.jsonl", 1)],
    ids=["data.json", "config.yaml", "metrics.jsonl"],
)
def test_a_full_disk_leaves_every_other_file_of_a_run_whole(run, command, pattern, number):
    before = contents(run)
    with full_disk("runs/c", pattern, number) as met:
        answer = command(*RESUME)
    assert len(met) == 1
    assert answer.code == 2
    says(answer.err.splitlines()[-1], "toytrans: runs/c", os.strerror(errno.ENOSPC))
    after = contents(run)
    written = {"environment.json", "metrics.jsonl"}
    if pattern == "metrics.jsonl":
        written.add("config.yaml")  # with the new limit, and whole
    assert [name for name in before if after[name] != before[name] and name not in written] == []
    assert command("eval", str(run)).code == 0


# A bug of ours, and JSON ---------------------------------------------------------------------


@pytest.fixture
def buggy(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise EOFError("out of order\nin two lines")

    monkeypatch.setattr(TaskPairs, "samples", broken)


def test_a_bug_of_ours_is_one_line_that_names_its_report(buggy, command):
    answer = command("explain", "copy")
    assert (answer.code, answer.out) == (70, "")
    says(answer.err.splitlines()[-1], "toytrans: internal error", "EOFError", "out of order")
    (report,) = Path(tempfile.gettempdir()).iterdir()
    assert str(report) in answer.err
    says(report.read_text(), "Traceback", "EOFError: out of order", "test_bad_input.py")


def test_a_bug_whose_report_cannot_be_written_is_shown(buggy, command, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "nowhere")
    answer = command("explain", "copy")
    assert (answer.code, answer.out) == (70, "")
    says(answer.err, "Traceback", "test_bad_input.py", "toytrans: internal error", "above")


# The rules that hold the line ----------------------------------------------------------------


def test_the_linter_refuses_what_can_run_code():
    lines = {
        "import pickle, marshal, torch, yaml": "TID251",
        "pickle.loads(b'')": "S301",
        "marshal.loads(b'')": "S302",
        "eval('1')": "S307",
        "torch.load('x')": "TID251",
        "torch.save(1, 'x')": "TID251",
        "yaml.load('1', Loader=yaml.Loader)": "S506",
    }
    words = ["ruff", "check", "--output-format=concise", "--stdin-filename=toytrans/x.py", "-"]
    code = "\n".join([*lines, ""])
    done = subprocess.run(words, input=code, cwd=ROOT, capture_output=True, text=True)
    for number, rule in enumerate(lines.values(), 1):
        assert any(f"x.py:{number}:" in line and rule in line for line in done.stdout.splitlines())
