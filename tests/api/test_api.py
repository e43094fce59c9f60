"""toytrans in Python: the same numbers as the commands, errors of one type, and a process that is
left as it was."""

import contextlib
import json
import logging
import math
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY, Command, tensors_of
from forked import Forked
from safetensors import safe_open

import toytrans
from toytrans.files import json_text
from toytrans.resolve import resolve
from toytrans.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("here")


def checkpoints_of(path: str | Path) -> dict[int, dict[str, bytes]]:
    """Every tensor of a run's checkpoints."""
    return {step: tensors_of(path, step) for step in toytrans.load(path).steps}


def records_of(path: str | Path) -> list[dict]:
    return [record | {"elapsed_s": 0, "evaluation_s": 0} for record in toytrans.load(path).records]


def state_of_process() -> tuple:
    """What a training in this process could have changed."""
    return (
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        sys.float_info.min / 2 > 0,
        signal.getsignal(signal.SIGINT),
        signal.getsignal(signal.SIGTERM),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )


@pytest.fixture(scope="module")
def run(tiny_run: Path) -> toytrans.Run:
    """What a command has trained."""
    return toytrans.load(tiny_run / "runs/c")


# Training -------------------------------------------------------------------------------------


def test_a_file_a_dict_and_a_config_train_the_run_of_the_command(run: toytrans.Run):
    config = toytrans.Config.model_validate(TINY)
    made = [toytrans.train(given) for given in (Path("c.yaml"), TINY, config)]
    assert [str(each.path) for each in made] == ["runs/c", "runs/copy", "runs/copy-2"]
    for each in made:
        assert each.settings == resolve(config) and not each.unfinished
        assert checkpoints_of(each.path) == checkpoints_of(run.path) != {}
        assert records_of(each.path) == records_of(run.path)
    assert TINY["data"]["task"] == "copy", "a dict stays as it is"


TWICE = """
import sys, toytrans, torch
from toytrans.cli import main

torch.set_num_threads(2)
if len(sys.argv) > 1:
    main()
for seed in (0, 1):
    torch.manual_seed(seed + 5)
    torch.rand(100, 100) @ torch.rand(100, 100)
    toytrans.train("c.yaml", f"run-{seed}", seed=seed, on_record=print)
"""


def test_the_second_training_of_a_process_equals_a_command_bit_for_bit(here: Path):
    """Processes with two threads, bf16, dropout, and evaluations in between."""
    config = TINY | {
        "data": TINY["data"] | {"batch_tokens": 1024, "train_length": [1, 12]},
        "model": TINY["model"] | {"d_model": 32, "dropout": 0.2},
        "train": {"max_steps": 12, "eval_every": 4, "log_every": 2, "label_smoothing": 0.1}
        | {"precision": "bf16"},
    }
    (here / "c.yaml").write_text(json.dumps(config))
    for words in ((), ("train", "c.yaml", "--out", "run", "--seed", "1")):
        done = Forked(TWICE, *words).ended()
        assert done.code == 0, done.err
    made = checkpoints_of("run")
    assert made == checkpoints_of("run-1") != checkpoints_of("run-0")
    assert records_of("run") == records_of("run-1") and len(records_of("run")) == 6
    assert toytrans.load("run").environment["threads"] == 2


def test_on_record_gets_every_record_and_false_saves_and_stops(run: toytrans.Run):
    log: list[dict] = []

    def until_3(record: dict) -> bool | None:
        log.append(record)
        return False if record["step"] == 3 else None

    early = toytrans.train(TINY, "early", on_record=until_3)
    assert [record["step"] for record in log] == [1, 2, 3] and early.unfinished == "step 3 of 6"
    whole = toytrans.train(TINY, "early", resume=True, on_record=log.append)
    assert whole.records == log and not whole.unfinished
    assert records_of("early") == records_of(run.path)
    assert tensors_of("early", 6) == tensors_of(run.path, 6)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_on_record_is_raised_and_the_run_is_saved(error):
    def on_record(record: dict) -> None:
        raise error

    before = state_of_process()
    with pytest.raises(error):
        toytrans.train(TINY, "r", on_record=on_record)
    assert state_of_process() == before
    assert toytrans.load("r", "last").step == 1
    assert not toytrans.train(TINY, "r", resume=True).unfinished, "the folder is free"


