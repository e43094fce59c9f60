"""The whole update, recorded once for each shape of a batch and replayed.

    batch -> fixed tensors of its shape -> forward, loss, backward, clip, AdamW -> loss and norm

The learning rate and the number of tokens are scalars on the device that every graph reads. The
summed loss and the norm of the gradient are scalars that it writes. Nothing is read back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from toytrans.config import Config
from toytrans.data.batches import Batch, bucket
from toytrans.data.pairs import MAX_LEN_B, DatasetInfo
from toytrans.errors import UserError
from toytrans.model.recorder import CudaRecorder, Recorder, Tables
from toytrans.model.transformer import Transformer
from toytrans.training.devices import Precision
from toytrans.training.step import Update, Updated
from toytrans.user_code import is_reference


@dataclass(frozen=True)
class _Recorded:
    """An update of one shape: the fixed batch that it reads, and what repeats it."""

    batch: Batch
    replay: Callable[[], object]


class RecordedUpdate:
    """An `Update` of one batch, with the same numbers, recorded once for each shape.

    places: of the longest sequence that the model will meet.
    """

    def __init__(self, recorder: Recorder, eager: Update, model: Transformer, places: int) -> None:
        self.recorder, self.places, self.tables = recorder, places, Tables(model)
        self.recorded: dict[tuple[int, ...], _Recorded] = {}
        self.device = device = eager.device
        # AdamW's kernel for a GPU reads an fp32 rate; that for a CPU takes a number as fp64
        rate = torch.float32 if device.type == "cuda" else torch.float64
        self.lr = torch.zeros((), dtype=rate, device=device)
        self.tokens, self.loss, self.norm = (torch.zeros((), device=device) for _ in range(3))
        tokens: Any = self.tokens  # in place of a number
        objective = eager.objective._replace(tokens=lambda batch: tokens)
        self.eager = replace(eager, objective=objective)

    def __call__(self, batches: Sequence[Batch], *, lr: float) -> Updated:
        """As `Update`; the next call overwrites the summed loss and the norm."""
        (batch,) = batches
        tokens, shape = batch.target_tokens, (*batch.src.shape, batch.tgt_in.shape[1])
        self.lr.fill_(lr)
        self.tokens.fill_(tokens)
        if shape not in self.recorded:
            self.recorded[shape] = self._record(batch)
        recorded = self.recorded[shape]
        for fixed, ids in zip(recorded.batch, batch, strict=True):
            fixed.copy_(ids)
        recorded.replay()
        return self.loss, tokens, self.norm

    def _record(self, batch: Batch) -> _Recorded:
        if not self.recorded:
            self.tables.make_room(self.places)
        src, tgt_in, tgt_out = (ids.to(self.device, copy=True) for ids in batch)
        fixed = Batch(src, tgt_in, tgt_out)
        self._drop_gradients()
        self.recorder.warm_up(lambda: self.eager.backward([fixed]))
        self.tables.keep()
        self._drop_gradients()  # so that they are made anew, in the memory of the graph
        with self.tables.fixed():
            replay = self.recorder.record(partial(self._work, fixed))
        self._drop_gradients()
        return _Recorded(fixed, replay)

    def _work(self, batch: Batch) -> None:
        loss, _, norm = self.eager([batch], lr=self.lr)
        self.loss.copy_(loss)
        self.norm.copy_(norm)

    def _drop_gradients(self) -> None:
        self.eager.optimizer.zero_grad()


def most_places(config: Config, facts: DatasetInfo) -> int:
    """Places of the longest sequence that a run trains on or decodes.

    That is what decoding may say of the longest source, padded and with both ends.
    """
    valid = config.data.valid_length or facts.train_length
    longest = max(facts.train_length[1], valid[1])
    return facts.max_len_a * bucket(longest + 2) + MAX_LEN_B


def choose_recorder(
    config: Config, device: torch.device, precision: Precision, processes: int
) -> tuple[Recorder | None, str]:
    """What records the updates of a run, and a sentence about it for the user.

    None = nothing is recorded. Raises UserError for a device that cannot.
    """
    if config.train.cuda_graphs != "on":
        return None, ""
    if device.type != "cuda":
        raise UserError(
            f"train.cuda_graphs: on needs a CUDA device, not {device.type}; leave it out, or take "
            "device: cuda"
        )
    if reason := not_recorded(config, precision, processes):
        return None, f"no CUDA graphs: {reason}"
    return CudaRecorder(device), "each shape of a batch is recorded as a CUDA graph"


def not_recorded(config: Config, precision: Precision, processes: int) -> str:
    """Why the updates of a run cannot be recorded; empty if they can."""
    model, train = config.model, config.train
    own = model.class_ or is_reference(model.positions)
    own = own or is_reference(model.cross_positions or "")
    reasons = {
        "several processes exchange gradients in each step": processes > 1,
        "train.accumulate adds up batches of several shapes": train.accumulate > 1,
        "code of your own may read values back": own,
        f"fault {config.fault} counts its tokens in the batch": config.fault is not None,
        "model.backward: by_hand keeps what it needs outside of them": model.backward == "by_hand",
        f"model.kind: {model.kind} has not been tried with them": model.kind != "transformer",
        "fp64 is for comparisons": precision == "fp64",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
