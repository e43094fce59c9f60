"""`toytrans export`: the tokens of every runtime, and what is refused."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Command, call, given_config, made_once, model_of, tiny_yaml
from forked import COMMAND, Forked

import toytrans
from toytrans import exports
from toytrans.config.schema import Config
from toytrans.data.pairs import DataFacts
from toytrans.errors import UserError
from toytrans.exports import ExportFormat, plain, token_names
from toytrans.model.positions import SCHEMES
from toytrans.resolve import resolve
from toytrans.tokens import Vocabulary
from toytrans.training.run import Run

DOCS = Path(__file__).parents[2] / "docs" / "export.md"
VOCABULARY = Vocabulary(tuple(map(str, range(12))), separators=("7",))
TABLES = ("sinusoidal", "learned", "none")
NAMES = (*SCHEMES, "random")
ALIASES = {"random": {"positions": "sinusoidal", "random_positions": True}}
FORMATS = ("safetensors", "ctranslate2", "huggingface")
PACKAGES = {"huggingface": "transformers"}


def run_of(scheme: str, **model: object) -> Run:
    """A run with a fresh model whose norms, biases and tables are shaken."""
    options = (
        {"d_model": 24, "n_heads": 3, "norm": "pre"}
        | ALIASES.get(scheme, {"positions": scheme})
        | model
    )
    config = resolve(Config.model_validate(given_config().model_dump() | {"model": options}))
    facts = DataFacts(VOCABULARY, (1, 30))
    return Run(Path("fresh"), config, facts).with_model(
        model_of(VOCABULARY, **options).float(), [0]
    )


def assert_equal_tokens(run: Run, name: ExportFormat, path: Path, longest: int = 12):
    """An export decodes the tokens of its run, and these are no trivial ones."""
    sources = exports.random_sources(run, 20, longest)
    pairs = exports.compare(run, name, path, sources)
    assert [ours for ours, _ in pairs] == [theirs for _, theirs in pairs]
    assert len({tuple(ours) for ours, _ in pairs}) > 5


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [*plain.POSITIONS, "random"])
def test_every_scheme_in_onnx(scheme: str, tmp_path: Path):
    """One layer a side; the graph is that of plain.py, which has every scheme with both norms."""
    pytest.importorskip("onnxscript")
    norm = "post" if scheme in TABLES else "pre"
    run = run_of(scheme, norm=norm, n_encoder_layers=1, n_decoder_layers=1)
    exports.export(run, "onnx", tmp_path / "out")
    assert_equal_tokens(run, "onnx", tmp_path / "out")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("scheme", NAMES)
def test_equal_tokens_or_a_refusal(scheme: str, norm: str, name: ExportFormat, tmp_path: Path):
    pytest.importorskip(PACKAGES.get(name, name))
    run = run_of(scheme, norm=norm, activation="gelu_tanh")
    if exports.refusal(name, run.settings.model):
        with pytest.raises(UserError, match=f"fresh: {name} cannot express model"):
            exports.export(run, name, tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
        return
    exports.export(run, name, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert_equal_tokens(run, name, tmp_path / "out")


def test_what_formats_are_for():
    """The paper's model goes everywhere, and every scheme of plain.py into a file of it."""
    for norm in ("pre", "post"):
        for name in FORMATS:
            assert not exports.refusal(name, run_of("sinusoidal", norm=norm).settings.model)
    for scheme in plain.POSITIONS:
        assert not exports.refusal("safetensors", run_of(scheme).settings.model)
    assert exports.refusal("huggingface", run_of("rotary").settings.model)
    assert set(plain.POSITIONS) <= set(SCHEMES), "toytrans/exports/plain.py knows what is no more"


