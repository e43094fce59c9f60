"""`--device` of every command that runs a model: the same names, the same default, the same line
where the device is not there."""

import pytest
import torch
from conftest import Command

from toytrans.training import devices

PAIRS = ("--src", "3 4", "--tgt", "3 4")
COMMANDS = {
    "train": ("train", "c.yaml"),
    "eval": ("eval", "runs/c"),
    "translate": ("translate", "runs/c", "3 4"),
    "trace": ("trace", "runs/c", "3 4"),
    "trace of a config": ("trace", "3 4", "--config", "c.yaml"),
    "inspect-masks": ("inspect-masks", "runs/c"),
    "inspect-masks of pairs": ("inspect-masks", *PAIRS),
    "export": ("export", "runs/c", "--format", "safetensors"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=list(COMMANDS))
def test_a_device_that_is_not_there_is_refused_in_one_line(run, refused, words):
    expected = "device cuda:7 is not on this machine, which has cpu; name one of them, or auto"
    assert expected in refused(*words, "--device", "cuda:7")


@pytest.mark.parametrize("name", COMMANDS)
def test_auto_is_the_default(run, command: Command, monkeypatch, name):
    """Every command asks for the device by the one function that knows what there is."""
    asked = list[str]()
    choose = devices.choose_device

    def noted(name: str) -> torch.device:
        asked.append(name)
        return choose(name)

    monkeypatch.setattr(devices, "choose_device", noted)
    for module in (
        "toytrans.training.session",
        "toytrans.training.run",
        "toytrans.cli.inspected",
        "toytrans.cli.export",
    ):
        monkeypatch.setattr(f"{module}.choose_device", noted)
    assert command(*COMMANDS[name]).code == 0
    assert "auto" in asked
