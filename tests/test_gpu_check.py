"""scripts/gpu_check.py without a GPU: a stand-in takes the place of CUDA graphs."""

import json
from pathlib import Path

import pytest
from conftest import script

from toytrans.training.graphs import RecordedUpdate

QUICK = ["--device", "cpu", "--steps", "2", "--quick", "--seconds", "0.01", "--schemes", "none"]


def rows_of(out: Path, *parts: str) -> tuple[int, dict]:
    code = script("gpu_check").main([*parts, *QUICK, "--out", str(out)])
    return code, json.loads(out.read_text())


def test_every_part_runs_and_finds_no_difference(tmp_path):
    code, found = rows_of(tmp_path / "out.json")
    assert code == 0 and "stand-in" in found["device"]
    assert all(found["start"][0][way] > 0 for way in ("aside", "alone"))
    assert [row["precision"] for row in found["steps"]] == ["fp32", "bf16", "bf16_weights"]
    assert len(found["decoding"]) == 4
    assert all(row["equal"] == row["rows"] == 10 for row in found["decoding"])
    assert [row["bit_for_bit"] for row in found["resume"]] == [True]
    rates = [row["tokens_per_s"] for row in found["speed"] if "tokens_per_s" in row]
    assert len(rates) == 14 and min(rates) > 0


def test_a_difference_and_an_error_are_noticed(tmp_path, monkeypatch):
    call, done = RecordedUpdate.__call__, []

    def wrong(self, batches, *, lr):
        done.append(lr)
        if len(done) > 4:  # after the first two precisions
            raise ZeroDivisionError("ours")
        return call(self, batches, lr=2 * lr)

    monkeypatch.setattr(RecordedUpdate, "__call__", wrong)
    code, found = rows_of(tmp_path / "out.json", "steps")
    assert code == 1
    assert [row["verdict"] for row in found["steps"]] == ["DIFFERS", "DIFFERS", "ERROR"]
    assert "ZeroDivisionError" in found["steps"][2]["error"]


def test_a_machine_without_cuda_is_told_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.syspath_prepend(Path("scripts").absolute())
    monkeypatch.setattr("sys.argv", ["bench.py", "--device", "cuda"])
    for name, command in (("gpu_check", [["steps"]]), ("bench", [])):
        with pytest.raises(SystemExit) as stopped:
            script(name).main(*command)
        (line,) = capsys.readouterr().err.splitlines()
        assert stopped.value.code == 2 and "no CUDA device here" in line


def test_a_part_that_does_not_exist_is_named(capsys):
    with pytest.raises(SystemExit) as stopped:
        script("gpu_check").main(["step"])
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2 and "no part step; there are start, steps," in line