def test_distances_past_the_last_bucket(tmp_path: Path):
    """CTranslate2 puts distances into buckets of its own; some begin at powers of two."""
    pytest.importorskip("ctranslate2")
    run = run_of("t5")
    exports.export(run, "ctranslate2", tmp_path / "t5")
    source = [*(3 + (i * 7) % 12 for i in range(150)), 2]
    ((ours, theirs),) = exports.compare(run, "ctranslate2", tmp_path / "t5", [source])
    assert ours == theirs


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "options",
    [
        {"tie_embeddings": False, "n_encoder_layers": 3},
        {"share_layers": True, "pad_mask": "keys_and_queries"},
        {"n_heads": 6, "d_model": 48, "score_cap": 3},
    ],
)
def test_options(options: dict[str, object], name: ExportFormat, norm: str, tmp_path: Path):
    pytest.importorskip(PACKAGES.get(name, name))
    run = run_of("sinusoidal", norm=norm, **options)
    if "score_cap" in options and name != "safetensors":
        with pytest.raises(UserError, match="model.score_cap: 3; take --format safetensors or on"):
            exports.export(run, name, tmp_path / "out")
    else:
        exports.export(run, name, tmp_path / "out")
        assert_equal_tokens(run, name, tmp_path / "out")


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_source(name: ExportFormat, tmp_path: Path):
    """Where the runtime computes an answer for it, that is ours."""
    pytest.importorskip(PACKAGES.get(name, name))
    run = run_of("sinusoidal")
    exports.export(run, name, tmp_path / "out")
    ((ours, theirs),) = exports.compare(run, name, tmp_path / "out", [[2]])
    assert len(ours) > 1, "something is written of nothing"
    assert theirs == (ours if exports.FORMATS[name].reads_empty else [])


def test_what_transformers_pads_on_the_right_gives_our_tokens(tmp_path: Path):
    """The names in the folder are those that transformers 4 and 5 know."""
    pytest.importorskip("transformers")
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    for norm in ("pre", "post"):
        run, out = run_of("sinusoidal", norm=norm), tmp_path / norm
        exports.export(run, "huggingface", out)
        about = json.loads((out / "tokenizer_config.json").read_text())
        assert about["tokenizer_class"] == "PreTrainedTokenizerFast"
        assert about["padding_side"] == "right"
        assert about["model_input_names"] == ["input_ids", "attention_mask"]
        tokenizer = AutoTokenizer.from_pretrained(out)
        model = AutoModelForSeq2SeqLM.from_pretrained(out)
        sources = ["5 7 9", "1", "", "0 11 3 4 4 8"]
        inputs = tokenizer(sources, return_tensors="pt", padding=True)
        assert (inputs["input_ids"] == 0).any(), "some are padded"
        tokens = model.generate(**inputs, max_new_tokens=10)
        answers = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        assert [a.split() for a in answers] == [t.split()[:10] for t in run.translate(sources)]
        with pytest.raises(Exception, match="Missing .UNK. token"):
            tokenizer("5 x 9")


def test_unknown_symbols_are_read_as_unk_where_the_run_does(tmp_path: Path):
    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    import ctranslate2
    from transformers import AutoTokenizer

    run = run_of("sinusoidal", norm="post")
    vocabulary = Vocabulary(("<unk>", *VOCABULARY.symbols[1:]), unknown="<unk>")
    run.facts = DataFacts(vocabulary, (0, 9))
    for name in ("huggingface", "ctranslate2"):
        exports.export(run, name, tmp_path / name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "huggingface")
    assert tokenizer("5 zz 9")["input_ids"] == [*vocabulary.encode(["5", "zz", "9"]), 2]
    translator = ctranslate2.Translator(str(tmp_path / "ctranslate2"))
    both = [["5", each, "9", "<eos>"] for each in ("zz", "<unk>")]
    one, other = translator.translate_batch(both, beam_size=1, max_decoding_length=9)
    assert one.hypotheses == other.hypotheses