@pytest.mark.parametrize(
    ("name", "written"),
    [("wandb", "wandb/offline-run-*/*.wandb"), ("mlflow", "mlruns/*/*/metrics/valid_loss")],
)
def test_the_lines_for_other_loggers_run(name, written, monkeypatch):
    """Those of docs/python.md."""
    pytest.importorskip(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", Path("mlruns").absolute().as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    (lines,) = [block for block in blocks if name in block]
    assert lines.count("\n") <= 6
    exec(compile(lines.replace("configs/textbook.yaml", "c.yaml"), name, "exec"), {})
    assert list(Path().glob(written)) and not toytrans.load("runs/c").unfinished


def test_the_process_is_left_as_it_was_and_what_it_has_set_changes_no_training(run: toytrans.Run):
    torch.manual_seed(5)
    torch.set_flush_denormal(True)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    before = state_of_process()
    try:
        own = toytrans.train(TINY, "r")
        (
            own.evaluate(),
            own.translate("1 2"),
            toytrans.attention(own, "1 2"),
            toytrans.masks(own, "1 2"),
        )
        assert toytrans.check(own, length=5).passed
        assert state_of_process() == before
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
    assert checkpoints_of("r") == checkpoints_of(run.path)


@contextlib.contextmanager
def interrupt_at(step: int, times: int = 1) -> Iterator[None]:
    """Ctrl-C in the middle of a step."""
    take_step = Trainer.take_step

    def interrupted(self: Trainer, dealt):
        if self.progress.step == step - 1:
            for number in range(times):
                time.sleep(0.6 * number)
                signal.raise_signal(signal.SIGINT)
        return take_step(self, dealt)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", interrupted)
        yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_ctrl_c_saves_and_a_second_one_is_a_keyboard_interrupt(caplog):
    with interrupt_at(3):
        run = toytrans.train(TINY, "r")
    assert run.unfinished == "step 3 of 6"
    assert "r: interrupted at step 3 and saved; resume=True goes on" in caplog.text
    with interrupt_at(5, times=2), pytest.raises(KeyboardInterrupt):
        toytrans.train(TINY, "r", resume=True)
    assert toytrans.load("r", "last").step == 4, "the last checkpoint before it"
    assert not toytrans.train(TINY, "r", resume=True).unfinished


def test_a_thread_trains_and_the_log_gets_what_commands_print(caplog, capfd):
    """Outside of the main thread no signal can be collected."""
    caplog.set_level(logging.INFO, "toytrans")
    runs = []
    thread = threading.Thread(target=lambda: runs.append(toytrans.train(TINY)))
    thread.start()
    thread.join()
    assert not runs[0].unfinished and "runs/copy: cpu, fp32" in caplog.text
    assert capfd.readouterr() == ("", "")


# Runs -----------------------------------------------------------------------------------------


def test_a_run_translates_and_measures_as_the_commands_do(run: toytrans.Run, command: Command):
    one = run.translate("1 2 3")
    assert run.translate(["1 2 3", ""]) == [one, run.translate("")] and run.translate([]) == []
    for given, options in (
        ({}, ()),
        ({"lengths": (1, 8), "examples": 40}, ("--lengths", "1:8", "--examples", "40")),
        (
            {"split": "valid", "decode": 1, "beam": 2, "length_of": "tgt"},
            ("--split", "valid", "--decode", "1", "--beam", "2", "--length-of", "tgt"),
        ),
    ):
        printed = json.loads(command("eval", str(run.path), *options, "--json").out)
        measured = run.evaluate(**given)
        assert json.loads(json.dumps(measured.to_dict())) == printed
    Path("src.txt").write_text("1 2\n3\n")
    Path("tgt.txt").write_text("1 2\n4\n")
    assert run.evaluate(files=("src.txt", "tgt.txt"))["pairs"] == 2


def test_attention_and_masks_are_those_of_the_commands(run: toytrans.Run, command: Command):
    def printed(*line: str) -> dict:
        return json.loads(command(*line, "--json").out)

    sources = ("1 2 3", "4")
    traced = printed("trace", str(run.path), *sources, "--part", "cross")
    (weights,) = [each["values"] for each in traced["tensors"] if each["name"] == "weights"]
    shown = toytrans.attention(run, sources, part="cross", layer=1).to_dict()["heads"]
    for number, (head, rules) in enumerate(zip(shown, traced["heads"], strict=True)):
        assert head.pop("weights") == [pair[number] for pair in weights]
        assert head == rules
    given = toytrans.attention(run, "1 2", "2 1 0", part="cross", layer=1, head=2)
    assert [(head.part, head.layer, head.head) for head in given.heads] == [("cross", 1, 2)]
    pairs = ("--src", "1 2 3", "--tgt", "3 2 1", "--src", "4", "--tgt", "4 4")
    masks = toytrans.masks(run, ["1 2 3", "4"], ["3 2 1", "4 4"])
    assert masks.to_dict() == printed("inspect-masks", str(run.path), *pairs)
    translated = run.vocabulary.decode(toytrans.masks(run, "1 2 3").batch.tgt_out[0].tolist())
    assert translated == run.translate("1 2 3").split()
    before = toytrans.attention(run, "1 2").to_dict()
    run.model.train()
    assert toytrans.attention(run, "1 2").to_dict() == before and run.model.training
    run.model.eval()


def test_a_run_is_loaded_at_a_step_with_its_records_and_checked(run: toytrans.Run):
    assert re.fullmatch(r"Run\(.*: copy, [\d,]+ parameters, step \d\)", repr(run))
    assert toytrans.load(run.path, 4).step == toytrans.load(str(run.path), "4").step == 4
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert run.records == [json.loads(line) for line in lines] and len(lines) == 6
    assert toytrans.check(run, only=["pads", "future"], length=5)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda run: run.evaluate("1:8"), "lengths '1:8': write the shortest and the longest"),
        (lambda run: run.evaluate(beam=1.5), "beam 1.5: expected a whole number, 1 or more"),
        (lambda run: run.evaluate(split="train"), "split 'train'"),
        (lambda run: toytrans.attention(run, "1", ["1", "2"]), "1 src and 2 tgt"),
        (lambda run: run.translate("1 x"), "'x' is not in the vocabulary"),
        (lambda run: toytrans.masks(run, []), "no src; give a sequence"),
        (lambda run: toytrans.train(TINY, run.path), "in Python: resume=True"),
        (lambda _: toytrans.train({"data": {"task": "copi"}}), "config: .* did you mean copy"),
        (lambda _: toytrans.train(3), "a config is a path, a dict or a toytrans.Config, not int"),
        (lambda _: toytrans.train(TINY, changes={3: 1}), "changes: 3: unknown key"),
        (lambda _: toytrans.train(TINY, "."), ".: not empty and not a run directory, so it is"),
        (lambda run: toytrans.sweep(TINY, seeds=[]), "seeds: none; give whole numbers"),
        (lambda run: toytrans.sweep(TINY, grid={"seed": [1]}), "given with --seeds"),
        (lambda run: toytrans.sweep(TINY, on="moon"), "on 'moon': take local or ray"),
    ],
)
def test_bad_questions_are_user_errors_and_train_nothing(run: toytrans.Run, ask, message):
    before = state_of_process()
    with pytest.raises(toytrans.UserError, match=message) as caught:
        ask(run)
    assert "\n" not in str(caught.value) and state_of_process() == before
    assert not Path("runs").exists()


