"""What several test files share."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as the command line does, before torch starts
os.environ["OMP_NUM_THREADS"] = "1"  # the work is tiny, and as many workers run as there are cores

import importlib.util
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_args

import pytest
import torch

from toytrans.choices import AnchorName, PadMask, PositionName
from toytrans.cli.app import main
from toytrans.config import Config
from toytrans.model.backends.cpu import leave_products_to_onednn
from toytrans.model.build import build
from toytrans.model.masks import MaskMaker, Masks
from toytrans.model.positions.base import Distances
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, Vocabulary


@pytest.fixture(autouse=True)
def _process_as_new() -> None:
    """Commands that a test ran before in this process may have changed these."""
    torch.set_flush_denormal(False)
    leave_products_to_onednn(False)
    torch.manual_seed(0)


def config_of(task: str = "copy", **sections: dict) -> Config:
    """A small config; `data`, `model` and `train` add to it."""
    data = {"task": task, "symbols": 7, "train_length": [1, 6]} | sections.pop("data", {})
    model = {"d_model": 16, "n_heads": 2, "d_ff": 32} | sections.pop("model", {})
    return Config.model_validate({"data": data, "model": model, **sections})


def model_of(vocabulary: Vocabulary, **model: object) -> Transformer:
    """A small model in fp64 and eval mode, its norms and biases shaken away from 1 and 0."""
    config = config_of(model={"d_model": 24, "n_heads": 3, **model}).model
    built = build(config, vocabulary).double().eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() == 1 or "bias_table" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return built


def make_masks(src: torch.Tensor, tgt_in: torch.Tensor, pad_mask: PadMask = "keys") -> Masks:
    """The three masks of a batch."""
    return MaskMaker(pad_mask).all(src, tgt_in)


def ragged(rows: int, width: int) -> torch.Tensor:
    """BOS, symbols and EOS, (rows, width), the last row the shortest, a + in each that has room."""
    ids = torch.randint(3, 13, (rows, width))
    ids[:, 0], ids[:, width // 3] = BOS_ID, VOCABULARY.separator_ids[0]
    for row in range(rows):
        end = width - 1 - row * 4
        ids[row, end], ids[row, end + 1 :] = EOS_ID, 0
    return ids


def distances_of(model: Transformer, queries: int, src: torch.Tensor) -> Distances:
    """From the first target places to those of src (B, S), by anchors that do not count."""
    distances = model.positions.start(torch.empty(0), src).distances(range(queries))
    assert distances is not None
    return distances


EVERY_ANCHOR = {"n_heads": 11, "d_model": 88, "cross_anchors": list(get_args(AnchorName))}
SCHEMES = [
    *({"positions": name} for name in get_args(PositionName)),
    {"positions": "anchored", **EVERY_ANCHOR},
    {"positions": "sinusoidal", "random_positions": True},
]
"""What a model's positions may be."""

VOCABULARY = Vocabulary((*(str(k) for k in range(10)), "+"), separators=("+",))


class Answer(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Command = Callable[..., Answer]


def call(*arguments: str) -> int:
    """The exit code of `toytrans ARGUMENTS` in this process, its signal handlers put back."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["toytrans", *arguments])
        patch.setenv("PYTHONSAFEPATH", "")  # main sets it, for what a command starts
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    assert isinstance(code, int)
    return code


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command: its exit code, standard output and standard error."""

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = call(*arguments)
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(command: Command) -> Callable[..., str]:
    """Runs a command that must be refused in one line, which it returns."""

    def run(*arguments: str) -> str:
        answer = command(*arguments)
        assert answer.code == 2, answer.err
        assert answer.out == ""
        assert answer.err.startswith("toytrans: ")
        assert answer.err.endswith("\n") and answer.err.count("\n") == 1
        assert "Traceback" not in answer.err
        return answer.err

    return run


def script(name: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    path = Path(__file__).parent.parent / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
