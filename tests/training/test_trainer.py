"""The training loop: steps against torch, records, and reasons to stop."""

import math
from itertools import islice
from pathlib import Path

import pytest
import torch
from conftest import trainer_of
from torch.nn import functional as F

from toytrans.config.schedules import SCHEDULES, learning_rate
from toytrans.config.schema import TrainConfig
from toytrans.data.batches import training_batches
from toytrans.model.transformer import Transformer
from toytrans.training import trainer as trainer_module
from toytrans.training.checkpoint import load_checkpoint, saved_steps
from toytrans.training.optimization import summed_loss
from toytrans.training.resume import first_difference
from toytrans.training.run import Run

DATA = {"batch_tokens": 256, "valid_examples": 30, "test_examples": 30}


def test_steps_are_clipped_adamw_steps_at_the_scheduled_rate(tmp_path):
    """Ten steps beside a loop written out with torch alone. Biases and norms do not decay."""
    train = {"max_steps": 10, "lr": 0.01, "warmup_steps": 4, "clip_norm": 0.5, "accumulate": 2}
    train |= {"schedule": "constant", "weight_decay": 0.1, "betas": [0.8, 0.95], "eps": 1e-3}
    trainer = trainer_of(tmp_path / "run", data=DATA, train=train)
    config = trainer.settings
    torch.manual_seed(config.seed)
    twin = Transformer(config.model, trainer.dataset.facts.vocabulary)
    adamw = torch.optim.AdamW(
        [
            {"params": [p], "weight_decay": 0.1 * (p.dim() > 1 and "bias" not in name)}
            for name, p in twin.named_parameters()
        ],
        betas=(0.8, 0.95),
        eps=1e-3,
    )
    stream = training_batches(trainer.dataset, config)
    for step in range(1, 11):
        batches = [batch for batch, _ in islice(stream, 2)]
        tokens = sum(int((batch.tgt_out != 0).sum()) for batch in batches)
        for batch in batches:
            logits = twin(batch.src, batch.tgt_in).flatten(0, 1)
            loss = F.cross_entropy(logits, batch.tgt_out.flatten(), ignore_index=0, reduction="sum")
            (loss / tokens).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        for group in adamw.param_groups:
            group["lr"] = 0.01 * min(1, step / 4)
        adamw.step()
        adamw.zero_grad()
    list(trainer.train())
    for ours, theirs in zip(trainer.model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_what_is_measured_at_the_end_has_the_weights_of_the_best_checkpoint(tmp_path):
    """At such a rate the first evaluation is the best one."""
    train = {"max_steps": 8, "eval_every": 2, "lr": 1.0, "warmup_steps": 0, "schedule": "constant"}
    trainer = trainer_of(tmp_path / "run", data=DATA, train=train)
    list(trainer.train())
    best = trainer.take_best()
    assert best == trainer.progress.best_step < trainer.progress.step
    _, saved = load_checkpoint(tmp_path / "run", best)
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, saved[f"weights/{name}"]), name


def test_records_hold_what_the_design_says(tmp_path):
    trainer = trainer_of(
        tmp_path / "run", data=DATA, train={"max_steps": 7, "log_every": 2, "eval_every": 3}
    )
    yielded = list(trainer.train())
    run = tmp_path / "run"
    assert yielded == Run.open(run).records
    assert [record["step"] for record in yielded] == [2, 3, 4, 6, 7]
    always = ["step", "loss", "lr", "grad_norm", "padding", "target_tokens", "elapsed_s"]
    always.append("evaluation_s")
    valid = ["valid_exact_match", "valid_token_accuracy", "valid_loss"]
    for record in yielded:
        expected = always + valid if record["step"] in (3, 6, 7) else always
        assert sorted(record) == sorted(expected)
    assert trainer.stop_reason == "max_steps"
    assert saved_steps(run) == sorted({6, 7, trainer.progress.best_step})
    stream = training_batches(trainer.dataset, trainer.settings)
    batches = [batch for batch, _ in islice(stream, 7)]
    assert yielded[-1]["target_tokens"] == sum(batch.target_tokens for batch in batches)
    last = batches[-1]
    assert yielded[-1]["padding"] == pytest.approx(last.padded_tokens / last.real_tokens)


