"""What is tried before the first step, so that a training that cannot go well fails at once.

A rehearsal takes one whole step on the largest batch of all and writes a checkpoint, which is
removed again. Missing memory, a full disk, and a model of the user's that cannot be trained or
saved show there. Weights, optimiser and random states are then as they were before it.
"""

from typing import TYPE_CHECKING

import torch

from toytrans.config.schedules import learning_rate
from toytrans.config.schema import Settings
from toytrans.data.batches import Batch, largest_batch
from toytrans.errors import UserError, ran_out_of_memory
from toytrans.model.seq2seq import Seq2Seq
from toytrans.references import shown
from toytrans.training.checkpoint import Tensors, weights_of
from toytrans.training.devices import Precision, random_states_kept

if TYPE_CHECKING:
    from toytrans.training.trainer import Trainer


def check_dtype(model: Seq2Seq, precision: Precision) -> None:
    """Raise UserError if a weight has another dtype than the precision says. Code of the user's
    that sets torch's default dtype may have done that, and no other process could open the run."""
    dtype = torch.float64 if precision == "fp64" else torch.float32
    for name, parameter in model.named_parameters():
        if parameter.dtype != dtype:
            raise _unfit(
                model,
                f"{name} is {parameter.dtype}, where train.precision {precision} takes {dtype}; "
                "does code of yours set torch's default dtype?",
            )


def rehearse(trainer: "Trainer") -> None:
    """Take a step on the largest batch, write a checkpoint, and undo both. Raises UserError."""
    batch = largest_batch(trainer.dataset, trainer.settings)
    before = {  # on the host, so that the step has the memory of the device to itself
        name: tensor.detach().to("cpu", copy=True) for name, tensor in _tensors(trainer).items()
    }
    trainer.model.train()
    with random_states_kept():
        _take_step(trainer, batch)
        _check_same_shapes(before, trainer.model)
        if trainer.writer:
            trainer.writer.try_to_save(*trainer.state())
    trainer.optimizer.zero_grad()
    with torch.no_grad():
        for name, tensor in _tensors(trainer).items():  # forward may have made a buffer anew
            if name in before and tensor.shape == before[name].shape:
                tensor.copy_(before[name])


def _take_step(trainer: "Trainer", batch: Batch) -> None:
    part = trainer.objective.prepare(batch)
    lr = learning_rate(1, trainer.settings.train)
    try:
        trainer.update([part], trainer.objective.divisor(part), lr)
    except Exception as error:
        if ran_out_of_memory(error):
            raise _too_large(batch, trainer.settings) from None
        raise


def _tensors(trainer: "Trainer") -> Tensors:
    """All that a step changes: what a checkpoint holds, and buffers that it does not hold."""
    return trainer.tensors() | dict(trainer.model.named_buffers())


def _check_same_shapes(before: Tensors, model: Seq2Seq) -> None:
    """Raise UserError if a step has added, dropped or resized what a checkpoint holds."""
    held = {name: tensor.shape for name, tensor in before.items() if name.startswith("weights/")}
    now = {name: tensor.shape for name, tensor in weights_of(model).items()}
    for name in sorted(now.keys() | held.keys()):
        if now.get(name) != held.get(name):
            shown_name = name.removeprefix("weights/")
            reason = (
                f"forward adds, drops or resizes {shown_name}; make it in __init__, at its last "
                "size"
            )
            raise _unfit(model, reason)


def _too_large(batch: Batch, settings: Settings) -> UserError:
    (rows, src_width), tgt_width = batch.src.shape, batch.tgt_out.shape[1]
    return UserError(
        f"out of memory: the largest batch, {rows} x ({src_width} + {tgt_width}) tokens, does not "
        f"fit; lower data.batch_tokens ({settings.data.batch_tokens}), the longest sequences or "
        "the sizes of the model"
    )


def _unfit(model: Seq2Seq, reason: str) -> UserError:
    own = model.settings.class_
    return UserError(f"{shown(own) if own else 'the model'}: {reason}")
