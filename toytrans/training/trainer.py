"""The training loop: yields records, prints nothing.

    stream -> batches -> update (step.py) -> record

A step depends on the config, the weights, the optimiser, torch's random state and `Progress` only.
A checkpoint holds them all, so a resumed run computes the same numbers.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from toytrans.config.schema import Settings
from toytrans.data.batches import Batch, largest_batch, training_batches
from toytrans.data.pairs import Dataset, Pairs, all_pairs
from toytrans.errors import UserError, ran_out_of_memory
from toytrans.training.checkpoint import (
    CHECKPOINTS,
    Progress,
    StopReason,
    Tensors,
    copy_into,
    listed_checkpoints,
    load_checkpoint,
    most_bytes_of,
    refusing,
    save_checkpoint,
    saved_steps,
    weights_of,
)
from toytrans.training.devices import Precision, generators, random_states_kept
from toytrans.training.distributed import SINGLE_PROCESS, DistributedContext
from toytrans.training.faults import build_model, objective_of
from toytrans.training.graphs import Capture, GraphedUpdate
from toytrans.training.run import METRICS, Record, append_record
from toytrans.training.step import AdamW, Update, Updated, learning_rate

SECONDS_BETWEEN_SAVES = 60.0
"""A checkpoint is written after every evaluation, and at least this often."""

FINITE = {"loss": "loss", "grad_norm": "gradient", "valid_loss": "validation loss"}
"""Numbers of a record that are finite unless training diverges."""


class Trainer:
    """One training run in a run directory, or under torchrun one process of it.

    progress: what was trained so far.
    locked: the metrics.jsonl that this training holds; a folder with another is not written to.
    stop_reason: why training ended; None while it runs.
    not_finite: the number that was not finite, if training diverged.
    saved_step: the step of the newest checkpoint, written or resumed from.
    interrupted: whether to save and stop after the running step. received: the numbers of signals,
        of which one does the same.
    """

    def __init__(
        self,
        config: Settings,
        dataset: Dataset,
        run: Path,
        device: torch.device,
        precision: Precision,
        context: DistributedContext = SINGLE_PROCESS,
        capture: Capture | None = None,
    ) -> None:
        torch.manual_seed(config.seed)
        self.config, self.dataset, self.run, self.device = config, dataset, run, device
        self.precision, self.context = precision, context
        self.model = build_model(config, dataset.facts.vocabulary).to(device)
        context.share(self.model)
        self.optimizer = AdamW(self.model, config.train.weight_decay)
        objective = objective_of(config.fault)
        parts = device, config.train, precision, objective, context
        self._eager = Update(self.model, self.optimizer, *parts)
        self._update: Callable[..., Updated] = self._eager
        if capture:
            self._update = GraphedUpdate(capture, self._eager)
        self.progress = Progress()
        self.locked: os.stat_result | None = None
        self.stop_reason: StopReason | None = None
        self.not_finite = ""
        self.interrupted, self.received = False, list[int]()
        self.saved_step: int | None = None
        self._saved_at = 0.0
        self._valid: Pairs | None = None
        self._loss_sum = self._grad_norm = self._scalar(0.0)
        self._clear_window()

    def train(self) -> Iterator[Record]:
        """Train until the first limit. Yields a record every `log_every` steps and after every
        evaluation. Raises UserError if memory runs out or a file cannot be written."""
        train = self.config.train
        began = time.monotonic() - self.progress.elapsed_s
        self.model.train()
        reason = self._reason_to_stop(time.monotonic() - began)
        if reason is None and self.progress.step == 0:
            self._rehearse()
        batches = training_batches(self.dataset, self.config, self.progress.pairs_used)
        with contextlib.closing(batches):
            while reason is None:
                self._step([next(batches) for _ in range(train.accumulate)])
                reason = self._reason_to_stop(time.monotonic() - began)
                ends = reason is not None and reason != "interrupted"
                evaluates = ends or self.progress.step % (train.eval_every or 1) == 0
                if evaluates or self.progress.step % train.log_every == 0:
                    yield self._record(evaluates)
                    reason = reason or self._reason_to_stop(self.progress.elapsed_s)
                overdue = self.progress.elapsed_s - self._saved_at > SECONDS_BETWEEN_SAVES
                if (overdue or reason == "interrupted") and self.saved_step != self.progress.step:
                    self.save()
                if self.not_finite:
                    reason = "diverged"
        self.stop_reason = reason
        ended = reason not in ("diverged", "interrupted")
        if ended and self.saved_step != self.progress.step:  # no step was taken
            self._evaluate()
            self.save()

    def divergence(self) -> str:
        """What diverged, the last good checkpoint, and the remedy."""
        good = self.saved_step
        left = "no checkpoint yet" if good is None else f"the last good checkpoint is step {good}"
        return (
            f"{self.run}: training diverged: the {self.not_finite} is not finite by step "
            f"{self.progress.step}; {left}; lower train.lr or train.clip_norm"
        )

    # Steps

    def _step(self, dealt: Sequence[tuple[Batch, int]]) -> None:
        """One optimiser update from some batches."""
        progress, batches = self.progress, [batch for batch, _ in dealt]
        rate = learning_rate(progress.step + 1, self.config.train)
        self.context.seed(self.config.seed, progress.step)
        loss, tokens, self._grad_norm = self._update(batches, lr=rate)
        progress.step += 1
        progress.pairs_used = dealt[-1][1]
        progress.target_tokens += tokens
        self._loss_sum = self._loss_sum + loss
        progress.window["tokens"] += tokens
        progress.window["padded"] += sum(batch.padded_tokens for batch in batches)
        progress.window["real"] += sum(batch.real_tokens for batch in batches)

    def _rehearse(self) -> None:
        """Forward and backward pass of the largest batch, so that missing memory shows at once.

        Weights, buffers, optimiser and random states do not change. Raises UserError.
        """
        batch = largest_batch(self.dataset, self.config)
        alone = replace(self._eager, context=SINGLE_PROCESS)

        def attempt() -> None:
            try:
                alone.backward([self.context.shard(batch)])
            except Exception as error:
                if not ran_out_of_memory(error):
                    raise
                (rows, src_width), tgt_width = batch.src.shape, batch.tgt_out.shape[1]
                raise UserError(
                    f"out of memory: the largest batch, {rows} x ({src_width} + {tgt_width}) "
                    f"tokens, does not fit; lower data.batch_tokens "
                    f"({self.config.data.batch_tokens}), the longest sequences or the sizes of the "
                    "model"
                ) from None

        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with random_states_kept():
            self.context.on_all(attempt)
        for buffer, before in buffers:
            buffer.copy_(before)

    def _reason_to_stop(self, elapsed: float) -> StopReason | None:
        """On which all processes agree: by the clock of rank 0, and if any is interrupted."""
        told = self.interrupted or bool(self.received)
        self.progress.elapsed_s, told = self.context.agree(elapsed, told)
        return self.progress.stop_reason(self.config.train) or ("interrupted" if told else None)

    # Records

    def _record(self, evaluates: bool) -> Record:
        """Write a record of the steps since the last one to metrics.jsonl, and return it.

        loss: nats per real target token, with label smoothing.
        grad_norm: of the last step, before clipping.
        padding: padded tokens / real tokens.
        valid_*: measured without label smoothing, if `evaluates`.

        An evaluation is followed by a checkpoint, unless training has diverged.
        """
        progress, window = self.progress, self.progress.window
        record: Record = {
            "step": progress.step,
            "loss": float(self._loss_sum) / window["tokens"],
            "lr": learning_rate(progress.step, self.config.train),
            "grad_norm": float(self._grad_norm),
            "padding": window["padded"] / window["real"],
            "target_tokens": progress.target_tokens,
            "elapsed_s": progress.elapsed_s,
        }
        self._clear_window()
        if self._is_finite(**record) and evaluates:
            record |= self._evaluate()
            self._is_finite(**record)
        self._write(lambda run: append_record(run, record))
        if evaluates:
            self.save()
        return record

    def _is_finite(self, **numbers: float) -> bool:
        """Whether training has not diverged. The first number that is not finite is noted."""
        wrong = [what for key, what in FINITE.items() if not math.isfinite(numbers.get(key, 0.0))]
        self.not_finite = self.not_finite or "".join(wrong[:1])
        return not self.not_finite

    def _clear_window(self) -> None:
        self._loss_sum = self._scalar(0.0)
        self.progress.window = {"tokens": 0, "padded": 0, "real": 0, "loss": 0.0}

    def _scalar(self, value: float) -> Tensor:
        return torch.full((), value, dtype=self.model.dtype, device=self.device)

    def _evaluate(self) -> Record:
        """Measure the validation data, and record whether this step is the best so far."""
        if self._valid is None:
            self._valid = all_pairs(self.dataset, "valid")
        counts = self.context.evaluate(self.model, self._valid, self.dataset.facts).summary()
        progress, match, loss = self.progress, counts["exact_match"], counts["loss"]
        progress.evaluations_since_best += 1
        best_loss = math.inf if progress.best_loss is None else progress.best_loss
        if math.isfinite(loss) and (match, -loss) > (progress.best_exact_match, -best_loss):
            progress.best_step, progress.evaluations_since_best = progress.step, 0
            progress.best_exact_match, progress.best_loss = match, loss
        return {f"valid_{key}": counts[key] for key in ("exact_match", "token_accuracy", "loss")}

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint of the current state, unless training has diverged. Raises UserError
        if it cannot be written."""
        self.progress.window["loss"] = loss = float(self._loss_sum)
        if not self._is_finite(loss=loss, grad_norm=float(self._grad_norm)):
            return
        random = {name: each.get_state() for name, each in self._generators().items()}
        tensors, keep = self._tensors() | random, self.config.train.keep_checkpoints
        self._write(lambda run: save_checkpoint(run, self.progress, tensors, keep))
        self.saved_step, self._saved_at = self.progress.step, self.progress.elapsed_s

    def _write(self, write: Callable[[Path], None]) -> None:
        """Let rank 0 write to the run. Raises UserError if its folder no longer holds the locked
        file."""

        def write_here() -> None:
            file, here = self.run / METRICS, None
            with contextlib.suppress(OSError):
                here = os.lstat(file)
            if self.locked and not (here and os.path.samestat(self.locked, here)):
                raise UserError(
                    f"{file}: moved or replaced while training; go on with --resume where the run "
                    "is"
                )
            write(self.run)

        self.context.on_main(write_here)

    def resume(self) -> str:
        """Continue from the newest checkpoint. Returns a sentence for the user.

        Raises UserError if it cannot be read, or if all of them are gone; nothing is changed then.
        """
        steps, listed = self.context.on_main(
            lambda: (saved_steps(self.run), len(listed_checkpoints(self.run)))
        )
        if not steps and listed > 1:  # one may be of a training that was killed as it saved it
            raise UserError(
                f"{self.run / CHECKPOINTS}: holds none of the {listed} checkpoints of the run; put "
                "it back, or train again with another --out"
            )
        if not steps:
            return "no checkpoint to resume from; starting at step 0"
        load = partial(load_checkpoint, self.run, steps[-1], most_bytes_of(self.model))
        progress, tensors = self.context.on_main(load)
        with refusing(self.run, steps[-1]):
            self._restore(progress, tensors)
        return f"resumed at step {steps[-1]}"

    def _restore(self, progress: Progress, tensors: Tensors) -> None:
        """Take over a checkpoint. Raises ValueError for one of another model."""
        if progress.window.keys() != self.progress.window.keys():
            raise ValueError("lacks its sums")
        random = {name: tensors.pop(name) for name in [*tensors] if name.startswith("random/")}
        copy_into(self._tensors(), tensors)
        try:
            for name, generator in self._generators().items():
                if name in random or name == "random/cpu":  # the run may be of another device
                    generator.set_state(random[name])
        except (KeyError, RuntimeError, TypeError):
            raise ValueError("no random states of torch's") from None
        self.progress = progress
        self._loss_sum = self._scalar(progress.window["loss"])
        self.saved_step, self._saved_at = progress.step, progress.elapsed_s

    def _tensors(self) -> Tensors:
        """Weights, and the moments and step counts of AdamW, by their names in a checkpoint."""
        return weights_of(self.model) | {
            f"optimizer/{name}/{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state[parameter].items()
        }

    def _generators(self) -> dict[str, torch.Generator]:
        """What dropout draws from, by the names of its states in a checkpoint."""
        found = generators()
        return {"random/cpu": found["cpu"], f"random/{self.device.type}": found[str(self.device)]}
