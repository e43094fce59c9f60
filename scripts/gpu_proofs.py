"""Parts of `gpu_check.py` that prove: recorded steps, searches and resumed runs equal eager
ones."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from gpu_rows import PRECISIONS, Machine, Row, sources
from torch import Tensor
from torch.nn import functional as F

from toytrans.data.batches import training_batches
from toytrans.model.decoding import search
from toytrans.model.decoding.recorded import RecordedSearch
from toytrans.model.transformer import Transformer
from toytrans.training.devices import Precision
from toytrans.training.trainer import Trainer

TOLERANCE = {"fp32": 1e-6, "bf16": 2e-3, "bf16_weights": 2e-3}


# Steps -----------------------------------------------------------------------------------------


def steps(machine: Machine) -> Iterator[Row]:
    """Updates of every position scheme in every precision, with dropout: losses and weights."""
    for name, scheme in machine.schemes.items():
        for precision in PRECISIONS:
            make = partial(_steps, machine, scheme, precision)
            yield machine.row("steps", make, scheme=name, precision=precision)


def _steps(machine: Machine, scheme: dict[str, Any], precision: Precision) -> Row:
    runs = []
    for recorded in (False, False, True):
        trainer = machine.trainer(precision, recorded, model={**scheme, "dropout": 0.1})
        runs.append(_numbers(trainer, machine.options.steps))
    noise, found = apart(runs[0], runs[1]), apart(runs[0], runs[2])
    tolerance = (TOLERANCE[precision], 100 * TOLERANCE[precision])
    allowed = [max(least, 10 * each) for least, each in zip(tolerance, noise, strict=True)]
    equal = all(one <= most for one, most in zip(found, allowed, strict=True))
    return {
        "shapes": len(getattr(trainer._update, "recorded", ())),
        "first_loss": runs[0][0][0],
        "last_loss": runs[0][0][-1],
        "eager_twice_losses": noise[0],
        "eager_twice_weights": noise[1],
        "recorded_losses": found[0],
        "recorded_weights": found[1],
        "first_step_apart": _first_apart(runs[0][0], runs[2][0], allowed[0]),
        "verdict": "ok" if equal else "DIFFERS",
    }


def _numbers(trainer: Trainer, steps: int) -> tuple[list[float], Tensor]:
    """The loss of each step, nats per token, read at the end; and the weights."""
    batches = training_batches(trainer.source, trainer.config, 0, trainer.device)
    sums, tokens = [], []
    for dealt in islice(batches, steps):
        trainer._clear_window()
        trainer._step([dealt])
        sums.append(trainer._loss_sum)
        tokens.append(trainer.progress.window["tokens"])
    losses = torch.stack(sums).double().cpu() / torch.tensor(tokens, dtype=torch.float64)
    return losses.tolist(), flat(trainer.model)


def apart(one: tuple[list[float], Tensor], two: tuple[list[float], Tensor]) -> tuple[float, float]:
    """The largest relative difference of two losses, and that of the weights as vectors."""
    return max(map(_relative, one[0], two[0])), apart_of(one[1], two[1])


def _relative(one: float, two: float) -> float:
    return abs(one - two) / max(abs(one), 1e-9)


def _first_apart(one: list[float], two: list[float], most: float) -> int | None:
    """The first step whose losses are too far apart, counted from 1."""
    far = (
        step for step, pair in enumerate(zip(one, two, strict=True), 1) if _relative(*pair) > most
    )
    return next(far, None)


def flat(model: Transformer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


def apart_of(one: Tensor, two: Tensor) -> float:
    return float((one - two).norm() / one.norm())


# Decoding --------------------------------------------------------------------------------------


def decoding(machine: Machine) -> Iterator[Row]:
    """Greedy and beam search by every scheme: tokens, in fp32 and under bf16 autocast."""
    for name, scheme in machine.schemes.items():
        for beam in (1, 5):
            for bf16 in (False, True):
                make = partial(_decoding, machine, scheme, beam, bf16)
                yield machine.row("decoding", make, scheme=name, beam=beam, bf16=bf16)


def _decoding(machine: Machine, scheme: dict[str, Any], beam: int, bf16: bool) -> Row:
    """Sources of some shapes, one of them twice, by weights that train in between.

    Of 260 rows, ended ones leave.
    """
    trainer = machine.trainer("fp32", recorded=False, model=scheme)
    model, equal, rows = trainer.model, 0, 0
    recorded = RecordedSearch(machine.recorder(), model)
    batches = training_batches(trainer.source, trainer.config, 0, machine.device)
    shapes = [(64, 12), (37, 20), (260, 20), (64, 12), (260, 20)]
    for count, length in shapes if not machine.options.quick else [(5, 6), (5, 6)]:
        for dealt in islice(batches, min(machine.options.steps, 10)):
            trainer._step([dealt])
        src = sources(model, count, length)
        model.eval()
        with torch.autocast(machine.device.type, torch.bfloat16, enabled=bf16):
            ours, theirs = recorded(model, src, beam=beam), search(model, src, beam=beam)
        model.train()
        equal += equal_rows(ours.tokens, theirs.tokens)
        rows += count
    enough = rows if not bf16 else 0.98 * rows  # a tie may fall otherwise
    return {"equal": equal, "rows": rows, "verdict": "ok" if equal >= enough else "DIFFERS"}


def equal_rows(one: Tensor, two: Tensor) -> int:
    """Rows that are equal but for pads at their ends."""
    width = max(one.shape[1], two.shape[1])
    padded = [F.pad(tokens, (0, width - tokens.shape[1])) for tokens in (one, two)]
    return int((padded[0] == padded[1]).all(1).sum())


def rounding(machine: Machine) -> Iterator[Row]:
    """Tokens of a trained model under bf16 autocast beside those in fp32: 99.9% of rows."""
    for name, scheme in machine.schemes.items():
        yield machine.row("rounding", partial(_rounding, machine, scheme), scheme=name)


def _rounding(machine: Machine, scheme: dict[str, Any]) -> Row:
    quick = machine.options.quick
    sections = {"model": {**scheme, "dropout": 0.1}}
    trainer = machine.trainer("fp32", True, **sections)
    batches = training_batches(trainer.source, trainer.config, 0, machine.device)
    for dealt in islice(batches, 4 if quick else 5 * machine.options.steps):
        trainer._step([dealt])
    model = trainer.model.eval()
    rows = 5 if quick else 4096
    src, found = sources(model, rows, 6 if quick else 20), []
    recorded = RecordedSearch(machine.recorder(), model)
    for bf16 in (False, True):
        with torch.autocast(machine.device.type, torch.bfloat16, enabled=bf16):
            found.append(recorded(model, src).tokens)
    equal = equal_rows(*found)
    enough = equal >= 0.999 * rows or quick
    return {"equal": equal, "rows": rows, "verdict": "ok" if enough else "DIFFERS"}


# Resuming --------------------------------------------------------------------------------------


def resume(machine: Machine) -> Iterator[Row]:
    """A run that is interrupted and resumed beside one in one piece: weights, bit for bit."""
    for name, scheme in machine.schemes.items():
        yield machine.row("resume", partial(_resume, machine, scheme), scheme=name)


def _resume(machine: Machine, scheme: dict[str, Any]) -> Row:
    steps = min(machine.options.steps, 60)
    train = {"max_steps": steps, "eval_every": max(1, steps // 2), "log_every": 1}
    sections = {"train": train, "model": {**scheme, "dropout": 0.1}}
    weights = []
    for _ in range(2):
        trainer = machine.trainer("fp32", True, **sections)
        list(trainer.train())
        weights.append(flat(trainer.model))
    first = machine.trainer("fp32", True, **sections)
    for record in first.train():
        first.interrupted = record["step"] == steps // 3
    second = machine.trainer_in(first.run, "fp32", True, **sections)
    notes = second.resume()
    list(second.train())
    noise, difference = apart_of(*weights), apart_of(weights[0], flat(second.model))
    ok = difference == 0 or difference <= 10 * noise
    return {
        "notes": "; ".join(notes),
        "same_run_twice": noise,
        "resumed": difference,
        "bit_for_bit": difference == 0,
        "verdict": "ok" if ok and second.progress.step == steps else "DIFFERS",
    }
