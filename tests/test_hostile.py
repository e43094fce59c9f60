"""Files and text made to do harm: refused in one line, in bounded time and memory, and shown as
what they are."""

import contextlib
import html
import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command, call, change_checkpoint, tiny_yaml, vouch_for
from torch import Tensor

import toytrans
from toytrans.config.load import load_config
from toytrans.data import files as data_files
from toytrans.data.open import check_dataset, open_dataset
from toytrans.errors import UserError
from toytrans.training.run import RunFolder

pytestmark = pytest.mark.usefixtures("here", "in_time")
TINY = tiny_yaml(model={"d_model": 8, "d_ff": 16}, train={"max_steps": 4, "log_every": 10})

FILES = tiny_yaml(data={"files": {"train": "a.tsv", "valid": "a.tsv"}})
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(TINY)
    silence = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with silence[0], silence[1]:
        config = str(folder / "tiny.yaml")
        assert call("train", "--config", config, "--out", str(folder / "runs/tiny")) == 0
    return folder


@pytest.fixture
def run(trained: Path) -> Path:
    """A copy of a trained run, checkpoints 2 and 4, as runs/tiny beside tiny.yaml."""
    shutil.copytree(trained, ".", dirs_exist_ok=True)
    return Path("runs/tiny")


def refusal(action: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        action(*arguments)
    return str(caught.value)


# Checkpoints ---------------------------------------------------------------------------------


def change_part(part: str, change: Callable[..., Any]) -> Callable[[Path], None]:
    """Change a part of the last checkpoint, by the name of its first tensor."""

    def of_tensors(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
        change(tensors, min(name for name in tensors if name.startswith(part)))

    return lambda run: change_checkpoint(run, 4, of_tensors)


def put(change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], str], None]:
    return lambda tensors, name: tensors.update({name: change(tensors[name]).contiguous()})


def of_one_more(tensor: Tensor) -> Tensor:
    return torch.zeros([size + 1 for size in tensor.shape])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(of_one_more), "has shape"),
        (put(lambda t: t * float("nan")), "NaN or infinity"),
        (put(lambda t: t + float("inf")), "NaN or infinity"),
        (put(lambda t: t.long()), "(int64)"),
        (put(lambda t: t.half()), "(float16)"),
        (put(lambda t: t.double()), "(float64)"),
        (put(lambda t: t.to(torch.float8_e4m3fn)), "(float8_e4m3fn)"),
        (lambda tensors, name: tensors.pop(name), "is missing"),
        (lambda tensors, name: tensors.update({"weights/x": torch.zeros(2)}), "has no tensor x"),
        (lambda tensors, name: tensors.update(surplus=torch.zeros(2)), "a tensor surplus"),
        (lambda tensors, name: tensors.clear(), "is missing"),
    ],
)
def test_weights_that_training_never_writes_are_refused_with_a_right_checksum(
    run: Path, refused: Refused, change: Any, words: str
) -> None:
    change_part("weights", change)(run)
    message = refused("eval", str(run), "--checkpoint", "last")
    assert "step-4" in message and words in message


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:  # as torch.save makes them
        archive.writestr("archive/data.pkl", b"cbuiltins\nopen\n(S'opened'\nS'w'\ntR.")
    return made.getvalue()


def with_header(header: bytes, length: int | None = None, data: bytes = b"") -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    "raw",
    [
        zipped(),
        b"",
        b"\0" * 100,
        with_header(b"{}", 2**63),
        with_header(b"{}", 10**9),
        with_header(b"[]"),
        with_header(b"[" * 100_000),
        with_header(b'{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}', data=b"\0" * 4),
        with_header(b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,1000000000000]}}'),
        with_header(b'{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
        with_header(b'{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', data=b"\0" * 4),
        with_header(b'{"x":{"dtype":"PICKLE","shape":[1],"data_offsets":[0,4]}}', data=b"\0" * 4),
    ],
)
def test_files_that_are_no_safetensors_or_lie_are_refused(
    run: Path, refused: Refused, raw: bytes
) -> None:
    vouch_for(run, 4, raw)
    message = refused("eval", str(run), "--checkpoint", "last")
    assert "step-4.safetensors: " in message and "--checkpoint 2" in message
    assert not Path("opened").exists()