def test_divergence_is_a_user_error():
    with pytest.raises(toytrans.UserError, match="training diverged: .*; lower train.lr"):
        toytrans.train(TINY, changes={"train.lr": 1e30})


def test_a_caller_may_stop_at_the_record_that_tells_of_divergence():
    """The loss of that record is counted once: there is nothing left to count when it stops."""
    told = []

    def goes_on(record: dict) -> bool:
        told.append(record.get("diverged"))
        return math.isfinite(record["loss"])

    with pytest.raises(toytrans.UserError, match="training diverged: the loss"):
        toytrans.train(TINY, changes={"train.lr": 1e30}, on_record=goes_on)
    assert told[-1] == "loss" and told.count("loss") == 1


# In a notebook --------------------------------------------------------------------------------


def test_records_are_curves_where_they_can_be_drawn(run: toytrans.Run, monkeypatch):
    curves = toytrans.curves(run)._repr_html_()
    assert curves.startswith("<svg") and "Free-running exact match on validation data" in curves
    assert curves == toytrans.curves(run)._repr_html_(), "the same bytes each time"
    assert f"step 6, loss {run.records[-1]['loss']:.4g}, " in repr(toytrans.curves(run))


# Sweeps ---------------------------------------------------------------------------------------

GRID = {"model.positions": ["rotary", "anchored"]}
SCRIPT = f"""
import toytrans

print(toytrans.sweep("c.yaml", seeds=[3], grid={GRID}, jobs=2))
"""


