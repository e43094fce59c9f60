"""What several test files share."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as the command line does, before torch starts
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # tests are of the CPU; scripts/gpu_check.py is of a GPU
os.environ["OMP_NUM_THREADS"] = "1"  # the work is tiny, and as many workers run as there are cores
os.environ["PYTHONPATH"] = os.path.dirname(os.path.dirname(__file__))  # for new interpreters

import contextlib
import functools
import gc
import importlib.util
import io
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import typer.main
from filelock import FileLock

from toytrans import references, user_code
from toytrans.checks.run import check
from toytrans.cli.app import main
from toytrans.config.schema import Config, Settings
from toytrans.config.yaml import write_yaml
from toytrans.data.open import open_dataset
from toytrans.inspection.shown import InspectedBatch, Masks, batch_of_sequences
from toytrans.model import positions
from toytrans.model.attention import AttentionContext
from toytrans.model.build import build_sound_model
from toytrans.model.masks import MaskMaker
from toytrans.model.matrix_products import leave_products_to_onednn
from toytrans.model.transformer import Transformer
from toytrans.report import sections
from toytrans.resolve import resolve
from toytrans.tokens import Vocabulary
from toytrans.training.checkpoint import load_checkpoint, saved_steps
from toytrans.training.distributed import rank_and_processes
from toytrans.training.graphs import CudaSteps
from toytrans.training.session import new_model
from toytrans.training.trainer import Trainer
from toytrans.training.writer import RunWriter


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in what is imported, which stays: that would take seconds."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.fixture(autouse=True, scope="session")
def _no_waiting() -> Iterator[None]:
    """Files need not survive a loss of power, Typer makes the commands once, and the page of a run
    shows a single check, which all of them would take most of the time of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which raises for what is no open file, too
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        one = functools.partial(check, only="future", effort="quick")
        patch.setattr(sections, "check", one)
        yield


@pytest.fixture(autouse=True)
def _process_as_new() -> None:
    """Commands that a test ran before in this process may have changed these."""
    torch.set_flush_denormal(False)
    leave_products_to_onednn(False)
    torch.manual_seed(0)


ANCHORED: dict[str, Any] = {"positions": "anchored", "norm": "pre"}
"""A model that learns in few steps, with places that any length has."""


def given_config(task: str = "copy", **sections: dict) -> Config:
    """A small config as it is given; `data`, `model` and `train` add to it."""
    data = {"task": task, "symbols": 7, "train_length": [1, 6]} | sections.pop("data", {})
    model = ANCHORED | {"d_model": 16, "n_heads": 2, "d_ff": 32} | sections.pop("model", {})
    return Config.model_validate({"data": data, "model": model, **sections})


def config_of(task: str = "copy", **sections: dict) -> Settings:
    """The settings of a small config, whose own code may run."""
    config = given_config(task, **sections)
    references.trust(config.references.values())
    return resolve(config)


def config_of_files(files: dict, model: dict | None = None, **data: Any) -> Settings:
    """The settings of a small config that reads files. files: the section data.files."""
    none = {"task": None, "symbols": None, "train_length": None}
    return config_of(data={**none, "files": files, **data}, model=model or {})


TINY: dict[str, dict] = {
    "data": {"task": "copy", "symbols": 5, "train_length": [1, 4], "batch_tokens": 128}
    | {"valid_examples": 9, "test_examples": 9},
    "model": ANCHORED
    | {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 32},
    "train": {"max_steps": 6, "eval_every": 2, "log_every": 1, "precision": "fp32"},
}
"""What commands train in tests, in a fraction of a second."""


def tiny_yaml(**sections: dict) -> str:
    """TINY as YAML, its sections changed. Files take the place of the task."""
    files = "files" in sections.get("data", {})
    base = TINY | ({"data": {"batch_tokens": 128}} if files else {})
    return write_yaml({name: values | sections.get(name, {}) for name, values in base.items()})


