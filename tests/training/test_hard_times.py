"""Disks that are full or closed, and memory that runs out: one line, and the right exit code."""

import errno
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch
from conftest import Command, config_of, tensors_of, tiny_yaml, trainer_of
from forked import Forked

from toytrans.config.load import load_config
from toytrans.data.batches import largest_batch, training_batches
from toytrans.data.open import open_dataset
from toytrans.resolve import resolve
from toytrans.tokens import EOS_ID
from toytrans.training.checkpoint import load_checkpoint, saved_steps
from toytrans.training.rehearsal import rehearse
from toytrans.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("here")
TRAIN = ("train", "--config", "c.yaml", "--out", "runs/c")
LONGER = (*TRAIN, "--resume", "--set", "train.max_steps=8")


def last_line(text: str) -> str:
    return text.splitlines()[-1]


def with_small_files(most_bytes: int, *arguments: str) -> Forked:
    """A command to which the system refuses files of more bytes. Python ignores SIGXFSZ."""
    pytest.importorskip("resource")
    code = (
        "import resource; from toytrans.cli import main\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, hard)); main()"
    )
    return Forked(code, *arguments)


def test_a_disk_that_really_takes_no_more(run):
    """There is room for every file but those of weights."""
    assert (run / "checkpoints/step-6.safetensors").stat().st_size > 20_000
    done = with_small_files(20_000, *LONGER).ended()
    assert done.code == 2 and "Traceback" not in done.err
    for words in ("the checkpoint of step 8 cannot be written", os.strerror(errno.EFBIG)):
        assert words in last_line(done.err)
    assert "step 6 is intact: resume from it" in last_line(done.err)
    assert sorted(os.listdir(run / "checkpoints")) == ["step-4.safetensors", "step-6.safetensors"]
    assert load_checkpoint(run, 6)[0].step == 6


def test_a_new_run_that_cannot_be_described_leaves_nothing():
    """One symbol is longer than the room for data.json, which is larger than a checkpoint."""
    Path("a.tsv").write_text("".join(f"{k}\t{'2' * 200_000}\n" for k in range(20)))
    Path("c.yaml").write_text(tiny_yaml(data={"files": {"train": "a.tsv"}}))
    done = with_small_files(150_000, *TRAIN).ended()
    assert done.code == 2, done.err
    assert "runs/c: the run's description cannot be written" in last_line(done.err)
    assert not Path("runs/c").exists()


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Whom a read-only directory keeps out; root it does not."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_a_directory_that_may_not_be_written(run, command: Command, request):
    assert command(*LONGER).code == 0, "everything is imported, which others may not be allowed to"
    for path in (Path.cwd(), *Path.cwd().parents):
        if path.is_relative_to(tempfile.gettempdir()) or "pytest-" in str(path):
            path.chmod(0o755)
    request.getfixturevalue("unprivileged")
    answer = command("train", "--config", "c.yaml", "--out", "new")
    assert answer.code == 2 and "new: cannot be made (new: Permission denied)" in answer.err
    answer = command(*TRAIN, "--resume", "--set", "train.max_steps=10")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "runs/c: metrics.jsonl cannot be written (Permission denied)" in answer.err


ON_CPU = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
)
OUT = {
    "python": MemoryError(),
    "cpu": RuntimeError(f"{ON_CPU}you tried to allocate 160000000000 bytes."),
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
}


def raising(error: Exception):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("error", OUT.values(), ids=OUT)
def test_memory_that_runs_out_does_so_before_the_first_step(command, monkeypatch, error):
    monkeypatch.setattr(Trainer, "backward", raising(error))
    answer = command(*TRAIN)
    assert answer.code == 2
    said = "toytrans: out of memory: the largest batch, 8 x (6 + 6) tokens, does not fit; lower "
    assert last_line(answer.err).startswith(said + "data.batch_tokens (128), the longest")
    assert not Path("runs/c").exists()


def test_a_refused_rehearsal_leaves_a_folder_free_for_the_same_command(command, monkeypatch):
    """The remedy that the error names is a changed key, under the same --out."""
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "backward", raising(OUT["cpu"]))
        assert command(*TRAIN).code == 2
        Path("mine").mkdir()
        assert command("train", "c.yaml", "--out", "mine").code == 2
        assert command("train", "c.yaml").code == 2
    assert os.listdir("mine") == [] and os.listdir("runs") == []
    answer = command(*TRAIN, "--set", "data.batch_tokens=64")
    assert answer.code == 0 and saved_steps(Path("runs/c"))[-1] == 6


def test_memory_that_really_runs_out():
    """The system gives this process 256 MiB beyond what torch takes when it starts."""
    pytest.importorskip("resource")
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc to read the size of the process from")
    code = (
        "import resource, torch; from pathlib import Path; from toytrans.cli import main\n"
        "size = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + 2**28,) * 2); main()"
    )
    sets = ("--set", "data.batch_tokens=4000000", "--set", "train.precision=fp32")
    done = Forked(code, *TRAIN, *sets).ended()
    assert done.code == 2, done.err
    assert "toytrans: out of memory" in last_line(done.err)
    assert not saved_steps(Path("runs/c"))


