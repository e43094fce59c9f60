"""scripts/gpu_check.py without a GPU: a stand-in takes the place of CUDA graphs."""

import json
import sys
from pathlib import Path

import pytest
from conftest import script

from toytrans.training.graphs import CudaSteps

QUICK = ["--device", "cpu", "--quick"]


def rows_of(out: Path) -> dict[str, list[dict]]:
    """The rows of each section of a file that the script has written."""
    found: dict[str, list[dict]] = {}
    for line in out.read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("section"), []).append(row)
    return found


@pytest.mark.slow
def test_every_section_runs_and_finds_no_difference(tmp_path):
    pytest.importorskip("transformers")
    out = tmp_path / "out.jsonl"
    assert script("gpu_check").main([*QUICK, "--out", str(out)]) == 0
    found = rows_of(out)
    assert list(found) == [
        "machine",
        "equality",
        "solving",
        "rates",
        "large",
        "decoding",
        "commands",
    ]
    assert {row["verdict"] for rows in found.values() for row in rows} == {"ok"}
    assert [row["precision"] for row in found["equality"]] == ["fp32", "bf16"]
    for row in found["equality"]:
        assert row["eager_twice"] == row["captured"] == row["resumed"] == 0
        assert row["shapes"] > 1
    assert found["solving"][0]["wall_s"] > found["solving"][0]["training_s"] > 0
    assert {row["who"] for row in found["rates"]} == {
        "ours",
        "ours, eager",
        "nn.Transformer",
        "BART",
    }
    assert all(row["rate"] > 0 for section in ("rates", "large") for row in found[section])
    assert all(row["same_as_on_cpu"] for row in found["commands"][1:])
    ways = {(row["who"], row["how"]) for row in found["decoding"] if "rate" in row}
    assert ways == {(who, how) for who in ("ours", "HF generate") for how in ("greedy", "beam")}


def test_a_difference_and_an_error_are_noticed(tmp_path, monkeypatch):
    take, done = CudaSteps.take, []

    def wrong(self, step, parts, tokens, lr):
        done.append(lr)
        if len(done) > 48:  # the four trainings of the first precision
            raise ZeroDivisionError("ours")
        return take(self, step, parts, tokens, 2 * lr if self.capture else lr)

    monkeypatch.setattr(CudaSteps, "take", wrong)
    out = tmp_path / "out.jsonl"
    assert script("gpu_check").main(["equality", "large", *QUICK, "--out", str(out)]) == 1
    found = rows_of(out)
    assert [row["verdict"] for row in found["equality"]] == ["DIFFERS", "ERROR"]
    assert "ZeroDivisionError" in found["equality"][1]["error"]
    assert [row["verdict"] for row in found["large"]] == ["ok"]


def test_what_there_is_no_time_for_is_named(tmp_path):
    out = tmp_path / "out.jsonl"
    sections = ["solving", "equality", *QUICK, "--minutes", "0"]
    assert script("gpu_check").main([*sections, "--out", str(out)]) == 0
    found = rows_of(out)
    assert found["solving"][0]["left_out"] == ["textbook, as it is", "textbook, TOYTRANS_EAGER=1"]
    assert found["equality"][0]["left_out"] == ["sinusoidal, fp32", "sinusoidal, bf16"]


def test_the_rows_of_a_missing_library_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    out = tmp_path / "out.jsonl"
    assert script("gpu_check").main(["rates", *QUICK, "--out", str(out)]) == 0
    verdicts = {(row["who"], row["verdict"]) for row in rows_of(out)["rates"]}
    assert ("BART", "SKIPPED") in verdicts and ("nn.Transformer", "ok") in verdicts