def trainer_of(
    run: Path,
    task: str = "copy",
    *,
    device: str = "cpu",
    cuda_steps: CudaSteps | None = None,
    **sections: dict,
) -> Trainer:
    """The trainer of a small config, as `config_of` makes it, in fp32. Its run is described."""
    sections["train"] = {"precision": "fp32"} | sections.get("train", {})
    config = given_config(task, **sections)
    settings = resolve(config)
    source = open_dataset(settings)
    precision = settings.train.precision
    writer = RunWriter(run) if rank_and_processes()[0] == 0 else None
    if writer is not None:
        writer.describe(config, settings, source.facts, {})
    model = new_model(settings, source, precision, torch.device(device)).train()
    return Trainer(settings, source, model, precision, writer, cuda_steps=cuda_steps)


@pytest.fixture
def here(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Path:
    """The working directory; output as in a pipe. Temporary files go to another folder.

    It holds c.yaml: CONFIG of the test's module, or else TINY.
    """
    folder = tmp_path / "here"
    folder.mkdir()
    reports = tmp_path_factory.mktemp("t")  # short: sockets have their names there
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(reports))
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    (folder / "c.yaml").write_text(getattr(request.module, "CONFIG", tiny_yaml()))
    return folder


def model_of(vocabulary: Vocabulary, **model: object) -> Transformer:
    """A small model in fp64 and eval mode, its norms and biases shaken away from 1 and 0."""
    config = config_of(model={"d_model": 24, "n_heads": 3, **model}).model
    built = build_sound_model(config, vocabulary).double().eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() == 1 or "bias_table" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return built


def masks_of(maker: MaskMaker, src: torch.Tensor, tgt_in: torch.Tensor) -> Masks:
    """The three masks of a batch: src (B, S), tgt_in (B, T)."""
    return Masks(maker.encoder_self(src), maker.decoder_self(tgt_in), maker.cross(src, tgt_in))


def inspected_of(**model: object) -> InspectedBatch:
    """Two pairs and a small model in fp64; the first pair has 1 pad in src and 2 in tgt_in."""
    batch, _ = batch_of_sequences(["5 7 9", "4 6 8 3"], ["9 7", "3 8 6 4"], VOCABULARY)
    assert (batch.src == 0).sum(1).tolist() == [1, 0]
    assert (batch.tgt_in == 0).sum(1).tolist() == [2, 0]
    sizes = {"n_encoder_layers": 2, "n_decoder_layers": 2, "positions": "sinusoidal"}
    made = model_of(VOCABULARY, **(sizes | model))
    return InspectedBatch(batch, VOCABULARY, made, "test weights")


def context_with_an_empty_row(bias: bool) -> tuple[AttentionContext, torch.Tensor | None]:
    tgt_in = torch.tensor([[1, 5, 6, 7, 0, 0, 0], [0] * 7])
    mask = MaskMaker().decoder_self(tgt_in)
    assert not mask[1].any(), "the second row of the batch sees nothing"
    return AttentionContext.of(mask, torch.float32), torch.randn(1, 3, 7, 7) if bias else None


EXAMPLES = Path(__file__).parent.parent / "configs" / "examples"


def anchors_of(name: str, **model: Any) -> dict[str, Any]:
    """The keys of a model whose positions are a class of examples/anchors.py."""
    code = f"{EXAMPLES}/anchors.py:{name}"
    keys = {"positions": code, "cross_positions": code, "source_bos": True, "score_cap": 1.0}
    return keys | model


def id_of(given: object) -> str:
    """The id of a parameter, which is the same wherever the checkout lies."""
    return str(given).replace(f"{EXAMPLES}/", "")


EVERY_ANCHOR = anchors_of("Every", n_heads=11, d_model=88)
SCHEMES = [
    *({"positions": name} for name in positions.SCHEMES),
    EVERY_ANCHOR,
    {"positions": "sinusoidal", "random_positions": True},
    {"positions": "rotary", "cross_positions": "anchored"},
    {"positions": "anchored", "cross_positions": "none"},
]
"""What a model's positions may be."""

VOCABULARY = Vocabulary((*(str(k) for k in range(10)), "+"), separators=("+",))