@pytest.mark.parametrize(
    ("train", "reason", "step"),
    [
        ({"max_steps": 3}, "max_steps", 3),
        ({"max_steps": 10**6, "max_seconds": 0.2}, "max_seconds", None),
        ({"max_steps": 50, "eval_every": 2, "stop_at_exact_match": 0.0}, "stop_at_exact_match", 2),
        ({"max_steps": 50, "eval_every": 1, "lr": 1e-30, "patience": 3}, "patience", 4),
        ({"max_steps": 50, "lr": 1e30, "warmup_steps": 0, "clip_norm": None}, "diverged", None),
        ({"max_steps": 0}, "max_steps", 0),
    ],
)
def test_every_reason_to_stop(tmp_path, train, reason, step):
    trainer = trainer_of(tmp_path / "run", data=DATA, train={"log_every": 1} | train)
    list(trainer.train())
    assert trainer.stop_reason == reason
    assert bool(saved_steps(tmp_path / "run")) == (reason != "diverged")
    assert step is None or trainer.progress.step == step


def spoil(trainer, monkeypatch, step: int, what: str) -> None:
    """Make a number infinite or NaN as soon as a step was taken."""
    update, evaluate = trainer.update, trainer_module.evaluate

    def spoilt(parts, tokens, lr):
        loss, norm = update(parts, tokens, lr)
        if trainer.progress.step == step - 1:
            loss = loss * math.inf if what == "loss" else loss
            norm = norm * math.nan if what == "gradient" else norm
        return loss, norm

    def measure(model, *given):
        if trainer.progress.step == step and what == "validation loss":
            with torch.no_grad():
                next(model.parameters()).fill_(math.nan)
        return evaluate(model, *given)

    monkeypatch.setattr(trainer, "update", spoilt)
    monkeypatch.setattr(trainer_module, "evaluate", measure)


@pytest.mark.parametrize(
    ("what", "step", "every", "saved"),
    [
        ("loss", 4, 2, 2),
        ("gradient", 6, 2, 4),
        ("validation loss", 4, 2, 2),
        ("validation loss", 6, 2, 4),
        ("loss", 3, 6, 2),  # between two records, where a save is overdue after each step
    ],
)
def test_what_is_not_finite_ends_training_and_is_not_saved(
    tmp_path, monkeypatch, what, step, every, saved
):
    train = {"max_steps": 6, "eval_every": every, "log_every": every}
    trainer = trainer_of(tmp_path / "run", data=DATA, train=train)
    spoil(trainer, monkeypatch, step, what)
    if every > step:
        monkeypatch.setattr("toytrans.training.trainer.SECONDS_BETWEEN_SAVES", 0.0)
    list(trainer.train())
    assert (trainer.stop_reason, trainer.not_finite) == ("diverged", what)
    run = tmp_path / "run"
    assert trainer.progress.step == step and saved_steps(run)[-1] == saved
    told = f"training diverged: the {what} is not finite by step {step}; the last good checkpoint"
    assert f"{told} is step {saved}; lower train.lr" in trainer.divergence()
    record = Run.open(run).records[-1]
    assert (record["step"], record["diverged"]) == (step, what)
    if what == "validation loss":
        assert record["valid_loss"] is None


class Arriving(list):
    """Signals, of which one arrives after so many looks at them that follow a step."""

    def __init__(self, trainer, step: int, looks: int) -> None:
        self.trainer, self.step, self.looks = trainer, step, looks

    def __bool__(self) -> bool:
        now = self.trainer.progress.step
        if now == self.step:
            self.looks -= 1
        return now > self.step or self.looks < 0


