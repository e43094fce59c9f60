"""scripts/gpu_check.py without a GPU: a stand-in takes the place of CUDA graphs."""

import json

from conftest import script

from toytrans.training.graphs import GraphedUpdate

QUICK = ["--device", "cpu", "--steps", "2", "--quick", "--schemes", "none"]


def test_every_part_runs_and_finds_no_difference(tmp_path):
    out = tmp_path / "out.json"
    assert script("gpu_check").main([*QUICK, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert "stand-in" in found["device"]
    assert [row["precision"] for row in found["steps"]] == ["fp32", "bf16"]
    assert [row["resumed"] for row in found["resume"]] == [0]


def test_a_difference_and_an_error_are_noticed(tmp_path, monkeypatch):
    call, done = GraphedUpdate.__call__, []

    def wrong(self, batches, *, lr):
        done.append(lr)
        if len(done) > 2:  # after the first precision
            raise ZeroDivisionError("ours")
        return call(self, batches, lr=2 * lr)

    monkeypatch.setattr(GraphedUpdate, "__call__", wrong)
    out = tmp_path / "out.json"
    assert script("gpu_check").main(["steps", *QUICK, "--out", str(out)]) == 1
    rows = json.loads(out.read_text())["steps"]
    assert [row["verdict"] for row in rows] == ["DIFFERS", "ERROR"]
    assert "ZeroDivisionError" in rows[1]["error"]
