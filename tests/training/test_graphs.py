"""Updates recorded as graphs, with a stand-in for CUDA: the numbers of eager ones."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from conftest import EVERY_ANCHOR, SCHEMES, config_of

from toytrans.data.batches import training_batches
from toytrans.data.open import open_dataset
from toytrans.errors import UserError
from toytrans.model.positions.base import Positions
from toytrans.training.graphs import Capture, choose_capture
from toytrans.training.trainer import Trainer

DATA = {"train_length": [1, 9], "batch_tokens": 128, "valid_examples": 8}
LAYERS = {"n_encoder_layers": 1, "n_decoder_layers": 1, "d_model": 8, "d_ff": 16}


def run_again(warm_up, work):
    """In the place of CUDA: a replay runs the work again, on the memory that it was given."""
    with torch.random.fork_rng([]):
        warm_up()
    return work


def trainer_of(run: Path, capture: Capture | None, model: dict, **train) -> Trainer:
    train = {"precision": "fp32", "eval_every": 1000} | train
    config = config_of("reverse", data=DATA, model=LAYERS | model, train=train)
    run.mkdir(exist_ok=True)
    source, precision = open_dataset(config), config.train.precision
    return Trainer(config, source, run, torch.device("cpu"), precision, capture=capture)


def numbers(trainer: Trainer, steps: int) -> list[torch.Tensor]:
    """Loss and gradient norm after each of some steps; then the weights."""
    found = []
    for dealt in islice(training_batches(trainer.dataset, trainer.config), steps):
        trainer._step([dealt])
        found += [trainer._loss_sum.clone(), trainer._grad_norm.clone()]
    return found + [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize(
    ("scheme", "precision"),
    [*((scheme, "fp32") for scheme in SCHEMES), (SCHEMES[0], "bf16")],
    ids=str,
)
def test_recorded_updates_have_the_numbers_of_eager_ones(tmp_path, scheme, precision):
    """With dropout, whose random numbers a warm-up must not use up."""
    train = {"precision": precision, "label_smoothing": 0.1, "weight_decay": 0.1}
    model = {**scheme, "dropout": 0.1}
    recorded = trainer_of(tmp_path / "recorded", run_again, model, **train)
    found = numbers(recorded, 20)
    expected = numbers(trainer_of(tmp_path / "eager", None, model, **train), 20)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert 3 < len(recorded._update.graphs) < 20, "shapes came again"


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_tables_of_positions_have_their_final_size_before_the_first_graph(tmp_path, scheme):
    """No batch and no evaluation, which decodes as far as it may, brings a larger one."""
    trainer = trainer_of(tmp_path / "run", run_again, scheme)

    def tables() -> list[int]:
        schemes = [module for module in trainer.model.modules() if isinstance(module, Positions)]
        values = [value for each in schemes for value in vars(each).values()]
        return [id(value) for value in values if isinstance(value, torch.Tensor)]

    before = tables()
    numbers(trainer, 8)
    trainer._evaluate()
    assert tables() == before


def test_a_recorded_run_resumes_with_the_same_numbers(tmp_path):
    train = {"max_steps": 20, "log_every": 1, "eval_every": 10}
    model = {"dropout": 0.2}
    expected = [r["loss"] for r in trainer_of(tmp_path / "eager", None, model, **train).train()]
    first = trainer_of(tmp_path / "pieces", run_again, model, **train)
    losses = []
    for record in first.train():
        losses.append(record["loss"])
        first.interrupted = record["step"] == 13
    second = trainer_of(tmp_path / "pieces", run_again, model, **train)
    second.resume()
    losses += [record["loss"] for record in second.train()]
    assert second._update.graphs and losses == expected


@pytest.mark.parametrize(
    ("sections", "device", "processes"),
    [
        ({}, "cpu", 1),
        ({}, "cuda:0", 2),
        ({"train": {"accumulate": 2}}, "cuda:0", 1),
        ({"train": {"precision": "fp64"}}, "cuda:0", 1),
        ({"fault": "pad_is_eos"}, "cuda:0", 1),
        ({"model": {"backward": "by_hand"}}, "cuda:0", 1),
        ({"model": EVERY_ANCHOR}, "cuda:0", 1),
    ],
    ids=str,
)
def test_what_cannot_be_recorded_is_refused(sections, device, processes):
    config = config_of(**(sections | {"train": {"cuda_graphs": "on"} | sections.get("train", {})}))
    with pytest.raises(UserError, match="train.cuda_graphs: on needs a CUDA device, one process"):
        choose_capture(config, torch.device(device), config.train.precision, processes)