@pytest.mark.parametrize("looks", [0, 1])
def test_a_signal_saves_nothing_that_has_diverged_whenever_it_arrives(tmp_path, monkeypatch, looks):
    """Also between two looks at the signals of one step, which leaves no time for another step."""
    train = {"max_steps": 6, "eval_every": 6, "log_every": 6}
    trainer = trainer_of(tmp_path / "run", data=DATA, train=train)
    spoil(trainer, monkeypatch, 3, "loss")
    trainer.signals = signals = Arriving(trainer, 3, looks)
    list(trainer.train())
    assert signals.looks < looks, "it was looked at"
    assert saved_steps(tmp_path / "run") == []
    assert (trainer.stop_reason, trainer.not_finite) == ("diverged", "loss")


@pytest.mark.usefixtures("here")
def test_a_command_whose_training_diverges_has_exit_code_1(command):
    answer = command("train", "c.yaml", "--out", "r", "--set", "train.lr=1e30")
    assert answer.code == 1 and answer.out == "" and not saved_steps(Path("r"))
    assert "; no checkpoint yet; lower train.lr" in answer.err.splitlines()[-1]


def test_the_loss_ignores_pads_and_smooths_as_torch_does():
    logits = torch.randn(2, 3, 5)
    tgt_out = torch.tensor([[3, 2, 0], [4, 4, 2]])
    real = tgt_out != 0
    expected = F.cross_entropy(logits[real], tgt_out[real], reduction="sum", label_smoothing=0.1)
    assert summed_loss(logits, tgt_out, 0.1).item() == pytest.approx(expected.item(), rel=1e-6)
    changed = logits.clone()
    changed[0, 2] += 100
    assert summed_loss(changed, tgt_out).item() == summed_loss(logits, tgt_out).item()


RATES = {
    "constant": [1, 1, 1],
    "linear": [0.02 + 0.98 * 0.75, 0.02 + 0.98 * 0.5, 0.02],
    "cosine": [0.02 + 0.98 * (1 + math.sqrt(0.5)) / 2, 0.02 + 0.98 * 0.5, 0.02],
    "inverse_sqrt": [math.sqrt(10 / 35), math.sqrt(10 / 60), math.sqrt(10 / 110)],
}
"""Shares of the peak by each schedule: a quarter, half and all of the way behind the warm-up."""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_rise_straight_and_fall_by_schedule(schedule):
    assert schedule in RATES, f"work out some rates of {schedule} by hand, and put them into RATES"
    config = TrainConfig(lr=1.0, max_steps=110, warmup_steps=10, schedule=schedule)
    found = [learning_rate(step, config) for step in (1, 5, 10, 35, 60, 110)]
    assert found == pytest.approx([0.1, 0.5, 1.0, *RATES[schedule]])


@pytest.mark.parametrize("task", ["copy", "lexicon"])
def test_data_follow_data_seed_and_weights_follow_seed(task, tmp_path):
    def drawn(name: str, **seeds) -> tuple[list, list[bytes], object]:
        """Some batches, the weights, and the facts of the data."""
        trainer = trainer_of(tmp_path / name, task, **seeds)
        stream = training_batches(trainer.dataset, trainer.settings)
        batches = [batch.src.tolist() for batch, _ in islice(stream, 3)]
        weights = [each.detach().numpy().tobytes() for each in trainer.model.parameters()]
        return batches, weights, trainer.dataset.facts

    batches, weights, facts = drawn("plain", seed=3)
    other = drawn("other weights", seed=9, data={"seed": 3})
    assert other[0] == batches and other[1] != weights and other[2] == facts
    other = drawn("other data", seed=3, data={"seed": 9})
    assert other[0] != batches and other[1] == weights
    assert task == "copy" or other[2] != facts, "its dictionary"


def test_the_first_other_rate_of_a_long_training_is_found_to_the_step():
    """Both warm up alike for 100 steps; the linear decay of each is longer than the one before."""
    short, long = (TrainConfig(max_steps=n, warmup_steps=100) for n in (20_000, 100_000))
    assert first_difference(short, long, 1) == 101
    assert first_difference(short, short, 1) is None