def change_progress(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the progress in the metadata of the last checkpoint."""

    def of_metadata(_: dict[str, Tensor], metadata: dict[str, str]) -> None:
        progress = json.loads(metadata["progress"])
        change(progress)
        metadata["progress"] = json.dumps(progress)

    return lambda run: change_checkpoint(run, 4, of_metadata)


@pytest.mark.parametrize(
    "change",
    [
        lambda progress: progress.update(surplus=1),
        lambda progress: progress.update(step=-1),
        lambda progress: progress.update(step=3),
        lambda progress: progress.update(step="4"),
        lambda progress: progress.update(step=4.5),
        lambda progress: progress.update(step=True),
        lambda progress: progress.update(pairs_used=10**30),
        lambda progress: progress.update(target_tokens=10**400),
        lambda progress: progress.update(elapsed_s="long"),
        lambda progress: progress.update(elapsed_s=float("inf")),
        lambda progress: progress.update(best_step="best"),
        lambda progress: progress.update(best_loss=float("nan")),
        lambda progress: progress.update(window=[]),
        lambda progress: progress["window"].update(tokens="many"),
        lambda progress: progress["window"].update(tokens=-7),
        lambda progress: progress["window"].update(loss=10**400),
    ],
)
def test_a_progress_of_other_types_is_refused(run: Path, refused: Refused, change: Any) -> None:
    change_progress(change)(run)
    message = refused("eval", str(run), "--checkpoint", "last")
    assert "step-4.safetensors: damaged" in message and "--checkpoint 2" in message


RESUME = ("train", "--config", "tiny.yaml", "--resume", "--set", "train.max_steps=6")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (change_progress(lambda progress: progress.pop("window")), "its sums"),
        (change_part("optimizer", put(of_one_more)), "optimizer"),
        (change_part("optimizer", put(lambda t: t.int())), "optimizer"),
        (change_part("optimizer", lambda ts, n: ts.pop(n)), "is missing"),
        (change_part("random", put(lambda t: t[1:])), "random"),
        (change_part("random", put(lambda t: t.int())), "random"),
        (change_part("random", put(torch.zeros_like)), "random"),
        (change_part("random", lambda ts, n: ts.pop(n)), "random"),
        (change_part("weights", put(lambda t: t / 0)), "NaN"),
    ],
)
def test_a_checkpoint_that_only_looks_whole_is_not_resumed_from(
    run: Path, refused: Refused, command: Command, damage: Callable[[Path], None], words: str
) -> None:
    damage(run)
    message = refused(*RESUME)
    assert words in message and "move it away, then --resume goes on from step 2" in message
    (run / "checkpoints/step-4.safetensors").rename("away")
    assert "resumed at step 2" in command(*RESUME).err


def test_a_link_to_a_checkpoint_is_as_good_as_the_checkpoint(run: Path, command: Command) -> None:
    (run / "checkpoints").rename("elsewhere")
    (run / "checkpoints").symlink_to(Path("elsewhere").resolve())
    assert command("eval", str(run)).code == 0


# The other files of a run --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"symbols": ["0", "1"]}, "do not belong together"),
        ({"symbols": [str(k) for k in range(9)]}, "do not belong together"),
        ({"symbols": "01234"}, "damaged"),
        ({"symbols": [0, 1, 2, 3, 4]}, "damaged"),
        ({"symbols": ["0", "1", "2", "3", "a b"]}, "damaged"),
        ({"symbols": ["0", "1", "2", "3", ""]}, "damaged"),
        ({"separators": ["+"]}, "damaged"),
        ({"train_length": [4, 1]}, "damaged"),
        ({"train_length": [-1, 4]}, "damaged"),
        ({"train_length": [1]}, "damaged"),
        ({"target_growth": 10**9}, "damaged"),
        ({"target_growth": "2"}, "damaged"),
        ({"train_sha256": None}, "damaged"),
        ({"surplus": 1}, "damaged"),
    ],
)
def test_data_facts_that_no_training_has_are_refused(
    run: Path, refused: Refused, change: dict[str, Any], words: str
) -> None:
    facts = json.loads((run / "data.json").read_bytes())
    (run / "data.json").write_text(json.dumps(facts | change))
    assert words in refused("eval", str(run))


@pytest.mark.parametrize(
    "raw",
    [b"", b"\0" * 99, b"[]", b"null", b"\xff", b"[" * 100_000, b'{"precision": []}', b"1" * 9999],
)
def test_a_damaged_environment_tells_nothing(run: Path, raw: bytes) -> None:
    assert RunFolder.open(run).precision == "fp32"
    (run / "environment.json").write_bytes(raw)
    assert RunFolder.open(run).precision is None


def test_records_may_fill_a_hundred_megabytes(run: Path, command: Command) -> None:
    """A training must not become unresumable because of its log."""
    line, last = (run / "metrics.jsonl").read_bytes().splitlines()
    with (run / "metrics.jsonl").open("wb") as file:
        file.write((line.ljust(9_900) + b"\n") * 11_000 + last)
        assert file.tell() > 100_000_000
    answer = command("train", "--config", "tiny.yaml", "--resume", "--set", "train.max_steps=6")
    assert answer.code == 0, answer.err
    assert [record["step"] for record in RunFolder.open(run).records] == [2, 4, 6]
    assert command("doctor", str(run)).code in (0, 1)


def test_json_is_strict_where_numbers_are_not_finite(run: Path, command: Command) -> None:
    """Weights so large that losses overflow; NaN is a name that JSON lacks."""

    def change(tensors: dict[str, Tensor], name: str) -> None:
        tensors.update({name: tensor * 1e28 for name, tensor in tensors.items()})

    change_part("weights", change)(run)
    for words in ("eval", "eval runs/tiny runs/tiny", "demo decoding"):
        answer = command(*words.split(), "--json")
        assert answer.code == 0, answer.err
        assert json.loads(answer.out, parse_constant=pytest.fail)
    assert json.loads(command("eval", "--json").out)["loss"] is None


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
def test_what_has_no_end_is_refused_unread_wherever_it_is_named(
    run: Path, refused: Refused, kind: str
) -> None:
    words = "larger than" if kind == "3 GiB" else "a pipe or a device"
    path = MADE[kind]("endless")
    Path("a.tsv").write_text("1\t1\n2\t2\n")
    Path("files.yaml").write_text(FILES)
    named = ("--set", f"data.files.train={path}", "--set", "data.files.format=tsv")
    for arguments in (
        ("train", "--config", path),
        ("inspect-masks", "--config", path),
        ("train", "--config", "files.yaml", *named),
        ("check", "--config", "files.yaml", *named),
        ("eval", str(run), "--pairs", path, "--pairs", path),
    ):
        assert words in refused(*arguments), arguments


@pytest.mark.parametrize("kind", ["pipe", "3 GiB"])
@pytest.mark.parametrize("name", ["config.yaml", "data.json", "checkpoints/step-4.safetensors"])
def test_what_has_no_end_is_refused_inside_a_run(
    run: Path, refused: Refused, kind: str, name: str
) -> None:
    (run / name).unlink()
    MADE[kind](str(run / name))
    assert name in refused("eval", str(run), "--checkpoint", "last") or name == "config.yaml"


MEMORY = """
import resource, sys
from pathlib import Path
from toytrans.config.load import load_config
from toytrans.errors import UserError
Path("seen").write_text("data: {task: copy, symbols: 5}")
load_config(Path("seen"))  # what a config needs is imported
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        load_config(Path(path))
    except UserError as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)  # MiB
