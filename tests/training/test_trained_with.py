"""Weights know what they were trained with: settings, data files and own code."""

import shutil
import time
from pathlib import Path

import pytest
import safetensors.torch
from conftest import Command, tiny_yaml

import toytrans
from toytrans.training import trainer as trainer_module

pytestmark = pytest.mark.usefixtures("here")
EVAL = ("eval", "r", "--examples", "9")


@pytest.fixture
def trained(run: Path) -> Path:
    """A copy of the run of TINY, as r."""
    return run.rename("r")


@pytest.mark.parametrize(
    ("was", "edited", "said"),
    [
        ("n_heads: 2", "n_heads: 4", "model.n_heads (2 -> 4)"),
        ("activation: relu", "activation: gelu", "model.activation (relu -> gelu)"),
        ("task: copy", "task: reverse", "data.task (copy -> reverse)"),
    ],
)
@pytest.mark.usefixtures("trained")
def test_settings_that_do_not_fit_the_weights_are_refused(refused, was, edited, said):
    path = Path("r/resolved.yaml")
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, edited))
    assert f"were trained with: {said}; set it back" in refused(*EVAL)
    assert said in refused("train", "--out", "r", "--resume")


@pytest.mark.usefixtures("trained")
def test_checkpoints_of_another_run_are_refused(command: Command, refused):
    assert command("train", "c.yaml", "--out", "other", "--seed", "1").code == 0
    for name in ("checkpoints", "checkpoints.json"):
        Path("r", name).rename(f"mine-{name}")
        Path("other", name).rename(Path("r", name))
    assert "seed (1 -> 0)" in refused(*EVAL)


def test_a_file_that_has_changed_since_is_named(command: Command):
    for name in ("a.tsv", "b.tsv", "t.tsv"):
        Path(name).write_text("".join(f"{k}\t{k}\n" for k in range(40)))
    files = {"train": "a.tsv", "valid": "b.tsv", "test": "t.tsv"}
    Path("c.yaml").write_text(tiny_yaml(data={"files": files}))
    assert command("train", "c.yaml", "--out", "r").code == 0
    assert "changed" not in command(*EVAL).err
    Path("t.tsv").write_text("1\t2\n" * 40)
    assert command(*EVAL).err == "r: changed since it was trained: data.files.test\n"


def test_code_that_has_changed_since_is_named(command: Command):
    Path("own.py").write_text("def f(s): return s[:]\nf.symbols = ['a', 'b', 'c']\n")
    own = ("--set", "data.task=own.py:f", "--set", "data.symbols=null")
    assert command("train", "c.yaml", "--out", "r", *own).code == 0
    assert "changed" not in command(*EVAL, "--trust-code").err
    Path("own.py").write_text("def f(s): return s[::-1]\nf.symbols = ['a', 'b', 'c']\n")
    assert "r: changed since it was trained: data.task" in command(*EVAL, "--trust-code").err


def test_a_best_checkpoint_that_is_gone_is_named(command: Command):
    """The run has its best step first, because its rate is too small to learn anything."""
    slow = ("--set", "train.lr=1e-30", "--set", "train.warmup_steps=0")
    trained = command("train", "c.yaml", "--out", "r", *slow)
    assert trained.code == 0 and "measured: step 2 (best" in " ".join(trained.out.split())
    Path("r/checkpoints/step-2.safetensors").unlink()
    again = command("train", "c.yaml", "--out", "r", *slow, "--resume")
    assert again.code == 0 and "measured: step 6 " in " ".join(again.out.split())
    said = "r: the best checkpoint, step 2, is gone; the last one, step 6, is taken\n"
    assert command(*EVAL).err == said and command("translate", "r", "1 2").err == said


@pytest.mark.usefixtures("trained")
def test_weights_that_do_not_say_it_open_with_one_line(command: Command):
    Path("r/checkpoints.json").unlink()
    for file in Path("r/checkpoints").iterdir():
        with safetensors.safe_open(file, "pt") as opened:
            about = {k: v for k, v in opened.metadata().items() if k != "trained_with"}
        safetensors.torch.save_file(safetensors.torch.load_file(file), file, about)
    answer = command(*EVAL)
    assert answer.code == 0 and answer.err.count("\n") == 1
    assert "does not say what it was trained with" in answer.err
    shutil.rmtree("r")


OWN = """
import torch
class M(torch.nn.Module):
    def __init__(self, config, size):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(size, size))
        BUFFER
    def forward(self, src, tgt_in):
        MORE
        return self.table[tgt_in]
"""


@pytest.mark.parametrize(
    ("buffer", "more", "said"),
    [
        ("self.register_buffer('head', self.table.detach()[:3])", "pass", ""),
        (
            "self.register_buffer('seen', torch.zeros(1))",
            "if self.training: self.seen = torch.cat((self.seen, self.seen))",
            "forward adds, drops or resizes inner.seen",
        ),
        (
            "pass",
            "if self.training and not hasattr(self, 'late'):"
            " self.late = torch.nn.Parameter(torch.zeros(2))",
            "forward adds, drops or resizes inner.late",
        ),
        ("self.double()", "pass", "inner.table is torch.float64, where train.precision fp32"),
    ],
)
def test_a_model_that_cannot_be_saved_or_trained_fails_before_the_first_step(
    command: Command, buffer, more, said
):
    """A buffer that shares its memory with a parameter is saved as a tensor of its own."""
    Path("own.py").write_text(OWN.replace("BUFFER", buffer).replace("MORE", more))
    model = "".join(f"  {key}: {value}\n" for key, value in {"class": "own.py:M"}.items())
    text = tiny_yaml().partition("model:")[0] + "model:\n" + model
    Path("c.yaml").write_text(text + "train: {max_steps: 4, log_every: 1, precision: fp32}\n")
    answer = command("train", "c.yaml", "--out", "r")
    if said:
        assert answer.code == 2 and said in answer.err.splitlines()[-1], answer.err
        metrics = Path("r/metrics.jsonl")
        assert not metrics.exists() or not metrics.read_bytes()
    else:
        assert answer.code == 0, answer.err
        assert command(*EVAL, "--trust-code").code == 0


def test_seconds_of_training_are_not_those_of_evaluation(monkeypatch):
    """Three evaluations of a second each, beside six steps of hundredths."""
    evaluate = trainer_module.evaluate

    def slow(*given):
        time.sleep(1)
        return evaluate(*given)

    monkeypatch.setattr(trainer_module, "evaluate", slow)
    last = toytrans.train("c.yaml", "r").records[-1]
    assert last["step"] == 6 and last["evaluation_s"] > 3 > 1 + last["elapsed_s"] > 1
