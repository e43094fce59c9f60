"""Recorded steps, with a stand-in for CUDA: the numbers of eager ones, whatever happens."""

import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from conftest import EVERY_ANCHOR, ROOT, SCHEMES, config_of, id_of, tensors_of, trainer_of

import toytrans
from toytrans.config.schedules import learning_rate
from toytrans.data.batches import training_batches
from toytrans.training import graphs, session
from toytrans.training.graphs import EAGER, Capture, CudaSteps
from toytrans.training.session import open_cuda_steps
from toytrans.training.trainer import Trainer

CPU = torch.device("cpu")
DATA = {"train_length": [1, 5], "batch_tokens": 64, "valid_examples": 8}
LAYERS = {"n_encoder_layers": 1, "n_decoder_layers": 1, "d_model": 8, "d_ff": 16}


def run_again(work):
    """In the place of CUDA: a replay does the work again, on the memory that it was given."""
    return work


def trainer_in(run: Path, capture: Capture | None, model: dict, **train) -> Trainer:
    cuda_steps = CudaSteps(CPU, capture, print)
    sections = {
        "data": DATA,
        "model": LAYERS | model,
        "train": {"log_every": 1, "eval_every": 1000} | train,
    }
    return trainer_of(run, "reverse", cuda_steps=cuda_steps, **sections)


