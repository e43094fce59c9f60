"""scripts/gpu_check.py without a GPU: a stand-in takes the place of CUDA graphs."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import script

from toytrans.training.graphs import RecordedUpdate

QUICK = ["--device", "cpu", "--steps", "2", "--quick", "--seconds", "0.01"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script would start, say toytrans and itself, runs in this process."""

    def started(command: list[str], **_: object) -> str:
        assert command[1] == "-c"
        monkeypatch.setattr(sys, "argv", command[2:])
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(command[2], {})
        return printed.getvalue()

    def run(command: list[str]) -> SimpleNamespace:
        code = script("gpu_check").main(command[command.index("--device") - 1 :])
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(subprocess, "check_output", started)
    monkeypatch.setattr(subprocess, "run", run)
    answer = (1.5, {"exact_match": 1.0})
    monkeypatch.setattr(script("gpu_check").gpu_speed, "run_config", lambda *_: answer)


def rows_of(out: Path, *words: str) -> tuple[int, dict]:
    code = script("gpu_check").main([*words, *QUICK, "--out", str(out)])
    return code, json.loads(out.read_text())


def test_every_part_runs_and_finds_no_difference(tmp_path, here):
    code, found = rows_of(tmp_path / "out.json", "--schemes", "none")
    assert code == 0 and "stand-in" in found["device"]
    assert all(found["start"][0][way] > 0 for way in ("aside", "alone"))
    assert [row["precision"] for row in found["steps"]] == ["fp32", "bf16", "bf16_weights"]
    assert len(found["decoding"]) == 4
    assert all(row["equal"] == row["rows"] == 10 for row in found["decoding"])
    assert [row["equal"] for row in found["rounding"]] == [5]
    assert [row["bit_for_bit"] for row in found["resume"]] == [True]
    kernels = {row["kernel"]: row["fits"] for row in found["attention"]}
    assert kernels["MATH"] and not kernels["CUDNN_ATTENTION"]
    rates = [row["tokens_per_s"] for row in found["speed"][1:] + found["deterministic"]]
    assert len(rates) == 20 and min(rates) > 0
    assert [row.get("command_s") for row in found["solve"]] == [1.5, None, None]


def test_each_scheme_is_proved_in_a_process_of_its_own(tmp_path, here):
    words = ("resume", "--schemes", "none", "alibi", "--at-once", "1")
    code, found = rows_of(tmp_path / "out.json", *words)
    assert code == 0 and [row["scheme"] for row in found["resume"]] == ["none", "alibi"]


def test_a_difference_and_an_error_are_noticed(tmp_path, monkeypatch):
    call, done = RecordedUpdate.__call__, []

    def wrong(self, batches, *, lr):
        done.append(lr)
        if len(done) > 4:  # after the first two precisions
            raise ZeroDivisionError("ours")
        return call(self, batches, lr=2 * lr)

    monkeypatch.setattr(RecordedUpdate, "__call__", wrong)
    code, found = rows_of(tmp_path / "out.json", "steps", "--schemes", "none")
    assert code == 1
    assert [row["verdict"] for row in found["steps"]] == ["DIFFERS", "DIFFERS", "ERROR"]
    assert [row.get("first_step_apart") for row in found["steps"]] == [2, 2, None]
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
    assert stopped.value.code == 2 and "no part step; there are steps," in line
