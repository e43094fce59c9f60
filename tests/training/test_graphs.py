"""Recorded updates, without a GPU: the numbers of eager ones, from fixed memory."""

import json
from itertools import islice
from pathlib import Path

import pytest
import torch
from conftest import SCHEMES, config_of
from tape import Lifetimes, Tape, as_on_a_gpu

from toytrans.data import open_source
from toytrans.data.batches import training_batches
from toytrans.model.decoding import search
from toytrans.model.recorder import Recorder, RunAgain, Tables
from toytrans.training import graphs, session
from toytrans.training.graphs import RecordedUpdate, choose_recorder
from toytrans.training.run import create_run, read_records
from toytrans.training.trainer import Trainer

CPU = torch.device("cpu")
DATA = {"train_length": [1, 9], "batch_tokens": 128, "valid_examples": 8}
RUNS = ("recorded", "eager")
LAYERS = {"n_encoder_layers": 1, "n_decoder_layers": 1, "d_model": 8, "d_ff": 16}


class Noted(RunAgain):
    """Notes the order of calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def warm_up(self, work):
        self.calls.append("warm up")
        super().warm_up(work)

    def record(self, work):
        self.calls.append("record")

        def replay():
            self.calls.append("replay")
            work()

        return replay


def trainer_of(run: Path, recorder: Recorder | None = None, **sections) -> Trainer:
    train = {"precision": "fp32", "eval_every": 1000} | sections.pop("train", {})
    data, model = DATA | sections.pop("data", {}), LAYERS | sections.pop("model", {})
    config = config_of("reverse", data=data, model=model, train=train, **sections)
    source = open_source(config)
    create_run(run, config, source.facts, {})
    return Trainer(config, source, run, CPU, config.train.precision, recorder=recorder)


def numbers(trainer: Trainer, steps: int) -> list[torch.Tensor]:
    """Loss and gradient norm after each of some steps; then the weights."""
    found = []
    for dealt in islice(training_batches(trainer.source, trainer.config), steps):
        trainer._step([dealt])
        found += [trainer._loss_sum.clone(), trainer._grad_norm.clone()]
    return found + [parameter.detach().flatten() for parameter in trainer.model.parameters()]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    pairs = list(zip(found, expected, strict=True))
    assert pairs and all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(("precision", "steps"), [("fp32", 200), ("bf16", 30)])
def test_recorded_updates_have_the_numbers_of_eager_ones(tmp_path, precision, steps):
    """With dropout, whose random numbers a warm-up must not use up."""
    train = {"precision": precision, "label_smoothing": 0.1, "weight_decay": 0.1}
    sections = {"train": train, "model": {"dropout": 0.1}}
    noted = Noted()
    recorded = trainer_of(tmp_path / "recorded", noted, **sections)
    found = numbers(recorded, steps)
    assert_same(found, numbers(trainer_of(tmp_path / "eager", **sections), steps))
    shapes = len(recorded._update.recorded)
    assert 3 < shapes < 30 and noted.calls.count("replay") == steps
    assert noted.calls.count("warm up") == noted.calls.count("record") == shapes
    assert noted.calls[:3] == ["warm up", "record", "replay"]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_updates_from_fixed_memory_have_the_numbers_of_eager_ones(tmp_path, monkeypatch, scheme):
    """Each operation runs on the memory that it was recorded with; nothing is read back."""
    as_on_a_gpu(monkeypatch)
    sections = {"model": {**scheme, "dropout": 0.1}, "data": {"batch_tokens": 96}}
    recorded = trainer_of(tmp_path / "recorded", Tape(), **sections)
    found = numbers(recorded, 14)
    assert_same(found, numbers(trainer_of(tmp_path / "eager", **sections), 14))
    assert len(recorded._update.recorded) < 14, "some shapes came again"


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_no_table_is_replaced_after_the_first_record(tmp_path, scheme):
    """By no longer batch, and by no evaluation, which decodes as far as it may."""
    trainer = trainer_of(tmp_path / "run", RunAgain(), model=scheme)
    tables = Tables(trainer.model)
    stream = training_batches(trainer.source, trainer.config)
    shortest = min((dealt for dealt in islice(stream, 30)), key=lambda dealt: dealt[0].src.shape[1])
    trainer._step([shortest])
    before = tables.now()
    numbers(trainer, 12)
    trainer._evaluate()
    assert [id(table) for table in tables.now()] == [id(table) for table in before]
    names = ("sinusoidal", "rotary", "anchored", "alibi", "t5", "relative")
    has_tables = trainer.config.model.positions in names
    assert bool(before) == has_tables, "the schemes with tables are those named"


def test_a_table_that_is_replaced_all_the_same_stays_where_records_read_it(tmp_path):
    recorded = trainer_of(tmp_path / "run", RunAgain(), model={"positions": "sinusoidal"})
    numbers(recorded, 3)
    update, positions = recorded._update, recorded.model.positions
    old = positions._table
    positions.make_room(10_000, recorded.model.output.weight)
    assert positions._table is not old and any(kept is old for kept in update.tables.kept)


@pytest.mark.parametrize(
    ("scheme", "precision"),
    [*((scheme, "bf16_weights") for scheme in SCHEMES), (SCHEMES[-1], "fp32")],
    ids=str,
)
def test_what_a_record_reads_stays_where_it_was(tmp_path, monkeypatch, scheme, precision):
    """With evaluations between the steps, which decode further than any target goes."""
    as_on_a_gpu(monkeypatch)
    trainer = trainer_of(
        tmp_path / "run", Lifetimes(), model=scheme, train={"precision": precision}
    )
    trainer._searching = search
    for _ in range(3):
        numbers(trainer, 8)
        trainer._evaluate()
    shapes = len(trainer._update.recorded)
    assert 2 < shapes < 8, "shapes came again"


def test_memory_that_a_record_reads_and_that_is_gone_is_noticed(tmp_path, monkeypatch):
    as_on_a_gpu(monkeypatch)
    trainer = trainer_of(tmp_path / "run", Lifetimes(), model={"positions": "sinusoidal"})
    numbers(trainer, 3)
    trainer.model.positions._table = trainer.model.positions._table.clone()
    trainer._update.tables.kept.clear()
    with pytest.raises(AssertionError, match="is gone"):
        numbers(trainer, 3)


def test_a_recorded_run_resumes_with_the_same_numbers(tmp_path):
    """After a checkpoint amid the shapes: moments, random states and the learning rate go on."""
    sections = {
        "model": {"dropout": 0.2},
        "train": {"max_steps": 20, "log_every": 1, "eval_every": 10},
    }
    straight = trainer_of(tmp_path / "straight", RunAgain(), **sections)
    expected = [record["loss"] for record in straight.train()]
    first = trainer_of(tmp_path / "pieces", RunAgain(), **sections)
    losses = []
    for record in first.train():
        losses.append(record["loss"])
        first.interrupted = record["step"] == 13
    second = trainer_of(tmp_path / "pieces", RunAgain(), **sections)
    assert second.resume() == ["resumed at step 13"]
    losses += [record["loss"] for record in second.train()]
    assert losses == expected and second._update.recorded
    assert_same(list(second.model.parameters()), list(straight.model.parameters()))
    eager = trainer_of(tmp_path / "eager", **sections)
    assert [record["loss"] for record in eager.train()] == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_weights"])
def test_evaluations_between_recorded_updates_change_no_number(tmp_path, monkeypatch, precision):
    """Both are recorded; evaluation is fp32, and finds longer outputs from time to time."""
    as_on_a_gpu(monkeypatch)
    sections = {
        "model": {"positions": "sinusoidal", "dropout": 0.1},
        "data": {"train_length": [1, 5], "batch_tokens": 64, "valid_examples": 6},
        "train": {"max_steps": 9, "log_every": 3, "eval_every": 3, "precision": precision},
    }
    found = []
    for recorder in (Tape(), None):
        trainer = trainer_of(tmp_path / str(recorder), recorder, **sections)
        found.append([dict(record, elapsed_s=0) for record in trainer.train()])
        found.append([parameter.tolist() for parameter in trainer.model.parameters()])
    assert found[:2] == found[2:] and "valid_loss" in found[0][-1]


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"train": {"accumulate": 2}}, "train.accumulate"),
        ({"fault": "pad_is_eos"}, "fault pad_is_eos"),
        ({"model": {"backward": "by_hand"}}, "by_hand"),
        ({"train": {"precision": "fp64"}}, "fp64"),
        ({"model": {"kind": "rnn", "n_heads": 4, "d_ff": 256}}, "model.kind: rnn"),
        ({}, "several processes"),
    ],
    ids=str,
)
def test_what_cannot_be_recorded_is_eager_and_says_why(sections, reason):
    train = {"cuda_graphs": "on"} | sections.get("train", {})
    config = config_of(**(sections | {"train": train}))
    processes = 2 if "processes" in reason else 1
    recorder, said = choose_recorder(
        config, torch.device("cuda:0"), config.train.precision, processes
    )
    assert recorder is None and said.startswith("no CUDA graphs: ") and reason in said


def test_auto_and_off_record_nothing():
    for value in ("auto", "off"):
        config = config_of(train={"cuda_graphs": value})
        assert choose_recorder(config, torch.device("cuda:0"), "fp32", 1) == (None, "")


def test_a_recorded_run_says_so_and_notes_it(here, command, monkeypatch):
    """With the stand-in in the place of CUDA graphs, from the choice to environment.json."""
    config = config_of(train={"cuda_graphs": "on"})
    monkeypatch.setattr(graphs, "CudaRecorder", lambda device: RunAgain())
    recorder, said = choose_recorder(config, torch.device("cuda:0"), "fp32", 1)
    assert isinstance(recorder, RunAgain) and "recorded as a CUDA graph" in said
    monkeypatch.setattr(session, "choose_recorder", lambda *_: (recorder, said))
    answer = command("train", "--config", "c.yaml", "--out", "recorded")
    assert answer.code == 0 and f"recorded: cpu, fp32\n{said}\n" in answer.err
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert command("train", "--config", "c.yaml", "--out", "eager").code == 0
    found = [json.loads((here / name / "environment.json").read_text()) for name in RUNS]
    assert [one["cuda_graphs"] for one in found] == [True, False]
    records = [read_records(here / name) for name in RUNS]
    for record in sum(records, []):
        del record["elapsed_s"]
    assert records[0] == records[1]


def test_cuda_graphs_need_cuda(here, refused):
    said = refused("train", "--config", "c.yaml", "--set", "train.cuda_graphs=on")
    assert "train.cuda_graphs: on needs a CUDA device, not cpu" in said
    assert not (here / "runs").exists()


def test_a_recorded_update_takes_one_batch(tmp_path):
    trainer = trainer_of(tmp_path / "run", RunAgain())
    assert isinstance(trainer._update, RecordedUpdate)
    dealt = list(islice(training_batches(trainer.source, trainer.config), 2))
    with pytest.raises(ValueError, match="too many values"):
        trainer._step(dealt)