def test_a_full_disk_is_told_and_leaves_nothing(folder: Path, command: Command):
    """Of the format whose library raises an error of its own. Python ignores SIGXFSZ."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, before[1]))
    try:
        answer = command("export", "reverse_sinusoidal", "--format", "huggingface", "--out", "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-1] == "toytrans: x: cannot be written (no space left on device)"
    assert not [path for path in folder.iterdir() if path.name == "x" or "draft" in path.name]


def test_symbols_with_the_names_of_special_tokens():
    vocabulary = Vocabulary(("a", "<eos>", "<<eos>>"))
    assert token_names(vocabulary) == ["<pad>", "<bos>", "<<<eos>>>", "a", "<eos>", "<<eos>>"]


# The command ---------------------------------------------------------------------------------

EXPORTED = {
    "reverse": ({}, ("safetensors", "onnx")),
    "reverse_sinusoidal": (
        {"positions": "sinusoidal", "norm": "post"},
        ("safetensors", "ctranslate2", "huggingface"),
    ),
}
"""What differs in the models of the runs, and the formats."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two trained runs and what was exported of them."""
    for module in ("ctranslate2", "transformers", "onnxscript"):
        pytest.importorskip(module)

    def make(folder: Path):
        with contextlib.chdir(folder):
            for name, (model, formats) in EXPORTED.items():
                Path("c.yaml").write_text(tiny_yaml(data={"symbols": 10}, model=model))
                assert call("train", "c.yaml", "--out", name) == 0
                for each in formats:
                    assert call("export", name, "--format", each) == 0

    return made_once(tmp_path_factory, "exports", make)


@pytest.fixture
def folder(runs: Path, here: Path) -> Path:
    """The working directory: a copy of that folder."""
    shutil.copytree(runs, here, dirs_exist_ok=True)
    return here


def test_the_command_says_what_it_checked_and_writes_nothing_else(folder: Path, command: Command):
    before = {path.name for path in folder.iterdir()}
    answer = command("export", "reverse", "--format", "safetensors", "--out", "x.safetensors")
    assert answer.code == 0 and answer.err == ""
    assert answer.out.splitlines() == [
        "wrote x.safetensors from reverse, step 6",
        "decoded with it: 8 of 8 sequences give the tokens of this run",
    ]
    assert {path.name for path in folder.iterdir()} - before == {"x.safetensors"}
    assert {"reverse.safetensors", "reverse_sinusoidal-huggingface"} < before, "names of their own"
    config = folder / "reverse" / "resolved.yaml"
    config.write_text(config.read_text().replace("max_steps: 6", "max_steps: 60"))
    answer = command("export", "reverse", "--format", "safetensors", "--out", "part")
    assert "training is unfinished: step 6 of 60" in answer.out


def test_onnx_reads_any_number_of_rows_and_places(folder: Path):
    run = toytrans.load("reverse", device="cpu")
    for rows, longest in ((1, 1), (7, 30)):
        sources = [[1, *[5] * (longest - r), 2] for r in range(rows)]
        pairs = exports.compare(run, "onnx", Path("reverse-onnx"), sources)
        assert [ours for ours, _ in pairs] == [theirs for _, theirs in pairs]


def test_the_plain_model_needs_no_toytrans_and_the_file_alone(folder: Path):
    model = plain.load("reverse.safetensors")
    run = toytrans.load("reverse", device="cpu")
    assert model.about["symbols"] == list(run.vocabulary.symbols)
    assert model.options == json.loads(run.settings.model.model_dump_json())
    shutil.copy(plain.__file__, folder / "plain.py")
    without = "import sys, runpy; sys.modules['toytrans'] = None; sys.argv[:1] = []; "
    code = f"{without}runpy.run_path('plain.py', run_name='__main__')"
    words = ["plain.py", "reverse.safetensors", "5 7 9", "1 2", "5,7"]  # the last is no symbol
    answer = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert answer.stdout.splitlines() == run.translate(["5 7 9", "1 2"])
    assert answer.returncode == 1
    assert (
        answer.stderr
        == "plain.py: no symbol '5,7'; put blanks between these: 0 1 2 3 4 5 6 7 8 ...\n"
    )


