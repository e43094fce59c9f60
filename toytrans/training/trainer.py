"""The training loop: batch, forward, loss, backward, clip, step, record, evaluate, save.

A step depends on the settings, the weights, the optimiser, torch's random state and `Progress`
alone. A checkpoint holds them all, so a training that is resumed computes the same numbers. The
loop yields its records and prints nothing.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from toytrans.config.schedules import learning_rate
from toytrans.config.schema import Settings
from toytrans.data.batches import Batch, DealtBatch, training_batches
from toytrans.data.hashing import key_of
from toytrans.data.pairs import Dataset, all_pairs
from toytrans.evaluation import evaluate
from toytrans.model.seq2seq import Seq2Seq
from toytrans.scores import Numbers
from toytrans.training.checkpoint import (
    Progress,
    StopReason,
    Tensors,
    checkpoint_errors,
    copy_into,
    load_newest,
    load_weights,
    new_window,
    saved_steps,
    weights_of,
)
from toytrans.training.devices import Precision, generators
from toytrans.training.distributed import gather, rank_and_processes, sum_over_processes
from toytrans.training.folder import Record
from toytrans.training.optimization import AdamW, objective_of
from toytrans.training.snapshots import keep_snapshot
from toytrans.training.writer import RunWriter

if TYPE_CHECKING:
    from toytrans.training.graphs import CudaSteps

SECONDS_BETWEEN_SAVES = 60.0
"""A checkpoint is written after every evaluation, and at least this often."""


class Trainer:
    """The training of one model.

    writer: keeps records and checkpoints. None keeps nothing, as in every process but the first.
    signals: the numbers of those that were received. The first one lets the running step end, and
        saves.
    cuda_steps: takes the steps on a GPU, as CUDA graphs where it can.
    progress: what was trained so far.
    stop_reason: why training has ended; None while it goes on.
    not_finite: the name of the number that shows that training has diverged; else empty.
    saved_step: the step of the newest checkpoint, written or resumed from.
    """

    def __init__(
        self,
        settings: Settings,
        dataset: Dataset,
        model: Seq2Seq,
        precision: Precision,
        writer: RunWriter | None = None,
        signals: list[int] | None = None,
        cuda_steps: "CudaSteps | None" = None,
    ) -> None:
        self.settings = settings
        self.dataset = dataset
        self.model = model
        self.precision = precision
        self.writer = writer
        self.signals = [] if signals is None else signals
        self.cuda_steps = cuda_steps
        self.device = next(model.parameters()).device
        self.optimizer = AdamW(model, settings.train)
        self.objective = objective_of(settings.fault)
        self.rank, self.processes = rank_and_processes()
        self.progress = Progress()
        self.stop_reason: StopReason | None = None
        self.not_finite = ""
        self.saved_step: int | None = None
        self._saved_at = 0.0  # in seconds of training
        self._lap_began = time.monotonic()
        self._told_to_stop = False
        self._grad_norm = self._zero()
        self._loss_sum = self._zero()

    # The loop

    def train(self) -> Iterator[Record]:
        """Train until the first limit. Yields a record every `log_every` steps and after every
        evaluation, but none where no step is taken.

        A training that comes to its end is evaluated and saved; one that is interrupted is only
        saved; one that diverges only gets its record. Raises UserError if a file cannot be written.
        """
        train, progress = self.settings.train, self.progress
        self._lap()
        self.model.train()
        reason = self._reason_to_stop()
        if is_end(reason) and self.saved_step is None:  # say, max_steps: 0
            self._evaluate()
            reason = self._reason_to_stop()
            self.save()
        batches = training_batches(self.dataset, self.settings, progress.pairs_used)
        with contextlib.closing(batches):
            while reason is None:
                if self.writer:
                    keep_snapshot(self.writer.path, self.model, progress.step, train.max_steps)
                self.take_step(list(islice(batches, train.accumulate)))
                progress.elapsed_s += self._lap()

                if self._save_is_overdue():  # by the clock of this process
                    self._look_for_divergence()
                reason = self._reason_to_stop()
                evaluates = is_end(reason) or progress.step % train.eval_every == 0
                records = evaluates or progress.step % train.log_every == 0
                if records or reason is not None:
                    self._look_for_divergence()

                if records or self.not_finite:
                    progress.elapsed_s += self._lap()  # of a device that was waited for
                    record = self._sum_up_steps()
                    if evaluates and not self.not_finite:
                        record |= self._evaluate()
                    self._write(record)
                    if evaluates:
                        self.save()
                    yield record
                    reason = self._reason_to_stop()
                if reason == "interrupted" or self._save_is_overdue():
                    self.save()
        self.stop_reason = reason

    def stop(self) -> None:
        """Let the running step end, and save."""
        self._told_to_stop = True

    def _reason_to_stop(self) -> StopReason | None:
        """Why training stops now. Each process has its own clock and signals, so that all take the
        first reason that one of them has."""
        reason = self.progress.reached_limit(self.settings.train)
        if self.not_finite:
            reason = "diverged"
        elif reason is None and (self._told_to_stop or self.signals):
            reason = "interrupted"
        return next(filter(None, gather(reason)), None)

    def _save_is_overdue(self) -> bool:
        return self.progress.elapsed_s - self._saved_at > SECONDS_BETWEEN_SAVES

    def _lap(self) -> float:
        """End a lap, and begin the next one. Returns its seconds."""
        began, self._lap_began = self._lap_began, time.monotonic()
        return self._lap_began - began

    # One step

    def take_step(self, dealt: list[DealtBatch]) -> None:
        """Take one step on some batches, which together are the batch of this step."""
        progress, window = self.progress, self.progress.window
        self._seed_dropout()
        parts = [self.objective.prepare(each.batch) for each in dealt]
        divisor = sum(self.objective.divisor(part) for part in parts)
        lr = learning_rate(progress.step + 1, self.settings.train)
        if self.cuda_steps is None:
            loss, self._grad_norm = self.update(parts, divisor, lr)
        else:
            loss, self._grad_norm = self.cuda_steps.take(self.update, parts, divisor, lr)
        self._loss_sum = self._loss_sum + loss
        progress.step += 1
        progress.pairs_used = dealt[-1].pairs_used
        progress.target_tokens += divisor
        window.tokens += divisor
        window.padded += sum(each.batch.padded_tokens for each in dealt)
        window.real += sum(each.batch.real_tokens for each in dealt)

    def update(
        self, parts: list[Batch], divisor: int | Tensor, lr: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Forward, loss, backward, clip, AdamW. The host reads nothing back from the device, so
        that a CUDA graph can hold it.

        divisor: what the summed loss of all parts is divided by, over all processes: their real
            target tokens, unless a fault divides by something else. lr: the learning rate. Both may
            be scalars on the device.
        Returns the summed loss in nats, and the norm of the gradient before it is clipped.
        """
        self.optimizer.zero_grad()
        loss = self.backward(parts, divisor)
        limit = self.settings.train.clip_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step(lr)
        return loss, norm

    def backward(self, parts: list[Batch], divisor: int | Tensor) -> Tensor:
        """Leave in the parameters the gradient of the summed loss of all parts over the divisor,
        which is that of one large batch with all their rows. Returns the summed loss."""
        total = torch.zeros((), device=self.device)
        smoothing = self.settings.train.label_smoothing
        for part in parts:
            batch = part.shard(self.rank, self.processes).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                logits = self.model(batch.src, batch.tgt_in)  # (B, T, V)
            loss = self.objective.loss(logits, batch.tgt_out, smoothing)
            (loss / divisor).backward()
            total = total + loss.detach()
        sum_over_processes(total, self.model.parameters())
        return total

    def _seed_dropout(self) -> None:
        """The random state of the first process is in the checkpoint; that of another follows from
        the step, and each drops something else."""
        if self.rank > 0:
            torch.manual_seed(key_of(self.settings.seed, self.rank, self.progress.step))

    # Records

    def _sum_up_steps(self) -> Record:
        """The record of the steps since the last one, from which the sums begin anew.

        loss: nats per real target token, with label smoothing.
        grad_norm: of the last step, before clipping.
        padding: padded tokens / real tokens.
        elapsed_s: seconds of training so far.
        """
        progress, window = self.progress, self.progress.window
        record = {
            "step": progress.step,
            "loss": float(self._loss_sum) / max(window.tokens, 1),  # pad_is_eos leaves none
            "lr": learning_rate(progress.step, self.settings.train),
            "grad_norm": float(self._grad_norm),
            "padding": window.padded / window.real,
            "target_tokens": progress.target_tokens,
            "elapsed_s": progress.elapsed_s,
        }
        self._loss_sum, progress.window = self._zero(), new_window()
        return record

    def _write(self, record: Record) -> None:
        """Complete a record, and write it.

        evaluation_s: seconds of evaluations so far, beside training.
        diverged: the name of the number that is not finite, if one is not.
        """
        record["evaluation_s"] = self.progress.evaluation_s
        if self.not_finite:
            record["diverged"] = self.not_finite
        if self.writer:
            self.writer.append(record)

    def _evaluate(self) -> Record:
        """Measure the validation data without label smoothing, and note whether this step is the
        best so far. The first process measures; the others wait until it tells them."""
        progress = self.progress
        progress.elapsed_s += self._lap()
        measured: Numbers = {}
        if self.rank == 0:
            pairs = all_pairs(self.dataset, "valid")
            measured = evaluate(self.model, pairs, self.dataset.facts).numbers()
        measured = gather(measured)[0]
        if math.isfinite(measured["loss"]):
            progress.note_evaluation(measured["free_exact_match"], measured["loss"])
        else:
            self.not_finite = "validation loss"
        progress.evaluation_s += self._lap()
        return {
            "valid_exact_match": measured["free_exact_match"],
            "valid_token_accuracy": measured["forced_token_accuracy"],
            "valid_loss": measured["loss"],
        }

    # Divergence

    def _look_for_divergence(self) -> None:
        """Note the first number of the last steps that is not finite. It is the same in all
        processes. This waits for the device, so it is done before a record or a checkpoint, and not
        after every step."""
        for name, number in (("loss", self._loss_sum), ("gradient", self._grad_norm)):
            if not self.not_finite and not math.isfinite(float(number)):
                self.not_finite = name

    def divergence(self) -> str:
        """What diverged, the last good checkpoint, and the remedy."""
        good = self.saved_step
        left = "no checkpoint yet" if good is None else f"the last good checkpoint is step {good}"
        return (
            f"training diverged: the {self.not_finite} is not finite by step "
            f"{self.progress.step}; {left}; lower train.lr or train.clip_norm"
        )

    def _zero(self) -> Tensor:
        return torch.zeros((), dtype=self.model.dtype, device=self.device)

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint of this step, unless it is written or training has diverged. Raises
        UserError if it cannot be written."""
        if self.not_finite:
            return
        if self.writer and self.saved_step != self.progress.step:
            self.writer.save(*self.state(), self.settings.train.keep_checkpoints)
        self.saved_step, self._saved_at = self.progress.step, self.progress.elapsed_s

    def take_best(self) -> int:
        """At the end of the training, give the model the weights of the best checkpoint; if that is
        gone, it keeps the last ones. Returns their step. Raises UserError if it cannot be read."""
        assert self.writer is not None, "the first process keeps the checkpoints"
        last, best = self.progress.step, self.progress.best_step
        if best is None or best == last or best not in saved_steps(self.writer.path):
            return last
        load_weights(self.model, self.writer.path, best)
        return best

    def state(self) -> tuple[Progress, Tensors]:
        """All that a checkpoint holds: progress; weights, moments and step counts of AdamW, and the
        states of what dropout draws from, by their names in a checkpoint."""
        window = self.progress.window.model_copy(update={"loss": float(self._loss_sum)})
        progress = self.progress.model_copy(update={"window": window})
        random = {name: each.get_state() for name, each in self._generators().items()}
        return progress, self.tensors() | random

    def resume(self, run: Path) -> None:
        """Take over the newest checkpoint of a run, if it has one.

        Raises UserError if it cannot be read or is of another model, or if all of them are gone.
        """
        found = load_newest(run)
        if found is not None:
            with checkpoint_errors(run, found[0].step):
                self._restore(*found)

    def _restore(self, progress: Progress, tensors: Tensors) -> None:
        random = {name: tensors.pop(name) for name in [*tensors] if name.startswith("random/")}
        copy_into(self.tensors(), tensors)
        try:
            for name, generator in self._generators().items():
                if name in random or name == "random/cpu":  # the run may be of another device
                    generator.set_state(random[name])
        except (KeyError, RuntimeError, TypeError):
            raise ValueError("no random states of torch's") from None
        self.progress = progress
        self._loss_sum = self._zero() + progress.window.loss
        self.saved_step, self._saved_at = progress.step, progress.elapsed_s

    def tensors(self) -> Tensors:
        """Weights, and moments and step counts of AdamW, by their names in a checkpoint."""
        return weights_of(self.model) | {
            f"optimizer/{name}/{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state[parameter].items()
        }

    def _generators(self) -> dict[str, torch.Generator]:
        found, kind = generators(), self.device.type
        name = str(self.device) if kind == "cuda" else kind
        return {"random/cpu": found["cpu"], f"random/{kind}": found[name]}


def is_end(reason: StopReason | None) -> bool:
    """Whether a training has come to its end, where it is evaluated and saved. One that was
    interrupted goes on later, and of one that diverged nothing more is kept."""
    return reason not in (None, "interrupted", "diverged")
