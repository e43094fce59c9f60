"""Proves that bad input ends in exit code 2 and one line that says what, where and the remedy, that
nothing is written or lost meanwhile, and that a bug of ours is told apart from it."""

import contextlib
import errno
import functools
import io
import json
import os
import pickletools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, call, vouch_for

from toytrans.data.tasks.base import TaskPairs
from toytrans.training.checkpoint import checkpoint_file, saved_steps
from toytrans.training.run import RunFolder

TINY = """\
data:
  task: copy
  symbols: 5
  train_length: [1, 4]
  valid_examples: 20
  test_examples: 20
  batch_tokens: 256
model:
  d_model: 16
  n_heads: 2
  n_encoder_layers: 1
  n_decoder_layers: 1
  d_ff: 32
train:
  max_steps: 6
  eval_every: 2
  precision: fp32
"""
WITH_FILES = "data:\n  files: {}\n" + TINY[TINY.index("model:") :]
UNTRAINED = ("--set", "train.max_steps=0")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in an empty folder, and reports of bugs go to another."""
    folder, reports = tmp_path / "here", tmp_path / "reports"
    folder.mkdir()
    reports.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(reports))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with copy.yaml and the run that it makes, trained once for all tests."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "copy.yaml").write_text(TINY)
    silence = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with pytest.MonkeyPatch.context() as patch, silence[0], silence[1]:
        patch.chdir(folder)
        assert call("train", "--config", "copy.yaml") == 0
    assert {4, 6} <= set(saved_steps(folder / "runs/copy"))
    return folder


@pytest.fixture
def run(trained: Path, here: Path) -> Path:
    """A copy of the trained run, as runs/copy beside copy.yaml."""
    shutil.copytree(trained, here, dirs_exist_ok=True)
    return Path("runs/copy")


def config(text: str = TINY, name: str = "copy.yaml") -> str:
    Path(name).write_text(text)
    return name


def says(message: str, *fragments: str) -> None:
    assert fragments
    for fragment in fragments:
        assert fragment in message


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found
    return found


# Configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        (b"data: [1,\n", ("bad.yaml:", "not YAML")),
        (b"\x89PNG\r\n\x1a\n\0\0", ("bad.yaml", "not text in UTF-8")),
        (b"", ("bad.yaml", "empty", "data.task")),
        (b"- task: copy\n", ("bad.yaml", "a list at the top", "data:")),
        (b"seed: 1\ndata: {taks: copy}\n", ("bad.yaml:2", "data.taks", "mean data.task?")),
        (b"lr: 1e-3\ndata: {task: copy}\n", ("bad.yaml:1", "lr", "did you mean train.lr?")),
        (b"data: {task: copy}\ntrain: {lr: fast}\n", ("bad.yaml:2", "train.lr", "a number")),
        (b"data: {task: copy}\nseed: -1\n", ("bad.yaml:2", "seed", "-1", "at least 0")),
        (b"data: {task: copy}\nmodel:\n  n_heads: 3\n", ("bad.yaml:3", "3 heads", "64", "4")),
        (b"data: {task: revers}\n", ("bad.yaml:1", "data.task", "did you mean reverse?")),
        (
            b"data: {task: copy, test_length: [1, 600]}\nmodel: {positions: learned}\n",
            ("bad.yaml:1", "data.test_length", "600", "511", "max_positions 512"),
        ),
        (b"data: {task: copy}\ndevice: cuda:7\n", ("device cuda:7", "cpu", "auto")),
        (b"data: {task: copy}\ndevice: gpu\n", ("bad.yaml:2", "device", "'gpu'", "cuda:N")),
        (b"data: {task: copy}\n'no such': 1\n", ("bad.yaml:2", "no such", "unknown key")),
    ],
)
def test_a_bad_config_trains_nothing(
    refused: Callable[..., str], text: bytes, fragments: tuple[str, ...]
) -> None:
    Path("bad.yaml").write_bytes(text)
    says(refused("train", "--config", "bad.yaml"), *fragments)
    assert os.listdir() == ["bad.yaml"]


@pytest.mark.parametrize("name", ["train", "inspect-masks"])
def test_a_config_that_is_not_there_is_named(refused: Callable[..., str], name: str) -> None:
    says(refused(name, "--config", "none.yaml"), "none.yaml", "no such file", "textbook")
    Path("folder").mkdir()
    says(refused(name, "--config", "folder"), "folder", "is a directory", "YAML file")


def test_an_override_that_is_no_assignment_is_refused(refused: Callable[..., str]) -> None:
    says(refused("train", "--config", config(), "--set", "lr"), "--set lr", "section.key=value")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--config", "copy.yaml", "--out", "new", "--device", "cuda:7"),
        ("eval", "runs/copy", "--device", "cuda:7"),
        ("eval", "--device", "cuda:7"),
    ],
)
def test_an_absent_device_is_refused_with_those_that_exist(
    run: Path, refused: Callable[..., str], arguments: tuple[str, ...]
) -> None:
    says(refused(*arguments), "device cuda:7", "this machine, which has cpu", "auto")
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
        ("{train: a.tsv}", {"a.tsv": b""}, ("a.tsv", "holds no pairs; write one")),
        ("{train: a.tsv}", {"a.tsv": b"\n \n"}, ("a.tsv", "no pairs")),
        ("{train: a.tsv}", {"a.tsv": b"1\t1\n\0\t1\n"}, ("a.tsv:2", "not a text file")),
        ("{train: a.tsv}", {"a.tsv": b"1\t1\n2\t2\n\xff\xfe\n"}, ("a.tsv:3", "UTF-8")),
        ("{train: a.tsv}", {"a.tsv": b"1\t1\n"}, ("a.tsv", "one source", "data.files.valid")),
        ("{train: a.tsv}", {"a.tsv": b"1\t1\n1 2\n"}, ("a.tsv:2", "no tab", "tab")),
        ("{train: none.tsv}", {}, ("none.tsv", "no such file")),
        ("{train: a.dat}", {"a.dat": b"1\t1\n"}, ("a.dat", "ending", "data.files.format")),
        ("{train: a.jsonl}", {"a.jsonl": b"{}\n"}, ("a.jsonl:1", "src", "tgt")),
        ("{train: a.jsonl}", {"a.jsonl": b"\n[1,\n"}, ("a.jsonl:2", "not JSON")),
        (
            "{train: a.jsonl}",
            {"a.jsonl": b'{"src": [1.5], "tgt": [1]}\n'},
            ("a.jsonl:1", "src", "1.5", "whole number"),
        ),
        (
            "{train: a.jsonl}",
            {"a.jsonl": b'{"src": [' + b"9" * 5000 + b'], "tgt": [1]}\n'},
            ("a.jsonl:1",),
        ),
        (
            "{train: a.jsonl}",
            {"a.jsonl": b'{"src": ["\\ud800"], "tgt": []}\n{"src": [1], "tgt": [1]}\n'},
            ("a.jsonl:1",),
        ),
        ("{train: a.txt, format: scan}", {"a.txt": b"IN: walk\n"}, ("a.txt:1", "IN:", "OUT:")),
        (
            "{train: a.tsv, valid: v.tsv}",
            {"a.tsv": b"1\t1\n", "v.tsv": b"1\t1\n1\t7\n"},
            ("v.tsv:2", "symbol '7'", "in training"),
        ),
        (
            "{train: a.tsv, valid: a.tsv, test: t.tsv}",
            {"a.tsv": b"1\t1\n", "t.tsv": b"1\t1\n1 1\t1\n1 x\t1\n"},
            ("t.tsv:3", "symbol 'x'", "in training"),
        ),
    ],
)
def test_bad_data_is_named_with_its_line_before_anything_is_written(
    refused: Callable[..., str], files: str, raw: dict[str, bytes], fragments: tuple[str, ...]
) -> None:
    for name, text in raw.items():
        Path(name).write_bytes(text)
    says(refused("train", "--config", config(WITH_FILES.format(files))), *fragments)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("src", "tgt", "fragments"),
    [
        (b"1 2\n1 x\n", b"1 2\n1 2\n", ("s.txt:2", "symbol 'x'")),
        (b"1 2\n", b"y\n", ("t.txt:1", "symbol 'y'")),
        (b"1\n2\n3\n", b"1\n", ("s.txt has 3 lines", "t.txt 1")),
        (b"", b"1\n", ("s.txt", "empty")),
        (b"1\n", b"\0\n", ("t.txt:1", "not a text file")),
        (b"1\n", None, ("t.txt", "no such file")),
    ],
)
def test_bad_files_to_measure_are_named_with_their_line(
    run: Path,
    refused: Callable[..., str],
    src: bytes,
    tgt: bytes | None,
    fragments: tuple[str, ...],
) -> None:
    Path("s.txt").write_bytes(src)
    if tgt is not None:
        Path("t.txt").write_bytes(tgt)
    says(refused("eval", str(run), "--pairs", "s.txt", "--pairs", "t.txt"), *fragments)


def test_a_file_of_pairs_is_not_taken_for_parallel_text(run: Path, refused: Callable[..., str]):
    Path("p.tsv").write_text("1 2\t2 1\n")
    twice = ("eval", str(run), "--pairs", "p.tsv", "--pairs", "p.tsv")
    says(refused(*twice), "p.tsv: a tab in each line", "tsv")
    says(refused(*twice, "--pairs", "p.tsv"), "3 times --pairs")
    says(refused("eval", str(run), "--pairs", "p.txt"), "p.txt: the ending", ".tsv or .jsonl")


def test_lengths_that_the_files_lack_are_named(run: Path, refused: Callable[..., str]) -> None:
    Path("s.txt").write_text("1 2\n")
    files = ("--pairs", "s.txt", "--pairs", "s.txt")
    says(refused("eval", *files, "--lengths", "3:9"), "lengths 3:9", "no source")


def test_an_argument_with_an_unseen_symbol_is_numbered(run: Path, command: Command) -> None:
    answer = command("translate", str(run), "1 2", "3", "4 x 1")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    says(answer.err, "toytrans: argument 3", "symbol 'x'", "5 symbols", "'0'")
    assert answer.out.count("\n") == 2  # the two before it are translated


@pytest.mark.parametrize(
    ("raw", "fragment"), [(b"1 2\n1 x\n", "symbol 'x'"), (b"1 2\n1 \xff\n", "UTF-8")]
)
def test_a_bad_line_of_standard_input_is_numbered(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch, raw: bytes, fragment: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), "utf-8"))
    answer = command("translate", str(run))
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    says(answer.err, "toytrans: standard input, line 2", fragment)


# Runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("eval",), ("translate", "1"), ("translate",)])
def test_without_any_run_the_way_to_one_is_named(
    refused: Callable[..., str], arguments: tuple[str, ...]
) -> None:
    says(refused(*arguments), "runs", "no run", "toytrans train --config")
    Path("runs/notes").mkdir(parents=True)
    says(refused(*arguments), "runs", "no run", "toytrans train --config")


@pytest.mark.parametrize("arguments", [("eval",), ("check",)])
def test_a_directory_that_is_no_run_is_named(
    refused: Callable[..., str], arguments: tuple[str, ...]
) -> None:
    Path("notes").mkdir()
    Path("notes/config.yaml").write_text(TINY)
    Path("file").write_text("")
    says(refused(*arguments, "notes"), "notes", "not a run directory", "data.json")
    says(refused(*arguments, "file"), "file", "not a run directory")
    says(refused(*arguments, "none"), "none", "no such run directory", "toytrans train")
    assert "x" * 300 in refused(*arguments, "x" * 300)


@pytest.mark.parametrize("name", ["eval", "translate"])
def test_a_damaged_best_checkpoint_is_not_quietly_replaced_by_another(
    run: Path, refused: Callable[..., str], name: str
) -> None:
    progress = RunFolder.open(run).progress()
    assert progress is not None and progress.best_step is not None
    checkpoint_file(run, progress.best_step).write_bytes(b"")
    arguments = {"eval": [str(run)], "translate": ["1 2"]}[name]
    message = refused(name, *arguments)
    says(message, f"step-{progress.best_step}.safetensors", "--checkpoint")


def test_of_a_damaged_first_checkpoint_the_last_one_is_named(
    run: Path, refused: Callable[..., str]
) -> None:
    first, *others = saved_steps(run)
    checkpoint_file(run, first).write_bytes(b"")
    message = refused("eval", str(run), "--checkpoint", str(first))
    says(message, f"the last checkpoint is step {others[-1]}: take it with --checkpoint")
    for step in others:
        checkpoint_file(run, step).unlink()
    message = refused("eval", str(run), "--checkpoint", str(first))
    says(message, "there is no other checkpoint; train again")


OPENS_A_FILE = b"cbuiltins\nopen\n(S'opened'\nS'w'\ntR."


def test_a_pickle_under_another_name_is_refused_and_not_run(
    run: Path, refused: Callable[..., str]
) -> None:
    opcodes = [code.name for code, _, _ in pickletools.genops(OPENS_A_FILE)]
    assert {"GLOBAL", "REDUCE", "STOP"} <= set(opcodes)  # it would call open when loaded
    last = saved_steps(run)[-1]
    vouch_for(run, last, OPENS_A_FILE)
    message = refused("eval", str(run), "--checkpoint", "last")
    says(message, f"step-{last}.safetensors", "not written by a training")
    assert not Path("opened").exists()


@pytest.mark.parametrize("dtype", ["F4", "F8_E8M0"])
def test_tensors_of_a_type_without_meaning_here_are_refused(
    run: Path, refused: Callable[..., str], dtype: str
) -> None:
    header = json.dumps({"x": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}).encode()
    last = saved_steps(run)[-1]
    vouch_for(run, last, len(header).to_bytes(8, "little") + header + b"\0" * 4)
    says(refused("eval", str(run), "--checkpoint", "last"), f"step-{last}.safetensors")


@pytest.mark.parametrize("which", ["999", "-1", "first", "\N{SUPERSCRIPT TWO}", ""])
def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(
    run: Path, refused: Callable[..., str], which: str
) -> None:
    message = refused("eval", str(run), f"--checkpoint={which}")
    says(message, "runs/copy", f"no checkpoint {which}", "best, last")
    says(message, ", ".join(map(str, saved_steps(run))))


def test_a_file_that_only_looks_like_a_checkpoint_is_passed_over(
    run: Path, command: Command
) -> None:
    (run / "checkpoints/step-\N{SUPERSCRIPT TWO}.safetensors").touch()
    (run / "checkpoints/step-x.safetensors").touch()
    assert command("eval", str(run)).code == 0


def test_a_run_without_checkpoints_is_told_to_train(run: Path, refused: Callable[..., str]) -> None:
    shutil.rmtree(run / "checkpoints")
    says(refused("eval", str(run)), "runs/copy", "no checkpoint yet", "--resume")


@pytest.mark.parametrize(
    ("file", "text", "fragments"),
    [
        ("data.json", "not JSON", ("runs/copy/data.json", "damaged")),
        ("data.json", "[]", ("runs/copy/data.json", "damaged")),
        (
            "data.json",
            '{"symbols": ["1", "1"], "separators": [], "train_length": [1, 4], "target_growth": 2}',
            ("runs/copy/data.json",),
        ),
        (
            "data.json",
            '{"symbols": ["1"], "separators": [], "train_length": [1, 4], "target_growth": 1e999}',
            ("runs/copy/data.json", "damaged"),
        ),
        ("config.yaml", TINY + "extra: 1\n", ("runs/copy/config.yaml:18", "extra", "unknown key")),
        ("config.yaml", "", ("runs/copy/config.yaml", "empty")),
        (
            "config.yaml",
            TINY.replace("d_ff: 32", "d_ff: 64"),
            ("runs/copy/checkpoints", "(32,)", "(64,)", "do not belong together"),
        ),
    ],
)
def test_a_damaged_run_is_refused_by_the_name_of_the_file(
    run: Path, refused: Callable[..., str], file: str, text: str, fragments: tuple[str, ...]
) -> None:
    (run / file).write_text(text)
    says(refused("eval", str(run)), *fragments)


def test_damage_that_a_resumed_run_meets_is_no_bug_of_ours(run: Path, command: Command) -> None:
    again = ("train", "--config", "copy.yaml", "--resume", "--set", "train.max_steps=7")
    whole = contents(run)
    for file, raw in (
        ("metrics.jsonl", b"{}\n"),
        ("metrics.jsonl", b"[]\n"),
        ("metrics.jsonl", b"\xff\n"),
    ):
        (run / file).write_bytes(raw)
        answer = command(*again)
        assert answer.code in (0, 2), (file, raw, answer.err)
        shutil.rmtree(run)
        for name, before in whole.items():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_bytes(before)


# Run directories that are taken --------------------------------------------------------------


def test_a_directory_in_use_needs_a_word_on_what_to_do_with_it(
    run: Path, refused: Callable[..., str]
) -> None:
    before = contents(run)
    message = refused("train", "--config", "copy.yaml", "--out", str(run))
    says(message, "runs/copy", "holds a run", "--resume", "another --out")
    assert contents(run) == before


@pytest.mark.parametrize("out", [("--out", "runs/copy"), ()])
def test_a_directory_that_is_no_run_is_left_alone(
    refused: Callable[..., str], out: tuple[str, ...]
) -> None:
    notes = Path("runs/copy")
    notes.mkdir(parents=True)
    (notes / "diary.txt").write_text("dear diary")
    (notes / "config.yaml").write_text("not: a run\n")
    before = contents(notes)
    says(
        refused("train", "--config", config(), *out, "--resume"), "runs/copy", "not a run directory"
    )
    assert contents(notes) == before


@pytest.mark.parametrize("out", [("--out", "runs/copy"), ()])
def test_a_file_in_the_place_of_a_run_is_left_alone(
    refused: Callable[..., str], out: tuple[str, ...]
) -> None:
    Path("runs").mkdir()
    Path("runs/copy").write_text("precious")
    says(refused("train", "--config", config(), *out, "--resume"), "runs/copy", "Not a directory")
    assert Path("runs/copy").read_text() == "precious"


@pytest.mark.parametrize("stem", ["copy", "a[b]", "a*"])
def test_a_run_without_a_name_never_enters_another(run: Path, command: Command, stem: str) -> None:
    taken = Path("runs") / stem
    if not taken.exists():
        shutil.copytree(run, taken)
    (Path("runs") / f"{stem}-\N{SUPERSCRIPT TWO}").mkdir()  # no number of a run
    before = contents(taken)
    name = config(name=f"{stem}.yaml")
    assert command("train", "--config", name, *UNTRAINED).code == 0
    assert contents(taken) == before
    assert saved_steps(Path("runs") / f"{stem}-2") == [0]


def test_a_name_that_no_disk_takes_is_refused(command: Command) -> None:
    answer = command("train", "--config", config(), "--out", "x" * 300, *UNTRAINED)
    assert answer.code == 2, answer.err
    says(answer.err, "x" * 300, "File name too long")
    resumed = command("train", "--config", config(), "--out", "x" * 300, "--resume", *UNTRAINED)
    assert resumed.code == 2, resumed.err
    says(resumed.err, "x" * 300, "File name too long")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("data.symbols=6", "data.symbols (5 -> 6)"),
        ("data.task=reverse", "data.task (copy -> reverse)"),
        ("data.train_length=[1, 5]", "data.train_length ([1, 4] -> [1, 5])"),
        ("seed=1", "seed (0 -> 1)"),
        ("train.lr=1e-2", "train.lr (0.003 -> 0.01)"),
        ("train.eval_every=3", "train.eval_every (2 -> 3)"),
        ("model.d_ff=64", "model.d_ff (32 -> 64)"),
        ("model.n_heads=4", "model.n_heads (2 -> 4)"),
        ("model.positions=learned", "model.positions (sinusoidal -> learned)"),
    ],
)
def test_a_run_is_not_resumed_with_another_setting(
    run: Path, refused: Callable[..., str], override: str, named: str
) -> None:
    before = contents(run)
    more = ("--set", override, "--set", "train.max_steps=8")
    message = refused("train", "--config", "copy.yaml", "--resume", *more)
    says(message, "runs/copy", "cannot resume", named, "--out")
    assert "max_steps" not in message
    assert contents(run) == before


def test_a_run_is_not_resumed_with_other_data(run: Path, refused: Callable[..., str]) -> None:
    Path("a.tsv").write_text("1\t1\n2\t2\n")
    config(WITH_FILES.format("{train: a.tsv}"))
    message = refused("train", "--config", "copy.yaml", "--resume")
    says(message, "runs/copy", "cannot resume", "data.task")


# Options -------------------------------------------------------------------------------------


def test_every_source_wants_its_target(refused: Callable[..., str]) -> None:
    message = refused("inspect-masks", "--src", "1 2", "--src", "3", "--tgt", "2 1")
    says(message, "2 --src", "1 --tgt", "one --tgt for each --src")
    says(refused("inspect-masks", "--tgt", "1"), "0 --src", "1 --tgt")


def test_nothing_to_inspect_is_answered_with_what_to_give(refused: Callable[..., str]) -> None:
    says(refused("inspect-masks"), "nothing to inspect", "--config", "--src", "--tgt")


def test_a_source_that_the_config_does_not_know_is_named(refused: Callable[..., str]) -> None:
    given = ("--src", "1 9", "--tgt", "1")
    says(refused("inspect-masks", "--config", config(), *given), "src '1 9'", "symbol '9'")


@pytest.mark.parametrize("lengths", ["9:1", "x", "1:2:3", "1-4", ":4", "4:", "1.5"])
def test_lengths_that_are_no_range_are_refused(
    run: Path, refused: Callable[..., str], lengths: str
) -> None:
    says(refused("eval", "--lengths", lengths), f"--lengths {lengths}", "FROM:TO", "1:400")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("eval", "--examples", "0"), "--examples"),
        (("eval", "--examples", "ten"), "--examples"),
        (("eval", "--beam", "0"), "--beam"),
        (("eval", "--split", "train"), "--split"),
        (("explain", "--bogus"), "--bogus"),
        (("train", "--config"), "--config"),
        (("train", "a.yaml", "b.yaml"), "b.yaml"),
        (("tarin",), "tarin"),
    ],
)
def test_a_wrong_command_line_is_explained_by_the_parser(
    run: Path, command: Command, arguments: tuple[str, ...], fragment: str
) -> None:
    answer = command(*arguments)
    assert (answer.code, answer.out) == (2, "")
    says(answer.err, "Error", fragment)
    assert "Traceback" not in answer.err


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


def test_a_disk_that_fills_up_leaves_the_checkpoint_before_whole(command: Command) -> None:
    arguments = ("train", "--config", config(), "--set", "train.max_steps=4")
    with full_disk("runs/copy", "checkpoints/*.draft", 2) as met:
        answer = command(*arguments)
    assert len(met) == 1  # step 2 was saved, step 4 was on its way
    assert answer.code == 2
    assert "Traceback" not in answer.err
    last = answer.err.splitlines()[-1]
    says(last, "toytrans: runs/copy", "step 4", os.strerror(errno.ENOSPC), "step 2", "resume")
    assert os.listdir("runs/copy/checkpoints") == ["step-2.safetensors"]
    measured = command("eval", "--json")
    assert (measured.code, json.loads(measured.out)["checkpoint"]) == (0, 2)
    resumed = command(*arguments, "--resume")
    assert resumed.code == 0
    assert "resumed at step 2" in resumed.err
    assert saved_steps(Path("runs/copy")) == [2, 4]


@pytest.mark.parametrize("out", ["new", "empty"])
def test_a_disk_that_is_full_at_once_blocks_no_later_training(command: Command, out: str) -> None:
    Path("empty").mkdir()
    arguments = ("train", "--config", config(), "--out", out)
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
def test_a_full_disk_leaves_every_other_file_of_a_run_whole(
    run: Path, command: Command, pattern: str, number: int
) -> None:
    before = contents(run)
    longer = ("--resume", "--set", "train.max_steps=7")
    with full_disk("runs/copy", pattern, number) as met:
        answer = command("train", "--config", "copy.yaml", *longer)
    assert len(met) == 1
    assert answer.code == 2
    says(answer.err.splitlines()[-1], "toytrans: runs/copy", os.strerror(errno.ENOSPC))
    after = contents(run)
    written = {"environment.json", "metrics.jsonl"}
    if pattern == "metrics.jsonl":
        written.add("config.yaml")  # with the new limit, and whole
    kept = [name for name in before if name not in written]
    assert [name for name in kept if after[name] != before[name]] == []
    assert command("eval", str(run)).code == 0


# A bug of ours, and JSON ---------------------------------------------------------------------


def broken(*_: Any, kind: type[Exception] = RuntimeError, **__: Any) -> None:
    raise kind("out of order\nin two lines")


@pytest.mark.parametrize("kind", [RuntimeError, EOFError])
def test_a_bug_of_ours_is_one_line_that_names_its_report(
    kind: type[Exception], command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(TaskPairs, "samples", functools.partial(broken, kind=kind))
    answer = command("explain", "copy")
    assert (answer.code, answer.out) == (70, "")
    says(answer.err.splitlines()[-1], "toytrans: internal error", kind.__name__, "out of order")
    (report,) = (tmp_path / "reports").iterdir()
    assert str(report) in answer.err
    says(report.read_text(), "Traceback", f"{kind.__name__}: out of order", "test_bad_input.py")


def test_a_mark_of_byte_order_is_no_part_of_the_first_symbol(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf1 2\n3\n")))
    marked = command("translate")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1 2\n3\n")))
    assert marked == command("translate") and marked.code == 0
    Path("marked.yaml").write_text("\ufeff" + WITH_FILES.format("{train: a.tsv}"))
    Path("a.tsv").write_text("\ufeff1 2\t2 1\n3\t3\n")
    assert command("train", "--config", "marked.yaml", *UNTRAINED).code == 0
    assert json.loads(Path("runs/marked/data.json").read_text())["symbols"] == ["1", "2", "3"]


def test_a_bug_whose_report_cannot_be_written_is_shown(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskPairs, "samples", broken)
    monkeypatch.setattr(tempfile, "tempdir", "nowhere")
    answer = command("explain", "copy")
    assert (answer.code, answer.out) == (70, "")
    says(answer.err, "Traceback", "test_bad_input.py", "toytrans: internal error", "above")


SUMMARY = {"examples", "exact_match", "low", "high", "token_accuracy"}


def test_eval_prints_one_json_document(run: Path, command: Command) -> None:
    answer = command("eval", "--json")
    assert answer.code == 0
    found = json.loads(answer.out)  # the whole of standard output
    ranges = {"in_range", "beyond"}
    assert found.keys() >= SUMMARY | ranges | {"split", "checkpoint", "loss", "by_length"}
    assert (found["split"], found["examples"]) == ("test", 20)
    inside, outside = found["in_range"], found["beyond"]
    assert inside.keys() == outside.keys() >= SUMMARY | {"loss"}
    assert inside["examples"] + outside["examples"] == 20
    lengths = {row["length"]: row["examples"] for row in found["by_length"]}
    assert sum(lengths.values()) == 20
    assert sum(n for length, n in lengths.items() if length <= 4) == inside["examples"] > 0
    assert all(row.keys() >= SUMMARY | {"length"} for row in found["by_length"])


def test_eval_leaves_out_what_was_not_measured(run: Path, command: Command) -> None:
    found = json.loads(command("eval", "--json", "--lengths", "2:3").out)
    assert "beyond" not in found and "below" not in found
    assert found["in_range"]["examples"] == 20


def test_inspect_masks_prints_one_json_document(command: Command) -> None:
    given = ("--src", "5 7 9", "--tgt", "9 7 5", "--src", "1", "--tgt", "1")
    answer = command("inspect-masks", *given, "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    names = {"src", "tgt_in", "tgt_out", "encoder_self", "decoder_self", "cross"}
    assert found.keys() == names
    # numbers k have the id k + 3; 0, 1 and 2 are PAD, BOS and EOS
    assert found["src"] == [[8, 10, 12, 2], [4, 2, 0, 0]]
    assert found["tgt_in"] == [[1, 12, 10, 8], [1, 4, 0, 0]]
    assert found["tgt_out"] == [[12, 10, 8, 2], [4, 2, 0, 0]]
    assert found["encoder_self"] == [[[1, 1, 1, 1]] * 4, [[1, 1, 0, 0]] * 4]
    assert found["decoder_self"][0] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert found["cross"] == found["encoder_self"]


def test_an_error_leaves_standard_output_to_nobody(run: Path, refused: Callable[..., str]) -> None:
    says(refused("eval", "--json", "--checkpoint", "999"), "no checkpoint 999")