"""

LAUGHS = "a: &a [1, 2]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS = {
    "laughs": (LAUGHS, "aliases"),
    "brackets": ("a: " + "[" * 10_000, "nested deeper"),
    "merge": ("data: {task: copy}\nmodel:\n  <<: {d_model: 8}\n", "<<: unknown key"),
    "object": ("data: !!python/object/apply:os.system [ls]\n", "tags"),
    "list": ("data: {task: copy}\nmodel: {positions: [" + "x, " * 300_000 + "x]}", "10,000"),
    "keys": ("".join(f"k{k}: 1\n" for k in range(90_000)), "10,000"),
    "dots": ("data: {task: copy}\n? " + "a." * 450_000 + "\n: 1\n", "unknown key"),
    "word": ("data: {task: " + "x" * 990_000 + "}\n", "data.task"),
    "digits": ("data: {task: copy}\nseed: " + "9" * 990_000 + "\n", "seed"),
    "date": ("data: {task: copy}\nseed: 2001-12-14\n", "whole number"),
}


def test_bombs_of_yaml_are_refused_in_little_memory() -> None:
    for name, (text, _) in BOMBS.items():
        Path(name).write_text(text)
    Path("junk").write_bytes(bytes(range(256)) * 1000)
    names = [*BOMBS, "junk", sparse("sparse"), fifo("pipe"), "/dev/zero"]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *names], capture_output=True, text=True, timeout=50
    )
    *lines, mebibytes = done.stdout.splitlines()
    assert len(lines) == len(names), done.stderr
    for line, (_, words) in zip(lines, BOMBS.values(), strict=False):
        assert words in line[-300:] or words in line[:300]
    assert int(mebibytes) < 100


def test_an_override_may_not_nest_forever() -> None:
    Path("tiny.yaml").write_text(TINY)
    message = refusal(load_config, Path("tiny.yaml"), [f"train.lr{'.x' * 30_000}=1"])
    assert "section.key=value" in message


def test_a_line_of_standard_input_has_a_longest_length(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = io.TextIOWrapper(io.BytesIO(b"1 2\n" + b"1 " * 10**6), "utf-8")
    monkeypatch.setattr(sys, "stdin", endless)
    answer = command("translate")
    assert (answer.code, answer.out) == (2, "")
    assert "standard input, line 2: longer than 65,536 bytes" in answer.err


# Sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.d_ff=1000000000000", "model.d_ff"),
        ("model.d_model=65536", "parameters"),
        ("model.n_encoder_layers=1000000", "model.n_encoder_layers"),
        ("data.symbols=1000000000", "data.symbols"),
        ("data.train_length=[1, 1000000000]", "data.train_length.1"),
        ("data.test_examples=100000000", "data.test_examples"),
        ("data.test_length=[1, 60000000]", "data.test_length.1"),
        ("data.train_examples=100000000000000000000", "data.train_examples"),
        ("data.batch_tokens=1000000000", "data.batch_tokens"),
        ("train.max_steps=" + "9" * 500, "train.max_steps"),
        ("train.accumulate=1000000000", "train.accumulate"),
    ],
)
def test_sizes_that_fill_a_machine_are_refused_before_anything_is_made(
    refused: Refused, override: str, words: str
) -> None:
    Path("tiny.yaml").write_text(TINY)
    assert words in refused("train", "--config", "tiny.yaml", "--set", override)
    assert not Path("runs").exists()


def test_examples_times_their_length_are_bounded() -> None:
    Path("tiny.yaml").write_text(TINY)
    long = ["data.test_length=[1, 60000]", "data.test_examples=10000"]
    message = refusal(load_config, Path("tiny.yaml"), long)
    assert "data.test_examples: 10,000 pairs of up to 60,000 symbols" in message


def test_the_parameters_that_are_counted_are_nearly_all() -> None:
    from toytrans.config.schema import ModelConfig
    from toytrans.model.initialisation import count_parameters
    from toytrans.model.transformer import Transformer
    from toytrans.tokens import Vocabulary

    vocabulary = Vocabulary(tuple(map(str, range(40))))
    for changes in ({}, {"tie_embeddings": False, "positions": "learned"}, {"share_layers": True}):
        model = ModelConfig.model_validate(changes)
        built = count_parameters(Transformer(model, vocabulary))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("toytrans.config.schema.MOST_PARAMETERS", int(0.9 * built))
            assert "parameters" in refusal(model.check_size, len(vocabulary))
            patch.setattr("toytrans.config.schema.MOST_PARAMETERS", built)
            model.check_size(len(vocabulary))


def reading(text: str) -> str:
    Path("a.tsv").write_text(text)
    Path("files.yaml").write_text(FILES)
    config = load_config(Path("files.yaml"))
    return refusal(lambda: check_dataset(config, open_dataset(config)))


def test_data_that_would_fill_the_memory_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "a.tsv:2: 1,200 symbols for a source of 1" in reading(f"1\t1\n2\t{'1 ' * 1200}\n")
    assert "a.tsv:2: a line of more than" in reading("1\t1\n" + "1 " * 600_000 + "\t1\n")
    monkeypatch.setattr(data_files, "MOST_IDS", 99)
    assert "a.tsv:2: 40 symbols; padded to these, 3 sequences" in reading(
        f"1\t1\n{'1 ' * 40}\t1\n1\t1\n"
    )
    monkeypatch.setattr(data_files, "MOST_LINES", 3)
    assert "a.tsv: more than 3 lines" in reading("1\t1\n" * 4)


# Names and escapes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["..yaml", "...yaml", "a\x1b[31m.yaml", "a\nb.yaml", "\udcff.yaml"]
)
def test_a_config_that_names_no_run_asks_for_one(refused: Refused, name: str) -> None:
    Path(name).write_text(TINY)
    assert "is no name for a run" in refused("train", "--config", f"./{name}")
    assert sorted(os.listdir()) == sorted([name, "c.yaml"])


@pytest.mark.parametrize("name", ["-x.yaml", ".yaml", f"{'x' * 250}.yaml", "a b.yaml"])
def test_strange_names_of_runs_stay_below_runs(command: Command, name: str) -> None:
    Path(name).write_text(TINY)
    answer = command("train", "--config", f"./{name}", "--set", "train.max_steps=0")
    assert answer.code == 0, answer.err
    assert sorted(os.listdir()) == sorted([name, "c.yaml", "runs"])
    assert os.listdir("runs") == [Path(name).stem]


EVIL = ["\x1b[31mred", "[bold]", "[/]", "<b>", "&amp;", "\x9b5m", "\u202eleft", "é\x07"]


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on symbols that a terminal, Rich or HTML would obey, in a folder of such a name."""
    folder = tmp_path_factory.mktemp("evil")
    pairs = (f"{' '.join(EVIL[k:])}\t{' '.join(EVIL[:k])}" for k in range(len(EVIL)))
    (folder / "a.tsv").write_text("\n".join(pairs) + "\n")
    (folder / "evil.yaml").write_text(FILES.replace("a.tsv", str(folder / "a.tsv")))
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
        "translate RUN SYMBOLS",
        "translate RUN \x1b[32munseen",
        "attention RUN",
        "attention RUN SYMBOLS",
        "attention RUN SYMBOLS --json",
        "attention RUN SYMBOLS --plot x.svg",
        "inspect-masks RUN",
        "inspect-masks RUN --as hf",
        "inspect-masks RUN --html",
        "inspect-masks --src SYMBOLS --tgt SYMBOLS",
        "inspect-masks --src SYMBOLS --tgt SYMBOLS --steps",
        "trace RUN",
        "demo leaks RUN",
        "demo decoding RUN",
        "check RUN",
        "check --model \x1b[31mmine:made",
        "tasks \x1b[31m",
        "train --config \x1b[31m[red].yaml",
        "train --config evil.yaml --set data.symbols=\x1b[31m",
        "train --config evil.yaml --set \x1b[31m",
        "eval \x1b[31mnone",
        "eval RUN --split \x1b[31m",
        "eval RUN --\x1b[31m",
        "faults \x1b[31m",
        "\x1b[31m",
    ],
)
def test_escapes_and_markup_are_shown_not_obeyed(
    evil: Path, command: Command, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    (evil.parent / "evil.yaml").exists() and shutil.copy(evil.parent / "evil.yaml", ".")
    symbols = " ".join(EVIL)
    given = io.TextIOWrapper(io.BytesIO(f"{symbols}\n".encode()), "utf-8")
    monkeypatch.setattr(sys, "stdin", given)
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


def test_a_reader_that_has_had_enough_ends_a_command_in_silence() -> None:
    """schema prints plainly, faults through Rich."""
    for name in ("explain schema", "explain faults"):
        done = shell(f"(sleep 0.2; toytrans {name}; echo code $? >&2) | true")
        assert done.stderr == "code 141\n", name


def test_a_full_disk_behind_standard_output_is_no_bug_of_ours() -> None:
    for name in ("explain schema", "explain faults"):
        done = shell(f"toytrans {name} > /dev/full")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "standard output: No space left" in done.stderr


def test_closed_streams_and_poor_encodings_are_no_bugs_of_ours() -> None:
    assert shell("toytrans explain faults >&- <&- 2>&-").returncode == 0
    done = shell("PYTHONIOENCODING=ascii toytrans inspect-masks --src 'é 1' --tgt '1' --as hf")
    assert done.returncode == 0 and "\\xe9" in done.stdout


def test_an_exit_code_remains_where_standard_error_cannot_be_written() -> None:
    for line in ("toytrans explain no 2>/dev/full", "toytrans explain no 2>&-", "toytrans no 2>&-"):
        assert shell(line).returncode == 2, line
    reader, nobody_reads = os.pipe()
    os.close(reader)
    words = (sys.executable, "-m", "toytrans", "explain", "no")
    assert subprocess.run(words, stderr=nobody_reads, timeout=60).returncode == 2
    os.close(nobody_reads)


def test_a_training_outlives_its_log(run: Path, command: Command, monkeypatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert call("train", "--config", "tiny.yaml", "--out", "other") == 0
    assert (run.parent.parent / "other/checkpoints/step-4.safetensors").is_file()


def test_a_working_directory_that_is_gone_is_said_in_one_line() -> None:
    path = f"PYTHONPATH={Path(__file__).parent.parent}"
    for name in ("explain tasks", "translate 1", "doctor", "train --config /tiny.yaml"):
        done = shell(f"mkdir gone; cd gone; rmdir ../gone; {path} toytrans {name}")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "the working directory is gone" in done.stderr


# The environment -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"RANK": "0", "WORLD_SIZE": "1" * 20},
        {"RANK": "0", "WORLD_SIZE": "1" * 5000},
        {"RANK": "1" * 20, "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "0"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "-1"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "9" * 20},
        {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    ]
    + [
        {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        | {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
        for port in ("x", "-1", "0", "9" * 20)
    ],
)
def test_an_environment_that_is_not_torchruns_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, values: dict[str, str]
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    Path("tiny.yaml").write_text(TINY)
    said = refused("train", "--config", "tiny.yaml")
    assert "torchrun" in said and not Path("runs").exists()


def test_a_source_tree_that_is_not_installed_works(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    Path("tiny.yaml").write_text(TINY)
    assert command("--version").out == f"toytrans {toytrans.__version__}\n"
    assert command("train", "--config", "tiny.yaml").code == 0
    assert (
        json.loads(Path("runs/tiny/environment.json").read_text())["toytrans"]
        == toytrans.__version__
    )


# The rules that hold the line ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("import pickle\npickle.loads(b'')\n", "S301"),
        ("import marshal\nmarshal.loads(b'')\n", "S302"),
        ("eval('1')\n", "S307"),
        ("import yaml\nyaml.load('1', Loader=yaml.Loader)\n", "S506"),
        ("import torch\ntorch.load('x')\n", "TID251"),
        ("import torch\ntorch.save(1, 'x')\n", "TID251"),
        ("import pickle\n", "TID251"),
    ],
)
def test_the_linter_refuses_what_can_run_code(code: str, rule: str) -> None:
    root = Path(__file__).parent.parent
    done = subprocess.run(
        ["ruff", "check", "--output-format=concise", "--stdin-filename=toytrans/x.py", "-"],
        input=code,
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert rule in done.stdout
