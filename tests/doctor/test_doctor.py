"""What the doctor finds: in made-up records, in runs that were really trained, and where nothing
is wrong; and what it says of a machine."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ANCHORED, VOCABULARY, config_of, tiny_yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import toytrans
from toytrans.data.open import open_dataset
from toytrans.data.pairs import DataFacts
from toytrans.doctor.findings import examine
from toytrans.doctor.record import (
    RunSnapshot,
    TargetStats,
    overview,
    read_snapshot,
    target_stats,
)
from toytrans.training.provenance import settings_of_numbers

TARGETS = TargetStats(tokens=tuple(range(2, 22)), entropy=math.log(20), train_size=None)
"""Validation targets of lengths 1 to 20, of twenty symbols."""

LEARNS = [3.1, 2.9, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01]
STAYS = [3.1, 2.6] + [2.2] * 18


def a_case(losses=LEARNS, valid=(1.0, 1.0, 0.01), max_steps=None, **changes) -> RunSnapshot:
    """A run of ten steps a record. valid: exact match, token accuracy and loss at its end."""
    size = len(losses)
    sections = {name: changes.pop(name, {}) for name in ("data", "model", "train")}
    limits = {"max_steps": max_steps or 10 * size, "warmup_steps": 10}
    sections["train"] = limits | sections["train"]
    config = config_of(**sections, fault=changes.pop("fault", None))
    columns = {"lr": 3e-3, "grad_norm": 0.5, "padding": 1.1} | changes.pop("columns", {})
    records = [
        {"step": 10 * k, "loss": loss, "target_tokens": 9000 * k, "elapsed_s": 0.2 * k}
        | {name: each[k - 1] if isinstance(each, list) else each for name, each in columns.items()}
        for k, loss in enumerate(losses, 1)
    ]
    for record in records:
        if record["loss"] is None:
            record["diverged"] = "loss"
    if valid is not None:
        names = ("valid_exact_match", "valid_token_accuracy", "valid_loss")
        records[-1] |= dict(zip(names, valid, strict=True))
    facts = DataFacts(VOCABULARY, (1, 6))
    case = RunSnapshot(config, facts, records, {10 * size: ""}, targets=TARGETS)
    return replace(case, **changes)


def names(case: RunSnapshot) -> list[str]:
    return [finding.name for finding in examine(case)]


POOR = {"losses": STAYS, "valid": (0.1, 0.3, 2.2)}
FEW = replace(TARGETS, train_size=100)
RISES = [3.0] + [0.5] * 14 + [2.0] * 5
FALLS = [3.0 - 0.1 * k for k in range(20)]
TOO_LARGE = [3.0, 9.0, 8.0] + [1.0] * 17
LONG = POOR | {"max_steps": 300, "train": {"warmup_steps": 250}}
LONGER = POOR | {"data": {"valid_length": [1, 9]}, "model": {"positions": "sinusoidal"}}
AT_END = "training loss 0.0200, step 120: free-running exact match 0.000, token accuracy 0.200"
CASES = [
    ("fault", {"fault": "no_causal"}, "the decoder's self-attention"),
    ("reads_the_future", {"valid": (0.0, 1.0, 0.01)}, "Fed the target, a pair has 0.00 wrong"),
    ("one_error_each", {"valid": (0.0, 1 - 1 / 11.5, 0.05)}, "at random places would leave 0.40"),
    ("trained_on_something_else", {"valid": (0.0, 0.2, 3.0)}, AT_END),
    ("overfitted", {"valid": (0.5, 0.9, 0.6), "targets": FEW}, "100 pairs"),
    (
        "learned_nothing",
        {"losses": [3.0] * 20, "valid": (0.0, 0.05, 3.0)},
        "loss 3.00; token frequencies alone would give 3.00",
    ),
    ("plateau", POOR, "errors at random places would give 0.006"),
    ("too_short", {"losses": FALLS, "valid": (0.1, 0.3, 1.0)}, "third quarter, 1.300 in the last"),
    ("unstable", {"losses": RISES, "valid": (0.3, 0.6, 2.0)}, "third quarter, 2.000 in the last"),
    ("plateau unstable", {"losses": TOO_LARGE, "valid": (0.3, 0.6, 1.0)}, "9.00 at step 20"),
    ("vanished plateau", POOR | {"columns": {"grad_norm": 1e-5}}, "median norm 1.0e-05"),
    ("cut_short still_warming_up", LONG, "step 200 of 300"),
    ("plateau unseen_lengths", LONGER, "trained 1 to 6, valid 1 to 9"),
    ("untrained", {"records": [], "damage": {}}, "no record"),
    ("no_checkpoint", {"damage": {}}, "step 120 was reached"),
]
"""What is found in a run, the worst first, what the run is like, and a part of the evidence."""

WRONG = {"fault", "reads_the_future", "one_error_each", "trained_on_something_else", "vanished"}
WRONG |= {"learned_nothing", "no_checkpoint"}


@pytest.mark.parametrize(
    ("expected", "changes", "evidence"), CASES, ids=lambda value: str(value)[:30]
)
def test_each_finding_comes_with_its_evidence(expected, changes, evidence):
    found = examine(a_case(**changes))
    assert [finding.name for finding in found] == expected.split()
    assert any(evidence in finding.evidence for finding in found), found
    for finding in found:
        assert finding.remedy and finding.what.endswith(".")
        assert (finding.severity == "wrong") == (finding.name in WRONG)


def test_a_run_that_solved_its_task_is_not_asked_why_it_learned_little():
    weak = {"columns": {"grad_norm": 1e-5}, "losses": STAYS}
    assert "vanished" in names(a_case(**weak, valid=(0.5, 0.9, 2.2)))
    assert names(a_case(**weak, valid=(0.95, 0.99, 0.1))) == []


def test_an_evaluation_is_put_beside_the_training_of_its_time():
    early = a_case(valid=None)
    early.records[2] |= {"valid_exact_match": 0.0, "valid_token_accuracy": 0.3, "valid_loss": 1.9}
    assert names(early) == [], "the loss was 2.0 then, and is 0.01 now"
    lost = a_case([3.0] * 4 + [0.1] * 15 + [1.5], (0.2, 0.6, 1.4))
    assert "trained_on_something_else" not in names(lost), "it has just lost its way"
    broken = a_case([3.0] * 4 + [0.05] * 16, (0.2, 0.6, 1.4))
    assert names(broken) == ["trained_on_something_else"]


def test_a_loss_that_is_no_number_is_a_divergence():
    case = a_case([3.0, 2.0, None], max_steps=100)
    assert names(case) == ["diverged"]
    assert "by step 30, rate 0.003; loss 2 at step 20" in examine(case)[0].evidence
    assert json.dumps(overview(case))


def test_label_smoothing_lifts_the_loss_of_a_perfect_model():
    """For V = 14 and a share of 0.14: probabilities 0.87 and thirteen times 0.01."""
    case = a_case(train={"label_smoothing": 0.14})
    assert len(case.facts.vocabulary) == 14
    smoothed = -0.87 * math.log(0.87) - 0.13 * math.log(0.01)
    assert case.floors == pytest.approx((smoothed, -math.log(0.87)))
    assert a_case().floors == (0, 0)


@settings(deadline=None, max_examples=60)
@given(errors=st.lists(st.integers(0, 20), min_size=20, max_size=20))
def test_no_pattern_of_errors_of_a_sound_decoder_looks_like_a_leak(errors):
    """Errors under teacher forcing, pair by pair; an output is right where there are none."""
    errors = [min(e, n) for e, n in zip(errors, TARGETS.tokens, strict=True)]
    exact = sum(e == 0 for e in errors) / len(errors)
    accuracy = 1 - sum(errors) / sum(TARGETS.tokens)
    found = names(a_case(STAYS, valid=(exact, accuracy, 2.2)))
    assert "reads_the_future" not in found
    leaking = names(a_case(STAYS, valid=(max(0.0, exact - 0.05), 1.0, 2.2)))
    assert "reads_the_future" in leaking


def test_what_the_texts_of_a_split_tell():
    source = open_dataset(config_of("copy", data={"symbols": 7, "valid_examples": 400}))
    pairs = source.pairs("valid", torch.arange(400))
    texts = target_stats(pairs, None)
    assert texts.mean_tokens == pytest.approx(float(pairs.tgt_length.double().mean()) + 1)
    symbols, ends = int(pairs.tgt_length.sum()), 400
    share = ends / (symbols + ends)
    ideal = -share * math.log(share) - (1 - share) * math.log((1 - share) / 7)
    assert texts.entropy == pytest.approx(ideal, abs=0.02), "seven symbols, all as frequent"
    assert texts.by_chance(0.5) == pytest.approx(
        sum(0.5 ** (n + 1) for n in pairs.tgt_length.tolist()) / 400
    )


def train(path: Path, **sections) -> Path:
    """A small run of `reverse`."""
    data = {"task": "reverse", "symbols": 8, "train_length": [1, 6], "batch_tokens": 256}
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1, "d_model": 32, "d_ff": 64}
    steps = {"max_steps": 100, "lr": 1e-2, "warmup_steps": 20, "log_every": 4, "precision": "fp32"}
    config = {
        "data": data | {"valid_examples": 60} | sections.pop("data", {}),
        "model": ANCHORED | layers | sections.pop("model", {}),
        "train": steps,
        **sections,
    }
    toytrans.train(config, path)
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("sound") / "run")


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"fault": "no_causal"}, "reads_the_future"),
        ({"fault": "labels_not_shifted"}, "trained_on_something_else"),
        ({"fault": "pad_is_eos"}, "one_error_each"),
        ({"data": {"train_examples": 40}, "model": {"positions": "sinusoidal"}}, "overfitted"),
    ],
    ids=str,
)
def test_runs_that_are_broken_are_found_out(tmp_path, sections, expected):
    """Faults are found by the record alone: the config is made to say nothing of them."""
    case = read_snapshot(train(tmp_path / "run", **sections))
    case = replace(case, settings=case.settings.model_copy(update={"fault": None}))
    assert expected in names(case)


def test_a_sound_run_looks_sound(sound, command):
    case = read_snapshot(sound)
    assert case.best["valid_exact_match"] >= 0.99, "it has learned"
    done = command("doctor", str(sound))
    assert done.code == 0 and "nothing looks wrong" in done.out
    document = json.loads(command("doctor", str(sound), "--json").out)
    assert document["healthy"] and document["symptoms"] == []
    assert document["looked_at"]["exact_match"] == case.best["valid_exact_match"]


def test_a_damaged_run_is_told_with_the_remedy(sound, tmp_path, command):
    path = Path(shutil.copytree(sound, tmp_path / "run"))
    weights = path / "checkpoints" / "step-100.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 101, "loss": "much"}\n[]\n{"step": 999}\n\x00\n{"st')
    (path / "environment.json").write_text("[]")
    done = command("doctor", str(path), "--json")
    (found,) = json.loads(done.out)["symptoms"]
    assert done.code == 1 and found["name"] == "damaged_checkpoint"
    assert "wrong checksum" in found["evidence"] and "--checkpoint 75" in found["remedy"]
    shown = command("doctor", str(path))
    assert shown.code == 1 and "remedy: " in shown.out


def test_a_damaged_checkpoint_is_never_the_remedy_for_another():
    damage = dict.fromkeys((30, 60, 90), "FILE: cut short; REMEDY")
    found = examine(a_case(damage={20: ""} | damage | {120: ""}))
    assert ["--checkpoint 20" in finding.remedy for finding in found] == [True] * 3
    (first,) = examine(a_case(damage={30: "cut short", 120: ""}))
    assert "--checkpoint 120" in first.remedy
    assert {finding.remedy for finding in examine(a_case(damage=damage))} == {"train again"}


def test_a_run_whose_data_is_gone_is_told_without_it(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("1 2\t2 1\n3\t3\n4 1\t1 4\n" * 9)
    files = dict.fromkeys(("train", "valid", "test"), "pairs.tsv")
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}))
    assert command("train", "--config", "c.yaml", "--out", "run").code == 0
    Path("pairs.tsv").unlink()
    done = command("doctor", "run")
    assert done.code in (0, 1) and done.err == "" and "data not read" in done.out


def test_the_machine_is_described_and_what_would_stop_a_training(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    done = command("doctor", "--json")
    found = json.loads(done.out)
    assert done.code == 0 and found["problems"] == []
    assert found["runs"] == str(tmp_path / "runs")
    assert torch.__version__.startswith(found["packages"]["torch"])  # wheels leave "+cu130" out
    assert found["threads"] == torch.get_num_threads() and "cpu" in found["devices"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    usage = shutil.disk_usage(tmp_path)._replace(free=3 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    done = command("doctor")
    assert done.code == 1 and "3 MiB are free" in " ".join(done.out.split())


def test_what_can_change_numbers_is_in_every_runs_environment(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    torch.set_float32_matmul_precision("medium")
    found = settings_of_numbers()
    assert found["threads"] == torch.get_num_threads()
    assert found["switches"]["MKL_CBWR"] == "COMPATIBLE"
    assert found["matmul_precision"] == "medium"