def test_a_sweep_of_a_script_is_that_of_the_command(here: Path, command: Command):
    """In a script without `if __name__ == "__main__"`, too."""
    (here / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-W", "error", "script.py"], capture_output=True)
    assert b"exact match, in range: test pairs" in done.stdout, done.stderr
    table = json.loads(Path("runs/sweeps/c/table.json").read_text())
    words = ("sweep", "c.yaml", "--seeds", "3:3", "--set", "model.positions=rotary,anchored")
    assert command(*words).code == 0
    assert json.loads(Path("runs/sweeps/c/table.json").read_text()) == table
    compared = toytrans.sweep("c.yaml", seeds=(3,), grid=GRID)
    assert [run.settings.seed for run in compared.runs] == [3, 3]
    assert compared.runs[0].evaluate()["free_exact_match"] >= 0
    assert not compared.problems and all(path.is_file() for path in compared.files)
    losses = replace(compared, metric="loss")._repr_html_()
    assert ">anchored</th>" in losses and "<script" not in losses


def test_compare_export_and_live_do_what_the_commands_do(
    run: toytrans.Run, here: Path, command: Command
):
    shutil.copytree(run.path.parent, "runs")
    compared = toytrans.compare(["runs/c"], examples=5)
    asked = command("eval", "runs", "--examples", "5", "--json")
    assert json.loads(json_text(compared.to_dict())) == json.loads(asked.out)
    assert compared.runs[0].step == run.step
    with pytest.raises(toytrans.UserError, match="no such run directory"):
        toytrans.compare("nowhere")

    mine = toytrans.load("runs/c")
    before = state_of_process()
    assert toytrans.export(mine, "safetensors", "mine") == Path("mine")
    assert state_of_process() == before
    assert command("export", "runs/c", "--format", "safetensors").code == 0
    ours, theirs = (safe_open(name, "pt") for name in ("mine", "c.safetensors"))
    assert ours.metadata() == theirs.metadata()  # in a file they stand in any order
    assert {*ours.keys()} == {*theirs.keys()}
    assert all(ours.get_tensor(name).equal(theirs.get_tensor(name)) for name in [*ours.keys()])
    with pytest.raises(toytrans.UserError, match="format 'tflite': take safetensors or "):
        toytrans.export(mine, "tflite")

    for words, page in (((), toytrans.live()), (("runs/c",), toytrans.live(mine))):
        assert command("live", *words, "--out", f"{len(words)}.html").code == 0
        assert Path(f"{len(words)}.html").read_text() == page.text
