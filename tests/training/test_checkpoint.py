"""Checkpoints: what is kept, what is verified."""

import json

import pytest
import torch
from conftest import config_of

import toytrans
from toytrans.data.open import open_dataset
from toytrans.errors import UserError
from toytrans.training.checkpoint import (
    Checkpoint,
    Progress,
    load_checkpoint,
    pick_step,
    save_checkpoint,
    saved_steps,
)
from toytrans.training.run import RunFolder, create_run
from toytrans.training.trainer import Trainer


@pytest.fixture
def run(tmp_path):
    """Five steps, a checkpoint after each, the best of them not among the last two."""
    config = config_of(
        data={"valid_examples": 20, "test_examples": 20, "batch_tokens": 256},
        train={"max_steps": 5, "eval_every": 1},
    )
    source = open_dataset(config)
    create_run(tmp_path / "run", config, source.facts, {})
    trainer = Trainer(config, source, tmp_path / "run", torch.device("cpu"), "fp32")
    list(trainer.train())
    return tmp_path / "run"


def empty(step: int, best: int | None = None) -> Checkpoint:
    tensor = {"x": torch.tensor([step])}
    return Checkpoint(Progress(step=step, best_step=best), tensor, tensor, tensor)


def test_the_newest_two_and_the_best_are_kept(tmp_path):
    for step, best in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 2)):
        save_checkpoint(tmp_path, empty(step, best))
    assert saved_steps(tmp_path) == [2, 4, 5]
    assert [pick_step(tmp_path, which) for which in ("best", "last", "4")] == [2, 5, 4]


def test_a_checkpoint_holds_what_was_saved(tmp_path):
    tensors = {"a.b": torch.randn(2, 3), "n": torch.tensor(7), "bytes": torch.arange(9).byte()}
    progress = Progress(step=3, dealt=99, best_loss=0.25, window={"tokens": 12, "loss": 0.1})
    save_checkpoint(tmp_path, Checkpoint(progress, tensors, {"t": tensors["a.b"].T}, tensors))
    found = load_checkpoint(tmp_path, 3)
    assert found.progress == progress
    assert all(torch.equal(found.weights[name], tensors[name]) for name in tensors)
    assert torch.equal(found.optimizer["t"], tensors["a.b"].T)


def test_drafts_of_a_crash_are_no_checkpoints_and_go_away(tmp_path):
    folder = tmp_path / "checkpoints"
    (folder / ".step-9").mkdir(parents=True)
    save_checkpoint(tmp_path, empty(1))
    assert saved_steps(tmp_path) == [1]
    assert [entry.name for entry in folder.iterdir()] == ["step-1"]


def test_a_run_is_loaded_in_python_in_five_lines(run):
    loaded = toytrans.load(run)
    assert not loaded.model.training
    assert loaded.vocabulary.symbols == tuple(str(k) for k in range(7))
    assert len(loaded.translate(["1 2", "", "3"])) == 3
    with pytest.raises(UserError, match="symbol '9' is not in the vocabulary"):
        loaded.translate(["9"])


def test_weights_are_stored_once_and_must_fit(run):
    weights = load_checkpoint(run, 5).weights
    assert "output.weight" not in weights and "src_embedding.weight" in weights
    text = (run / "config.yaml").read_text().replace("d_model: 16", "d_model: 32")
    (run / "config.yaml").write_text(text)
    with pytest.raises(UserError, match="has shape .* do not belong together"):
        RunFolder.open(run).load()


def test_a_newer_format_is_refused(run):
    path = run / "checkpoints/step-5/checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(UserError, match="newer"):
        load_checkpoint(run, 5)


def test_resuming_skips_a_damaged_checkpoint_and_says_so(run):
    (run / "checkpoints/step-5/optimizer.safetensors").write_bytes(b"")
    saved, facts = RunFolder.open(run).load("last").config, RunFolder.open(run).load("last").facts
    assert facts.train_length == (1, 6)
    trainer = Trainer(saved, open_dataset(saved), run, torch.device("cpu"), "fp32")
    notes = trainer.resume()
    assert "step-5" in notes[0] and "cut short or changed" in notes[0]
    assert notes[1] == "resumed at step 4"