def numbers(trainer: Trainer, steps: int) -> list[torch.Tensor]:
    """Loss and gradient norm after each of some steps; then the weights."""
    found = []
    for record in islice(trainer.train(), steps):
        found += [torch.tensor(record["loss"]), torch.tensor(record["grad_norm"])]
    return found + [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize(
    ("scheme", "precision"),
    [*((scheme, "fp32") for scheme in SCHEMES), (SCHEMES[0], "bf16")],
    ids=id_of,
)
def test_captured_steps_have_the_numbers_of_eager_ones(tmp_path, scheme, precision):
    """With dropout. A shape is captured when it comes for the second time."""
    train = {"precision": precision, "label_smoothing": 0.1, "weight_decay": 0.1}
    model = {**scheme, "dropout": 0.1}
    captured = trainer_in(tmp_path / "captured", run_again, model, **train)
    found = numbers(captured, 12)
    expected = numbers(trainer_in(tmp_path / "eager", None, model, **train), 12)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    stream = training_batches(captured.dataset, captured.settings)
    shapes = [(*batch.src.shape, batch.tgt_in.shape[1]) for batch, _ in islice(stream, 12)]
    assert set(captured.cuda_steps.graphs) == {s for s in shapes if shapes.count(s) > 1}
    assert len(captured.cuda_steps.graphs) > 1


Train = Callable[..., Path]


@pytest.fixture
def train(tmp_path: Path, monkeypatch) -> Train:
    """Trains a config as if it were on a GPU, through the public door. Returns the run."""

    def train(name: str, capture: Capture | None, config=None, why: str = "", **more) -> Path:
        def made(*given):
            return CudaSteps(CPU, capture, given[-1], why)

        monkeypatch.setattr(session, "open_cuda_steps", made)
        toytrans.train(config or TEXTBOOK, tmp_path / name, changes=SHORT, **more)
        return tmp_path / name

    return train


TEXTBOOK = ROOT / "configs/textbook.yaml"
SHORT = {"train.max_steps": 30, "train.warmup_steps": 7, "train.log_every": 1, "device": "cpu"}
SHORT |= {"data.valid_examples": 8, "data.test_examples": 8, "data.batch_tokens": 256}
SHORT |= {"model.d_model": 16, "model.dropout": 0.1, "train.eval_every": 30}
SHORT |= {"model.n_encoder_layers": 1, "model.n_decoder_layers": 1}


def stop_after(step: int) -> Callable[[dict], bool]:
    return lambda record: record["step"] != step


def test_textbook_is_the_same_at_its_own_rates(train: Train):
    eager, captured = train("eager", None), train("captured", run_again)
    assert tensors_of(eager) == tensors_of(captured)
    settings = toytrans.load(eager).settings.train
    rates = torch.tensor([learning_rate(n, settings) for n in range(1, 31)], dtype=torch.float64)
    assert (rates != rates.float()).sum() > 20, "an fp32 number is not the rate itself"


def test_a_run_that_was_cut_and_resumed_ends_the_same(train: Train):
    """What was captured before the cut is taken by eager steps at first after it."""
    replays = list[int]()

    def capture(work):
        def replay() -> None:
            replays.append(1)
            work()

        return replay

    whole = train("whole", capture)
    in_one_piece = len(replays)
    train("cut", capture, on_record=stop_after(13))
    before_the_cut = len(replays) - in_one_piece
    cut = train("cut", capture, resume=True)
    assert before_the_cut > 0
    assert len(replays) - in_one_piece < in_one_piece, "captured shapes were met anew"
    assert tensors_of(whole) == tensors_of(cut)


def failing_from(call: int, error: Exception) -> Capture:
    """A capture that fails from one of its calls on, in the middle of the work."""
    calls = list[int]()

    def capture(work):
        calls.append(1)
        if len(calls) >= call:
            torch.rand(3)
            raise error
        return work

    return capture


@pytest.mark.parametrize("chained", [False, True])
def test_out_of_memory_while_capturing_ends_capturing_and_not_the_run(
    train: Train, caplog, chained
):
    """Weights and records are those of an eager training, and one sentence says what happened."""
    error: Exception = torch.OutOfMemoryError("CUDA out of memory")
    if chained:  # CUDA ends a failed capture with an error of its own
        another = RuntimeError("operation failed due to a previous error during capture")
        another.__context__, error = error, another
    eager = train("eager", None)
    with caplog.at_level(logging.INFO, logger="toytrans"):
        found = train("found", failing_from(3, error))
    assert tensors_of(found) == tensors_of(eager)
    assert caplog.text.count("all graphs are dropped") == 1


def test_an_eager_step_that_graphs_leave_no_memory_for_is_taken_again(train: Train, monkeypatch):
    eager = train("eager", None)
    update, calls = Trainer.update, list[int]()

    def scarce(self, parts, tokens, lr):
        ours = self.cuda_steps
        if ours.graphs and len(ours.met) > len(ours.graphs) + 1 and not calls:
            calls.append(1)
            torch.rand(3)  # dropout has drawn already
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert not (calls and ours.graphs), "their memory is given back"
        return update(self, parts, tokens, lr)

    monkeypatch.setattr(Trainer, "update", scarce)
    assert tensors_of(train("found", run_again)) == tensors_of(eager)
    assert calls


def test_other_errors_of_a_capture_are_raised(train: Train):
    with pytest.raises(RuntimeError, match="no stream"):
        train("found", failing_from(2, RuntimeError("no stream")))


@pytest.mark.parametrize(
    ("sections", "processes", "why"),
    [
        ({}, 1, ""),
        ({"model": {"d_model": 256}}, 1, ""),
        ({"train": {"precision": "bf16"}}, 1, ""),
        ({"model": {"d_model": 258}}, 1, "d_model above 256"),
        ({}, 2, "several processes"),
        ({"train": {"accumulate": 2}}, 1, "train.accumulate"),
        ({"train": {"precision": "fp64"}}, 1, "train.precision fp64"),
        ({"fault": "pad_is_eos"}, 1, "a fault"),
        ({"model": EVERY_ANCHOR}, 1, "code of your own"),
    ],
    ids=id_of,
)
def test_what_is_captured_on_a_gpu_and_why_not(monkeypatch, sections, processes, why):
    monkeypatch.setattr(graphs, "CudaSteps", lambda device, capture, report, why: (capture, why))
    monkeypatch.setattr(graphs, "cuda_capture", lambda device: "a capture")
    config = config_of(**sections)
    given = config, torch.device("cuda:0"), config.train.precision, processes, print
    assert open_cuda_steps(*given) == (None if why else "a capture", why)
    monkeypatch.setenv(EAGER, "1")
    assert open_cuda_steps(*given)[0] is None
    assert open_cuda_steps(config, CPU, "fp32", 1, print) is None


def test_the_first_line_of_a_training_says_whether_steps_are_captured(train: Train, caplog):
    with caplog.at_level(logging.INFO, logger="toytrans"):
        train("captured", run_again)
        train("eager", None, why="train.accumulate")
    assert "captured: cpu, fp32, CUDA graphs" in caplog.text
    assert "eager: cpu, fp32, eager steps (train.accumulate)" in caplog.text