@pytest.mark.parametrize(("tested", "limit"), [([1, 40], 2 * 40 + 10), ([1, 9], 2 * 30 + 10)])
def test_transformers_ends_where_the_longest_source_of_the_data_would(
    tested: list[int], limit: int, tmp_path: Path
):
    """Of a model that never says that it is at its end."""
    pytest.importorskip("transformers")
    from transformers import AutoModelForSeq2SeqLM

    run = run_of("sinusoidal", tie_embeddings=False)
    data = run.settings.data.model_copy(update={"test_length": tuple(tested)})
    with torch.no_grad():
        run.model.output.weight[2] = 0  # that of EOS
        run.model.output.weight[3] = -run.model.output.weight[4]
    run.settings = run.settings.model_copy(update={"data": data})
    exports.export(run, "huggingface", tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert model.generate(torch.tensor([[5, 7, 9, 2]])).shape == (1, 1 + limit)


def test_refusals(folder: Path, command: Command, refused: Callable[..., str], monkeypatch):
    broken = command("train", "c.yaml", "--break", "no_causal", "--out", "broken")
    assert broken.code == 0
    before = sorted(folder.iterdir())
    with_format = ("--format", "safetensors")
    assert "exists already" in refused("export", "reverse", *with_format)
    assert "anchored; take --format safetensors or onnx" in refused(
        "export", "reverse", "--format", "huggingface"
    )
    assert "broken on purpose: no_causal" in refused("export", "broken", *with_format, "--out", "x")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # as where it is not installed
    assert "--format ctranslate2 needs ctranslate2; `python -m pip install ctranslate2`" in refused(
        "export", "reverse", "--format", "ctranslate2", "--out", "x"
    )
    assert sorted(folder.iterdir()) == before


def test_own_code(here: Path, refused: Callable[..., str], command: Command):
    """A model of the user's has no counterpart anywhere. A task of the user's needs none."""
    for name in ("my_model", "my_tasks"):
        shutil.copy(DOCS.parent / "examples" / f"{name}.py", here)
    model = {"class": "my_model.py:TwoGRUs", "d_model": 16}
    (here / "own.yaml").write_text(tiny_yaml(model=model))
    assert command("train", "own.yaml", "--out", "own").code == 0
    assert "own: no format can express your own code, model.class: my_model.py:TwoGRUs" in refused(
        "export", "own", "--format", "safetensors", "--trust-code"
    )
    (here / "task.yaml").write_text(tiny_yaml(data={"task": "my_tasks.py:swap_pairs"}))
    assert command("train", "task.yaml", "--out", "task").code == 0
    assert command("export", "task", "--format", "safetensors").code == 0


BLOCKS = re.findall(r"^```py\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("block", "run"),
    list(zip(BLOCKS, ("reverse_sinusoidal", "reverse_sinusoidal", "reverse"), strict=True)),
    ids=["transformers", "ctranslate2", "onnx"],
)
def test_the_examples_of_the_page(
    folder: Path, block: str, run: str, capsys: pytest.CaptureFixture[str]
):
    exec(block, {})
    assert capsys.readouterr().out.splitlines() == toytrans.load(run).translate(["5 7 9"])


STOPPED = """
import os, signal
from toytrans.exports import to_safetensors

write = to_safetensors.write

def stopped(run, path):
    write(run, path)
    os.kill(os.getpid(), signal.SIGTERM)

to_safetensors.write = stopped
"""


def test_a_signal_leaves_no_draft_of_an_export(run: Path):
    words = ("export", "runs/c", "--format", "safetensors")
    ended = Forked(STOPPED + COMMAND, *words, folder=Path.cwd()).ended()
    assert ended.code == 143, ended.err
    assert sorted(path.name for path in Path().iterdir()) == ["c.yaml", "runs"]
