"""What test_distributed.py trains, in one process and in two."""

import json
import sys
from pathlib import Path

import torch
from conftest import config_of

from toytrans.data.open import open_dataset
from toytrans.errors import UserError
from toytrans.training.devices import tune_process
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext, init_distributed
from toytrans.training.run import create_run
from toytrans.training.trainer import Trainer

SMALL = {"batch_tokens": 256, "train_length": [1, 8], "valid_examples": 51}
STEPS, SHRUNK = 24, 11
"""Of the longer scenarios, and after how many of them one process goes on alone."""

SCENARIOS: dict[str, dict] = {
    "fp64": {"train": {"max_steps": STEPS, "eval_every": 16}},
    "fp32": {"train": {"max_steps": STEPS, "eval_every": 16, "precision": "fp32"}},
    "few rows": {"data": SMALL | {"batch_tokens": 20, "valid_examples": 1}},
    "by hand": {"model": {"backward": "by_hand"}, "train": {"accumulate": 2}},
    "bf16": {"train": {"precision": "bf16"}},
}
"""Under which one process and two have the same losses."""

DROPOUT = {
    "model": {"dropout": 0.2},
    "train": {"max_steps": 24, "eval_every": 6, "log_every": 4, "precision": "fp32"},
}


def trainer_of(run: Path, context: DistributedContext = SINGLE_PROCESS, **sections) -> Trainer:
    train = {"max_steps": 6, "eval_every": 6, "log_every": 1, "precision": "fp64"}
    train |= sections.get("train", {})
    data = SMALL | sections.get("data", {})
    config = config_of("reverse", **(sections | {"train": train, "data": data}))
    source = open_dataset(config)
    context.on_main(lambda: create_run(run, config, source.facts, {}))
    return Trainer(config, source, run, torch.device("cpu"), config.train.precision, context)


def train_all(folder: Path, context: DistributedContext = SINGLE_PROCESS) -> None:
    for name, sections in SCENARIOS.items():
        list(trainer_of(folder / name, context, **sections).train())


def train_until(trainer: Trainer, step: int, rank: int) -> None:
    """Stop after a step because one process was told to."""
    take_step = trainer._step

    def interrupted(dealt) -> None:
        take_step(dealt)
        trainer.interrupted = trainer.progress.step == step and trainer.context.rank == rank

    trainer._step = interrupted
    list(trainer.train())
    assert trainer.stop_reason == "interrupted" and trainer.progress.step == step


def interrupt_and_resume(folder: Path, context: DistributedContext) -> None:
    list(trainer_of(folder / "dropout", context, **DROPOUT).train())
    train_until(trainer_of(folder / "interrupted", context, **DROPOUT), step=9, rank=1)
    again = trainer_of(folder / "interrupted", context, **DROPOUT)
    assert again.resume() == ["resumed at step 9"]
    list(again.train())
    train_until(trainer_of(folder / "shrunk", context, **SCENARIOS["fp64"]), step=SHRUNK, rank=1)


def errors(context: DistributedContext) -> dict[str, object]:
    """What this process sees of a UserError of the first, of the other, and of unlike values."""
    seen: dict[str, object] = {}

    def fail() -> None:
        raise UserError(f"of {context.rank}")

    def drawn() -> float:
        context.seed(0, 7)
        return float(torch.rand(()))

    attempts = {
        "first": lambda: context.on_main(fail),
        "all": lambda: context.on_all(fail),
        "last": lambda: context.on_all(fail if context.rank else lambda: None),
        "unlike": lambda: context.require_equal(config=1, data=context.rank),
        "made": lambda: context.on_main(lambda: {"rank": context.rank}),
        "clock": lambda: context.agree(1.0 + context.rank, bool(context.rank)),
        "drawn": lambda: context.gather(drawn()),
    }
    for name, attempt in attempts.items():
        try:
            seen[name] = attempt()
        except UserError as error:
            seen[name] = str(error)
    return seen


def in_two_processes() -> None:
    """The program of each of two processes; its argument is the folder to write to."""
    place = Path(sys.argv[1])
    tune_process()  # as the command does, whose numbers are to be these
    with init_distributed("cpu") as pair:
        train_all(place, pair)
        interrupt_and_resume(place, pair)
        (place / f"errors-{pair.rank}.json").write_text(json.dumps(errors(pair)))