PAIRS = ("--src", "5 7 9", "--tgt", "9 7", "--src", "4 6 8 3", "--tgt", "3 8 6 4")
"""Two pairs for a command; the first one gets pads."""


def tensors_of(run: str | Path, step: int | None = None) -> dict[str, bytes]:
    """The bytes of every tensor of a checkpoint, None = the newest, by names as weights/NAME."""
    run = Path(run)
    _, tensors = load_checkpoint(run, saved_steps(run)[-1] if step is None else step)
    return {
        name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in tensors.items()
    }


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
        patch.setattr(references, "trusted", {})  # nobody has named code in a new process
        patch.setattr(user_code, "_modules", {})
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    assert isinstance(code, int)
    return code


ROOT = Path(__file__).parent.parent
FIRST = "toytrans train --config configs/textbook.yaml"
"""README's first command."""


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that one process of a test run fills, and all of them read."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"once-{name}"
    folder.mkdir(exist_ok=True)
    done = folder / "done"
    with FileLock(folder / "lock"):
        if not done.exists():
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with c.yaml, which is TINY, and its run, runs/c. Tests change a copy: `run`."""

    def train(folder: Path) -> None:
        (folder / "c.yaml").write_text(tiny_yaml())
        with contextlib.chdir(folder):
            assert call("train", "c.yaml") == 0

    return made_once(tmp_path_factory, "tiny", train)


@pytest.fixture
def run(tiny_run: Path, here: Path) -> Path:
    """A copy of the run of TINY, checkpoints 4 and 6, in the working directory."""
    shutil.copytree(tiny_run / "runs", here / "runs")
    return Path("runs/c")


@pytest.fixture
def in_time() -> Iterator[None]:
    """What waits for a pipe, or reads a device to its end, fails."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("not done within 600 s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which README's first command has run, and its output."""

    def train(folder: Path) -> None:
        (folder / "configs").symlink_to(ROOT / "configs")
        out = io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(out):
            assert call(*FIRST.split()[1:]) == 0
        (folder / "output.txt").write_text(out.getvalue())

    folder = made_once(tmp_path_factory, "trained", train)
    return folder, (folder / "output.txt").read_text()


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Chromium. Where there is none, tests of pages are skipped, but not on CI."""
    if CHROMIUM is None and "CI" in os.environ:
        pytest.fail("no Chromium: `apt-get install chromium`")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page, always the same one. media: what its reader wants, if it is the first time.
    Every request, dialog and complaint of the browser is a failure. What a page makes itself, a
    worker of its own text say, is no request."""
    pages = list[Any]()
    heard: list[str] = []
    asked, meant = list[str](), list[str]()

    def open_page(path: Path, state: str = "", **media: str) -> Any:
        if not pages:
            pages.append(browser.new_page(**media))
            pages[0].on("console", lambda message: heard.append(message.text))
            pages[0].on("pageerror", lambda error: heard.append(str(error)))
            pages[0].on("dialog", lambda dialog: heard.append(dialog.message))
            pages[0].on("request", lambda request: asked.append(request.url.partition("#")[0]))
        meant.append(path.as_uri())
        pages[0].goto(path.as_uri() + state)
        pages[0].wait_for_selector("body[data-ready=yes]")
        return pages[0]

    yield open_page
    assert heard == []
    assert {address for address in asked if not address.startswith("blob:")} == set(meant)
    for page in pages:
        page.close()


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
    """Runs a command that must be refused in one line, which it returns.

    Notes of which run is the newest, and of what takes long, may come first.
    """

    def run(*arguments: str) -> str:
        answer = command(*arguments)
        assert answer.code == 2, answer.err
        assert answer.out == ""
        error = re.sub(
            r"\A(run: .*, the newest\b.*\n)?(broken on purpose: .*\n)?(now: .*\n)*", "", answer.err
        )
        assert error.startswith("toytrans: ")
        assert error.endswith("\n") and error.count("\n") == 1
        assert "Traceback" not in error
        return error

    return run


def script(name: str) -> ModuleType:
    """A module of scripts/, which is no package; one of them may import another."""
    path = Path(__file__).parent.parent / "scripts" / f"{name}.py"
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
