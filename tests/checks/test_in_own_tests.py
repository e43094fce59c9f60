"""The checks in somebody's own tests: an item of pytest for each, and failures that are saved."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from toytrans.errors import UserError
from toytrans.testing import CheckFailed, asker, parametrize_checks

MODEL = """
import torch
from torch import nn

class Running(nn.Module):
    '''ids -> logits: a running mean of embeddings, and a thousandth of the next one.'''

    def __init__(self, leak=1e-3):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.leak = leak

    def forward(self, ids):
        x = self.tokens(ids) * (ids != 0)[..., None]
        at = torch.arange(1, ids.shape[1] + 1)[:, None].to(x)
        y = x.cumsum(1) / at + self.leak * nn.functional.pad(x[:, 1:], (0, 0, 0, 1))
        return self.out(y.tanh() + x)

GIVEN = {"kind": "decoder", "pad_id": 0, "vocabulary_size": 20}

def leaking():
    return {"model": Running(), **GIVEN}

def wrong_labels():
    def batch(pairs):
        ids = torch.tensor([[1, *(target + [0] * 9)[:9]] for _, target in pairs])
        return ids, ids, ids
    loss = lambda logits, labels: nn.functional.cross_entropy(logits.mT, labels, ignore_index=0)
    return {"model": Running(0.0), "batch": batch, "loss": loss, **GIVEN}
"""

TESTS = """
from mine import GIVEN, Running
from toytrans.testing import parametrize_checks

@parametrize_checks(Running(), effort="quick", only="pads,future,calls,steps", **GIVEN)
def test_leaking(check):
    check()

@parametrize_checks(
    Running(), effort="quick", only="future,calls", **GIVEN,
    expected={"future.shift": "it looks ahead", "calls": "it counts"},
)
def test_as_meant(check):
    check()

@parametrize_checks(
    Running(), effort="quick", only="future", **GIVEN,
    expected={"future.mask_missing": "it sees all"},
)
def test_of_another_cause(check):
    check()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    yield tmp_path
    sys.modules.pop("mine", None)


class Reports:
    """What became of each item, as a plugin of pytest."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome == "skipped":
            name = report.nodeid.partition("::")[2]
            is_expected = hasattr(report, "wasxfail")
            self.outcomes[name] = f"{'x' * is_expected}{report.outcome}"
            self.texts[name] = report.longreprtext + getattr(report, "wasxfail", "")


def test_each_check_is_an_item_of_pytest(mine: Path):
    (mine / "test_mine.py").write_text(TESTS)
    reports = Reports()
    pytest.main(["-c", "/dev/null", "-p", "no:terminal", "test_mine.py"], plugins=[reports])
    assert reports.outcomes == {
        "test_leaking[pads]": "passed",
        "test_leaking[future]": "failed",
        "test_leaking[calls]": "passed",
        "test_leaking[steps]": "skipped",
        "test_as_meant[future]": "xskipped",
        "test_as_meant[calls]": "xpassed",
        "test_of_another_cause[future]": "failed",
    }
    assert "toytrans explain future.shift" in reports.texts["test_leaking[future]"]
    assert "it looks ahead" in reports.texts["test_as_meant[future]"]


def test_items_are_chosen_as_checks_are():
    ids = [param.id for param in parametrize_checks(None, only="future,pads", skip="pads").args[1]]
    assert ids == ["future"]


def saving(model: str, check: str) -> tuple[str, ...]:
    """A quick check of a model, whose first failure is saved."""
    chosen = ("--model", f"mine.py:{model}", "--only", check)
    return ("check", "--quick", *chosen, "--save-example", "again.py")


def test_a_saved_example_shows_the_failure_until_it_is_mended(mine: Path, command):
    words = [
        "check",
        "--model",
        "mine.py:leaking",
        "--quick",
        "--only",
        "future",
        "--save-example",
        "again.py",
    ]
    done = command(*words)
    assert done.code == 1 and "run it with: python again.py" in done.err
    script = (mine / "again.py").read_text()
    assert "future.shift" in script and "tgt_in = torch.tensor([[" in script
    with pytest.raises(AssertionError):
        runpy.run_path("again.py")
    assert command(*saving("leaking", "future")).code == 2, "nothing is written over"
    (mine / "mine.py").write_text(MODEL.replace("leak=1e-3", "leak=0.0"))
    shown = runpy.run_path("again.py")
    assert shown["moved"] == 0.0 and shown["tgt_in"].dtype == torch.int64


def test_a_failure_without_ids_of_its_own_is_asked_again(mine: Path, command):
    assert command(*saving("wrong_labels", "labels")).code == 1
    with pytest.raises(CheckFailed, match=r"explain labels\.not_shifted"):
        runpy.run_path("again.py")


def test_nothing_is_saved_where_nothing_fails(mine: Path, command):
    words = [
        "check",
        "--model",
        "mine.py:leaking",
        "--quick",
        "--only",
        "calls",
        "--save-example",
        "again.py",
    ]
    done = command(*words)
    assert done.code == 0 and "nothing fails" in done.err and not (mine / "again.py").exists()


def test_a_copy_is_asked_as_check_does(mine: Path):
    import mine as module

    model = module.Running().train()
    ids = torch.tensor([[3, 4, 5]])
    src = ids[:, :0]
    ask = asker(model, **module.GIVEN)
    assert ask(src, ids).dtype == torch.float64 and model.out.weight.dtype == torch.float32
    assert torch.allclose(ask(src, ids).float(), model(ids), atol=1e-6) and model.training
    with pytest.raises(UserError, match="precision 'half a dozen'"):
        asker(model, precision="half a dozen", **module.GIVEN)


def test_a_device_that_is_not_there_is_refused(mine: Path, command):
    refused = command("check", "--model", "mine.py:leaking", "--device", "cuda:7")
    assert refused.code == 2 and "device cuda:7 is not on this machine" in refused.err
    asked = command(
        *["check", "--model", "mine.py:leaking", "--quick", "--only", "calls", "--device", "cpu"]
    )
    assert asked.code == 0
