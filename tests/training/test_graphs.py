"""Updates recorded as graphs, with a stand-in for CUDA: the numbers of eager ones."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from conftest import EVERY_ANCHOR, SCHEMES, config_of, trainer_of

from toytrans.data.batches import training_batches
from toytrans.errors import UserError
from toytrans.model.positions.base import Positions
from toytrans.training.graphs import Capture, choose_capture
from toytrans.training.trainer import Trainer

DATA = {"train_length": [1, 5], "batch_tokens": 64, "valid_examples": 8}
LAYERS = {"n_encoder_layers": 1, "n_decoder_layers": 1, "d_model": 8, "d_ff": 16}


def run_again(warm_up, work):
    """In the place of CUDA: a replay runs the work again, on the memory that it was given."""
    with torch.random.fork_rng([]):
        warm_up()
    return work


def trainer_in(run: Path, capture: Capture | None, model: dict, **train) -> Trainer:
    sections = {"data": DATA, "model": LAYERS | model, "train": {"eval_every": 1000} | train}
    return trainer_of(run, "reverse", capture=capture, **sections)


def numbers(trainer: Trainer, steps: int) -> list[torch.Tensor]:
    """Loss and gradient norm after each of some steps; then the weights."""
    found = []
    for dealt in islice(training_batches(trainer.dataset, trainer.config), steps):
        found += [number.clone() for number in trainer.take_step([dealt])]
    return found + [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize(
    ("scheme", "precision"),
    [*((scheme, "fp32") for scheme in SCHEMES), (SCHEMES[0], "bf16")],
    ids=str,
)
def test_recorded_updates_have_the_numbers_of_eager_ones(tmp_path, scheme, precision):
    """With dropout, whose random numbers a warm-up must not use up.

    Tables of positions have their final size before the first graph, which reads them where they
    are: no batch and no evaluation, which decodes as far as it may, brings a larger one.
    """
    train = {"precision": precision, "label_smoothing": 0.1, "weight_decay": 0.1}
    model = {**scheme, "dropout": 0.1}
    recorded = trainer_in(tmp_path / "recorded", run_again, model, **train)

    def tables() -> list[int]:
        schemes = [module for module in recorded.model.modules() if isinstance(module, Positions)]
        values = [value for each in schemes for value in vars(each).values()]
        return [id(value) for value in values if isinstance(value, torch.Tensor)]

    before = tables()
    found = numbers(recorded, 10)
    recorded._evaluate()
    assert tables() == before
    expected = numbers(trainer_in(tmp_path / "eager", None, model, **train), 10)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert 1 < len(recorded._update.graphs) < 10, "shapes came again"


@pytest.mark.parametrize(
    ("sections", "device", "processes"),
    [
        ({}, "cpu", 1),
        ({}, "cuda:0", 2),
        ({"train": {"accumulate": 2}}, "cuda:0", 1),
        ({"train": {"precision": "fp64"}}, "cuda:0", 1),
        ({"fault": "pad_is_eos"}, "cuda:0", 1),
        ({"model": EVERY_ANCHOR}, "cuda:0", 1),
    ],
    ids=str,
)
def test_what_cannot_be_recorded_is_refused(sections, device, processes):
    config = config_of(**(sections | {"train": {"cuda_graphs": True} | sections.get("train", {})}))
    with pytest.raises(UserError, match="train.cuda_graphs needs a CUDA device, one process"):
        choose_capture(config, torch.device(device), config.train.precision, processes)