def test_the_rehearsal_leaves_no_trace(tmp_path):
    ends = []
    for rehearses in (True, False):
        path = tmp_path / str(rehearses)
        trainer = trainer_of(
            path,
            data={"batch_tokens": 256, "valid_examples": 9},
            model={"dropout": 0.3},
            train={"max_steps": 3, "log_every": 1},
        )
        if rehearses:
            rehearse(trainer)
            assert not list(path.glob("**/.toytrans-*"))
        losses = [record["loss"] for record in trainer.train()]
        ends.append((losses, tensors_of(path)))
    assert ends[0] == ends[1]


def test_memory_that_runs_out_in_a_measurement(run, command: Command, monkeypatch):
    monkeypatch.setattr("toytrans.model.transformer.Transformer.encode", raising(OUT["cuda"]))
    answer = command("eval", "runs/c")
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    for words in ("toytrans: out of memory", "data.batch_tokens", "lengths", "sizes"):
        assert words in answer.err


def scores(batch) -> int:
    (rows, src_width), tgt_width = batch.src.shape, batch.tgt_out.shape[1]
    return rows * (src_width + tgt_width) ** 2


@pytest.mark.parametrize(
    ("task", "data"),
    [
        ("duplicate", {"symbols": 9, "train_length": [3, 40], "batch_tokens": 500}),
        ("duplicate", {"symbols": 9, "train_length": [3, 100], "batch_tokens": 4096}),
        ("addition", {"symbols": 9, "train_length": [3, 40], "batch_tokens": 2000}),
        ("stack", {"train_length": [3, 60], "batch_tokens": 1500}),
        ("reverse_nlplike", {"train_length": [1, 100], "batch_tokens": 4096}),
    ],
)
def test_the_largest_batch_of_all_is_known_before_the_first_step(task, data):
    config = config_of(task, data={"symbols": None, **data})
    source = open_dataset(config)
    largest = largest_batch(source, config)
    batches = [batch for batch, _ in itertools.islice(training_batches(source, config), 300)]
    assert len({scores(batch) for batch in batches}) > 5, "batches of many shapes"
    assert max(map(scores, batches)) <= scores(largest)
    assert largest.real_tokens > 0.7 * largest.padded_tokens, "filled with a real pair"


def test_the_largest_batch_is_that_of_the_longest_source_however_rare():
    """Its length is ten standard deviations from the mean: no pool that is drawn holds it."""
    data = {"symbols": None, "train_length": [1, 100], "batch_tokens": 4096}
    config = config_of("reverse_nlplike", data=data)
    source = open_dataset(config)
    assert largest_batch(source, config).src.shape == (16, 112)
    drawn = source.pairs("train", torch.arange(20_000)).src_length
    assert drawn.max() < 97


def test_the_largest_batch_is_wide_enough_for_the_widest_source_beside_the_widest_target():
    """Targets are sorted by their length, so a source of 30 comes beside a target of 20."""
    Path("a.tsv").write_text(f"{'1 ' * 5}\t{'2 ' * 20}\n{'1 ' * 30}\t{'2 ' * 19}\n")
    Path("f.yaml").write_text("data: {files: {train: a.tsv, valid: a.tsv}, batch_tokens: 256}")
    config = resolve(load_config(Path("f.yaml"), []))
    dataset = open_dataset(config)
    batch, _ = next(training_batches(dataset, config))
    (rows, src_width), tgt_width = batch.src.shape, batch.tgt_in.shape[1]
    assert (rows, src_width, tgt_width) == (4, 32, 24), "both pairs share a batch"
    largest = largest_batch(dataset, config)
    assert (*largest.src.shape, largest.tgt_in.shape[1]) == (4, 32, 24)
    assert largest.src[:, 30].eq(EOS_ID).all() and largest.tgt_out[:, 20].eq(EOS_ID).all()


@pytest.mark.parametrize("batch_tokens", [100, 300, 1000])
def test_no_batch_of_a_file_is_larger_than_the_largest(batch_tokens):
    """Lengths of sources and targets have nothing to do with each other."""
    random = Random(batch_tokens)
    lengths = [(random.randint(1, 60), random.randint(1, 60)) for _ in range(150)]
    Path("a.tsv").write_text("".join(f"{'1 ' * s}\t{'2 ' * t}\n" for s, t in lengths))
    Path("f.yaml").write_text(
        f"data: {{files: {{train: a.tsv, valid: a.tsv}}, batch_tokens: {batch_tokens}}}"
    )
    config = resolve(load_config(Path("f.yaml"), []))
    dataset = open_dataset(config)
    batches = [batch for batch, _ in itertools.islice(training_batches(dataset, config), 200)]
    assert len({scores(batch) for batch in batches}) > 5, "batches of many shapes"
    assert max(map(scores, batches)) <= scores(largest_batch(dataset, config))


def test_the_largest_batch_of_a_file_is_that_of_its_longest_line():
    Path("a.tsv").write_text("1 2\t2 1\n" * 6000 + f"{'1 ' * 300}\t2\n" + "2\t1\n" * 3000)
    Path("f.yaml").write_text("data: {files: {train: a.tsv, valid: a.tsv}, batch_tokens: 256}")
    config = resolve(load_config(Path("f.yaml"), []))
    assert largest_batch(open_dataset(config), config).src.shape == (1, 320)
