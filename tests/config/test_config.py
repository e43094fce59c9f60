"""Proves that a config means what it says: YAML 1.2 values, strict keys, messages that name the
place and the remedy, values that follow from others, and a saved config that reads back equal."""

import math
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from pkgutil import resolve_name
from typing import get_type_hints

import pytest
from conftest import config_of, tiny_yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from toytrans.cli.app import COMMANDS, function_of, imported, part
from toytrans.config.faults import FAULTS, decoded_fault, fault_remark, hide, openly_named_fault
from toytrans.config.keys import keys
from toytrans.config.load import as_yaml, load_config, load_settings
from toytrans.config.other_names import NAMES_OF, NO_KEY, REMARKS
from toytrans.config.schema import Settings
from toytrans.config.yaml import read_yaml, write_yaml
from toytrans.data.tasks import TASKS
from toytrans.errors import UserError
from toytrans.model.build import check_fault
from toytrans.model.positions import scheme_names
from toytrans.resolve import resolve
from toytrans.training.faults import Fault
from toytrans.training.optimization import objective_of
from toytrans.training.resume import settings_for_resume

PLAIN = """\
seed: 3
data:
  task: reverse
  symbols: 10
  train_length: [1, 25]
model:
  d_model: 64
  n_heads: 4
train:
  max_steps: 1000
"""


FILES = "seed: 1\ndata:\n  files: "
RUN = Path("run")
SECTIONS = ("data", "model", "train")


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(folder: Path, text: str, *overrides: str) -> Settings:
    return resolve(load_config(write(folder, text), overrides))


def refused_with(
    fragments: tuple[str, ...], folder: Path, text: str | bytes, *overrides: str
) -> str:
    """What is said of a config that is refused: one line with all these."""
    with pytest.raises(UserError) as caught:
        resolve(load_config(write(folder, text), overrides))
    message = str(caught.value)
    assert "\n" not in message
    assert all(fragment in message for fragment in fragments), message
    return message


def test_a_section_that_an_option_gives_is_blamed_on_the_option(tmp_path):
    text = "data: {task: copy}\nmodel: {d_model: 16}\n"
    said = refused_with(("model.d_model",), tmp_path, text, "model={d_model: 0}")
    assert said.startswith("--set: ")


# Values --------------------------------------------------------------------------------------


def test_scalars_follow_yaml_1_2(tmp_path):
    numbers = {"1e-3": 0.001, ".5": 0.5, ".inf": math.inf, "0": 0, "-10": -10}
    words = {"1:30": "1:30", "no": "no", "010": "010", "'5'": "5", '"true"': "true"}
    others = {"true": True, "~": None, "": None, "[1, 2.0, no, ~]": [1, 2.0, "no", None]}
    for text, value in (numbers | words | others).items():
        found = read_yaml(write(tmp_path, f"key: {text}\n")).values
        assert repr(found) == repr({"key": value})  # repr tells 1 from 1.0 and from True


def test_odd_numbers_and_keys(tmp_path):
    found = read_yaml(write(tmp_path, "1: .NaN\ntrue: 1\n~: c\n")).values
    assert list(found) == ["1", "true", "~"], "keys are words whatever they look like"
    assert math.isnan(found["1"]) and found["true"] == 1
    refused_with(("not YAML", "digits"), tmp_path, f"seed: {'9' * 5000}\n")


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.text("0123456789-+.eE:_ ~#'\"[]{}&*!|>%@`\n\t", max_size=8)
    | st.sampled_from(
        ["no", "null", "true", "1e-3", "010", "1:30", "=", "<<", "", "---", "...", "?"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, min_size=1, max_size=4))
@example({"lr": 1e-05, "big": 1e16, "limit": math.inf})
@example({"word": "no", "time": "1:30", "text": "1e-3", "padded": "010", "blank": " ", "": ""})
@example({"lines": "a\n b\n", "deep": {"list": [{"a": None}, [], {}]}, "long": "x " * 100})
@example(dict.fromkeys(("train_length", "valid_length"), [1, 20]))  # one list twice
@example({"next\x85line": "line\u2028separator"})
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_written_yaml_reads_back_equal(tmp_path, values):
    found = read_yaml(write(tmp_path, write_yaml(values))).values
    assert repr(found) == repr(values)


# Files that are refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("data:\n  task: copy\n  task: sort\n", ("run.yaml:3", "data.task", "run.yaml:2", "twice")),
        ("data: {task: copy}\nmodel: &m {d_model: 8}\ntrain: *m\n", ("run.yaml:3", "aliases")),
        ("seed: 1\ndata: !python/object:os.system {}\n", ("run.yaml:2", "tag")),
        ("data: {task: copy}\n? [1, 2]\n: 3\n", ("run.yaml:2", "key")),
        ("seed: 1\n---\nseed: 2\n", ("run.yaml:2", "document")),
        ("seed: 1\ndevice: a\x01b\n", ("run.yaml:2", "not YAML")),
        (b"seed: 1\ndevice: \xff\n", ("run.yaml", "UTF-8")),
        ("", ("run.yaml", "empty", "data.task")),
        ("seed: 3\n", ("run.yaml", "data", "missing")),
        (
            "data:\n  files: {train: a.tsv}\n  test_length: [1, 5]\n",
            ("run.yaml:3", "data.test_length", "data.files"),
        ),
        ("- data\n- model\n", ("run.yaml", "a list at the top", "data:")),
        (FILES + "{valid: a.tsv}", ("run.yaml:3", "data.files.train", "missing")),
        (FILES + "{train: [a, b, c]}", ("run.yaml:3", "files.train", "['a', 'b', 'c']", "two")),
        (FILES + "{train: a, format: tvs}", ("run.yaml:3", "format", "'tvs'; did you mean tsv?")),
        (
            PLAIN.replace("[1, 25]", "[one, 25]"),
            ("run.yaml:5: data.train_length.0", "'one'", "whole number"),
        ),
        (PLAIN.replace("[1, 25]", "[25, 1]"), ("run.yaml:5: data.train_length", "[25, 1]", "swap")),
        (
            PLAIN.replace("n_heads: 4", "n_heads: 5"),
            ("run.yaml:8: model.n_heads", "5 heads", "d_model 64"),
        ),
        (PLAIN.replace("  task: reverse", ""), ("run.yaml:2: data", "data.task or data.files")),
        (
            PLAIN.replace("max_steps", '"a\\nb"'),
            ("run.yaml:10", "train.a\\nb", "unknown key"),
        ),
    ],
)
def test_a_mistake_in_a_file_is_refused_with_its_line(tmp_path, text, fragments):
    message = refused_with(fragments, tmp_path, text)
    assert message.startswith(str(tmp_path / "run.yaml"))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("data:\n\ttask: copy\n", 2, "a tab; indent with blanks"),
        ("data: {task: copy}\n---\nseed: 1\n", 2, "a second document begins; keep one"),
        ("seed: 1\ndata: {task: 'copy}\n", 2, "a quotation mark that opens here is not closed"),
        ("data\uff1a\n  task: copy\n", 1, "a full-width colon"),
        ("data:\n  task\uff1a copy\n", 1, "write a colon and a blank: task: copy"),
        ("data: {task:copy}\n", 1, "write a colon and a blank: task: copy"),
        ("data: {task: copy\nseed: 1\n", 1, "a bracket that opens here is not closed"),
        ("data:\n  task: copy\n seed: 3\n", 3, "odd indentation"),
        ("seed: @x\n", 1, "a value cannot begin with @; put it in quotes"),
        ("a: b: c\n", 1, "a colon in an odd place"),
    ],
)
def test_what_is_not_yaml_is_told_in_plain_words(tmp_path, text, line, says):
    refused_with((f"run.yaml:{line}: ", says), tmp_path, text)


def test_a_section_with_nothing_below_it_is_empty(tmp_path):
    assert load(tmp_path, "data: {task: copy}\nmodel:\ntrain:\n").model.d_model == 64
    refused_with(("run.yaml:1: data: nothing to learn from",), tmp_path, "data:\nmodel:\n")


def test_a_file_of_ten_thousand_brackets_is_refused_in_a_line(tmp_path):
    refused_with(("run.yaml", "nested too deeply"), tmp_path, "a: " + "[" * 10_000 + "]" * 10_000)


def test_a_file_that_is_too_large_missing_or_a_directory_is_refused(tmp_path):
    refused_with(("run.yaml", "1,000,000 bytes"), tmp_path, b"#" * 1_000_001)
    # a million bytes are read: the last one is found to be no text
    refused_with(("UTF-8",), tmp_path, b"#" * 999_999 + b"\xff")
    with pytest.raises(UserError, match=r"absent\.yaml: no such file and no shipped .*textbook"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(UserError, match="is a directory; name a YAML file"):
        load_config(tmp_path)


# Messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "fragments"),
    [
        ("lr=1", ("lr: unknown key", "did you mean train.lr?")),
        ("data.zzz=1", ("data.zzz: unknown key", "data has batch_tokens", "train_length")),
        ("train.lr=fast", ("train.lr: found 'fast', expected a number",)),
        ("train.lr=.inf", ("train.lr: found inf", "finite")),
        ("train.max_steps=1e3", ("train.max_steps: found 1000.0, expected a whole number",)),
        ("model.dropout=1", ("model.dropout: found 1, expected less than 1",)),
        ("model.share_layers=no", ("model.share_layers: found 'no', expected true or false",)),
        ("model=3", ("model: found 3, expected a section of keys",)),
        ("data.train_length=5", ("data.train_length: found 5, expected a list, say [1, 20]",)),
        ("data.train_length=[1]", ("data.train_length: found [1], expected a list of two",)),
        ("device=gpu", ("device: found 'gpu', expected auto | cpu | cuda | cuda:N | mps",)),
        ("train..lr=3", ("--set train..lr=3", "section.key=value")),
        ("seed=[1", ("--set seed", "not YAML")),
        ("fault=no_casual", ("fault: found 'no_casual'; ", "did you mean no_causal?")),
        ("train.learning_rate=1", ("train.learning_rate: unknown key", "that is train.lr here")),
        ("model.layer_norm=pre", ("that is model.norm here (pre or post)",)),
        ("model.num_layers=2", ("model.n_encoder_layers and model.n_decoder_layers",)),
        ("data.train=a.tsv", ("that is data.files.train here",)),
        ("train.batch_size=9", ("data.batch_tokens here (in padded tokens",)),
        ("train.fp16=true", ("train.precision here", "there is no fp16")),
        ("train.precision=fp16", ("found 'fp16'; did you mean bf16?",)),
        ("train.precision=fp8", ("there are auto, fp32, bf16, fp64",)),
        ("train.optimizer=sgd", ("because the optimizer is AdamW; leave it out",)),
        ("train.clip_norm=None", ("found 'None', expected a number; null is YAML's None",)),
        ("train.max_stps=3", ("did you mean train.max_steps?",)),
        ("train.drop=1", ("train has accumulate",)),  # nothing is near enough
        ("data.task=revers", ("data.task: found 'revers'; ", "did you mean reverse?")),
        ("model.positions=rotry", ("model.positions: found 'rotry'; ", "did you mean rotary?")),
        ("model.cross_positions=rotary", ("cross_positions: found 'rotary'; ", "none, anchored")),
    ],
)
def test_an_override_that_is_refused_is_explained(tmp_path, override, fragments):
    message = refused_with(fragments, tmp_path, PLAIN, override)
    assert message.startswith("--set")  # the file is innocent


def test_other_programs_names_lead_to_keys_that_there_are():
    every = {key.path for key in keys()}
    names = [name for of_key in (*NAMES_OF.values(), *NO_KEY.values()) for name in of_key.split()]
    assert len(set(names)) == len(names) > 250 and not every & set(names)
    for key in NAMES_OF:
        assert key.startswith(("--out", "eval ")) or every >= set(re.split(" and | or ", key)), key
    assert set(REMARKS) <= set(NAMES_OF)


# Contradictions ------------------------------------------------------------------------------

TABLE = "model.positions=learned"
GAPS = ("model.random_positions=true", "model.max_positions=100")  # room for a quarter of them


@pytest.mark.parametrize(
    ("overrides", "fragments"),
    [
        # 12 has the divisors 4 and 6 beside 5
        (["model.d_model=12", "model.n_heads=5"], ("model.n_heads", "5", "12", "4", "6")),
        (["model.d_model=7", "model.n_heads=7", "model.positions=sinusoidal"], ("even", "7")),
        (["model.d_model=6", "model.n_heads=2", "model.positions=rotary"], ("even width", "3")),
        # a table of 512 holds 511 symbols and the EOS, or BOS
        ([TABLE, "data.test_length=[1, 512]"], ("data.test_length: 512", "511", "512")),
        ([TABLE, "model.max_positions=25"], ("data.train_length: 25", "24", "max_positions 25")),
        # twice 256 symbols are 512, and BOS comes before them
        ([TABLE, "data.task=duplicate", "data.test_length=[1, 256]"], ("256", "255", "512")),
        (["train.warmup_steps=1001"], ("train.warmup_steps: 1001", "train.max_steps 1000")),
        (["data.files={train: a.tsv}"], ("data", "task and files at once")),
        (["model.max_positions=100"], ("model.max_positions", "positions: learned")),
        (["data.task=addition", "data.train_length=[1, 2]"], ("data.train_length", "3 or more")),
        ([*GAPS, "data.train_length=[1, 25]"], ("data.train_length: 25", "the 24 that")),
        (["model.positions=anchored", "model.source_bos=false"], ("source_bos", "from BOS")),
        # what just fits is taken
        (["model.d_model=7", "model.n_heads=7", "model.positions=none"], ()),
        ([TABLE, "data.test_length=[1, 511]"], ()),
        ([TABLE, "model.max_positions=26"], ()),
        ([TABLE, "data.task=duplicate", "data.test_length=[1, 255]"], ()),
        (["train.warmup_steps=1000"], ()),
        (["data.task=addition", "data.train_length=[1, 3]"], ()),
        ([*GAPS, "data.train_length=[1, 24]", "data.test_length=[24, 24]"], ()),
    ],
)
def test_a_contradiction_is_refused_with_both_sides(tmp_path, overrides, fragments):
    if fragments:
        refused_with(fragments, tmp_path, PLAIN, *overrides)
    else:
        load(tmp_path, PLAIN, *overrides)


# Values that follow from others --------------------------------------------------------------


DEFAULTS = {"symbols": 10, "train_length": (1, 20), "test_length": (1, 25)}
DEFAULTS |= {"train_examples": None, "valid_examples": 1000, "test_examples": 1000}
ABSOLUTE = {"score_cap": 0.0, "source_bos": False, "max_positions": None}


@pytest.mark.parametrize(
    ("overrides", "section", "values"),
    [
        ([], "data", DEFAULTS),
        (
            ["data.train_length=[2, 25]"],
            "data",
            {"valid_length": (2, 25), "test_length": (2, 30)},
        ),
        # 24 rows hold 23 symbols and the EOS
        ([TABLE, "model.max_positions=24"], "data", {"test_length": (1, 23)}),
        # twice 22 symbols and the BOS are 45, twice 23 are 47
        (
            [TABLE, "model.max_positions=46", "data.task=duplicate"],
            "data",
            {"test_length": (1, 22)},
        ),
        (["train.max_steps=1000"], "train", {"warmup_steps": 100, "eval_every": 250}),
        (["train.max_steps=299"], "train", {"warmup_steps": 99, "eval_every": 74}),
        (["train.max_steps=3"], "train", {"warmup_steps": 1, "eval_every": 1}),
        (["train.max_steps=0"], "train", {"warmup_steps": 0, "eval_every": 1}),
        (["model.positions=sinusoidal"], "model", ABSOLUTE),
        ([TABLE], "model", ABSOLUTE | {"max_positions": 512}),
        (["model.positions=anchored"], "model", ABSOLUTE | {"score_cap": 1.0, "source_bos": True}),
    ],
)
def test_values_follow_from_others(tmp_path, overrides, section, values):
    found = getattr(load(tmp_path, "data: {task: copy}\n", *overrides), section).model_dump()
    assert {key: found[key] for key in values} == values


def test_an_override_wins_over_the_file_and_the_last_one_over_the_first(tmp_path):
    config = load(tmp_path, PLAIN, "train.lr=1e-3", "seed=4", "train.lr=1e-4")
    assert (config.seed, config.train.lr) == (4, 1e-4)
    assert config.train.max_steps == 1000


def test_paths_of_files_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path, "data: {files: {train: [a.src, b/a.tgt], valid: /v.tsv}}\n")
    assert config.data.files is not None
    assert config.data.files.train == (str(tmp_path / "a.src"), str(tmp_path / "b/a.tgt"))
    assert (config.data.files.valid, config.data.files.test) == ("/v.tsv", None)


# Saving and resuming -------------------------------------------------------------------------


def resume(folder: Path, before: tuple[str, ...], after: tuple[str, ...]) -> Settings:
    """The settings of a run of PLAIN that is resumed; each time with some overrides."""
    path = write(folder, PLAIN)
    saved, given = load_config(path, before), load_config(path, after)
    return settings_for_resume(saved, resolve(saved), given, RUN)


def test_what_is_saved_reads_back_equal(tmp_path):
    for task, positions in zip_longest(TASKS, scheme_names(), fillvalue="none"):
        overrides = (f"data.task={task}", f"model.positions={positions}")
        given = load_config(write(tmp_path, PLAIN), overrides)
        settings = resolve(given)
        read = load_config(write(tmp_path, as_yaml(given)))
        assert read.model_dump(exclude_unset=True) == given.model_dump(exclude_unset=True)
        assert load_settings(write(tmp_path, as_yaml(settings))) == settings
        assert settings_for_resume(given, settings, given, RUN) == settings


def test_a_config_is_saved_as_it_was_given_and_its_settings_with_every_key(tmp_path):
    given = load_config(write(tmp_path, PLAIN), ["train.lr=0.5"])
    stated = read_yaml(write(tmp_path, as_yaml(given))).values
    expected = read_yaml(write(tmp_path, PLAIN)).values
    expected["train"]["lr"] = 0.5
    assert stated == expected
    saved = read_yaml(write(tmp_path, as_yaml(resolve(given)))).values
    for section, values in (("", saved), *((name, saved[name]) for name in SECTIONS)):
        assert list(values) == [key.name for key in keys() if key.section == section]
    assert saved["data"]["test_length"] == [1, 30]
    assert (saved["train"]["warmup_steps"], saved["train"]["eval_every"]) == (100, 250)


def test_settings_that_lack_what_followed_from_other_keys_are_refused(tmp_path):
    text = as_yaml(load(tmp_path, PLAIN))
    for line in ("  warmup_steps: 100\n", "  test_length: [1, 30]\n"):
        assert line in text
        with pytest.raises(UserError, match=f"{line.split(':')[0].strip()}: missing"):
            load_settings(write(tmp_path, text.replace(line, "")))


def test_what_was_derived_stays_when_only_a_limit_is_raised(tmp_path):
    resumed = resume(tmp_path, ("train.max_steps=30",), ("train.max_steps=600",))
    assert resumed.train.max_steps == 600
    assert (resumed.train.warmup_steps, resumed.train.eval_every) == (10, 7)


def test_steps_may_be_fewer_than_a_derived_warm_up(tmp_path):
    resumed = resume(tmp_path, ("train.max_steps=300",), ("train.max_steps=50",))
    assert (resumed.train.max_steps, resumed.train.warmup_steps) == (50, 50)
    with pytest.raises(UserError, match="train.warmup_steps: 100 steps .* train.max_steps 50"):
        resume(
            tmp_path,
            ("train.max_steps=300", "train.warmup_steps=100"),
            ("train.max_steps=50", "train.warmup_steps=100"),
        )


def test_what_is_stated_and_differs_from_a_saved_run_is_refused(tmp_path):
    stated = ("train.warmup_steps=5", "data.test_length=[1, 40]", "seed=4")
    with pytest.raises(UserError) as refusal:
        resume(tmp_path, (), stated)
    assert (
        "data.test_length (null -> [1, 40]), seed (3 -> 4), train.warmup_steps (null -> 5); set"
        in str(refusal.value)
    )
    with pytest.raises(UserError, match=r"train.warmup_steps \(5 -> null\); set"):
        resume(tmp_path, ("train.warmup_steps=5",), ())


def test_what_followed_may_be_stated(tmp_path):
    stated = ("train.warmup_steps=100", "data.test_length=[1, 30]", "model.d_ff=256")
    assert resume(tmp_path, (), stated) == load(tmp_path, PLAIN)


def test_limits_and_the_device_may_change(tmp_path):
    values = ("max_steps=2000", "max_seconds=60", "stop_at_exact_match=0.99", "patience=3")
    values += ("keep_checkpoints=5",)
    overrides = ("device=cpu", *(f"train.{value}" for value in values))
    resumed = resume(tmp_path, (), overrides)
    derived = ("train.warmup_steps=100", "train.eval_every=250")
    assert resumed == load(tmp_path, PLAIN, *overrides, *derived)


# The module itself ---------------------------------------------------------------------------


def modules_of_commands() -> set[str]:
    """The module of each command, below toytrans.cli."""
    entries = [inner for entry in COMMANDS.values() for inner in entry.verbs.values() or [entry]]
    return {entry.place.partition(":")[0] for entry in entries}


def modules_after(*words: str) -> tuple[int, set[str]]:
    """The exit code of a command in a new process, and what it has imported."""
    code = (
        "import sys\n"
        f"sys.argv = ['toytrans', *{words!r}]\n"
        "from toytrans.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as stop: code = stop.code\n"
        "print('imported', code, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, exit_code, *modules = done.stdout[done.stdout.index("imported") :].split()
    return int(exit_code), set(modules)


def test_the_help_of_all_commands_waits_for_nothing():
    code, modules = modules_after("--help")
    assert code == 0 and "toytrans.cli.app" in modules
    assert not modules & {"torch", "pydantic", "yaml", "importlib.metadata"}
    assert not modules & {f"toytrans.cli.{name}" for name in modules_of_commands()}


REFUSED = """
import sys
from toytrans.cli.app import main
for words in {lines!r}:
    sys.argv = ["toytrans", *words.split()]
    try: main()
    except SystemExit as stop: print(words, "|", stop.code, *{heavy!r} & sys.modules.keys())
"""
"""A program that types lines one after another, and prints what each has imported of some."""


def answered(lines: list[str], heavy: set[str], folder: Path) -> list[str]:
    """The exit code of each line, and what of the heavy modules was imported until then."""
    code = REFUSED.format(lines=lines, heavy=heavy)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    return [line.partition(" | ")[2] for line in done.stdout.splitlines() if " | " in line]


def test_what_is_misspelt_is_told_before_torch_is_imported(tmp_path):
    """The options of every command, and the keys of those that take a config or a sweep file."""
    names = [f"{n} {v}".strip() for n, e in COMMANDS.items() for v in e.verbs or [""]]
    options = [f"{name} --misspelt" for name in names if name != "train"]
    assert answered(options, {"torch", "matplotlib"}, tmp_path) == ["2"] * 17
    (tmp_path / "c.yaml").write_text(PLAIN)
    (tmp_path / "wrong.yaml").write_text(PLAIN.replace("max_steps", "max_step"))
    (tmp_path / "sweep.yaml").write_text("base: c.yaml\nmeasures: {test: {lenghts: [1, 2]}}\n")
    (tmp_path / "grid.yaml").write_text("base: c.yaml\ngrid: {train.lr: [0.1, fast]}\n")
    keys = [
        *("train --misspelt", "train wrong.yaml", "sweep wrong.yaml", "sweep sweep.yaml"),
        *("sweep c.yaml --set train.lrr=1,2", "sweep c.yaml --set train.lr=1,a", "sweep grid.yaml"),
        *(
            "check wrong.yaml",
            "check --config c.yaml --set train.lrr=1",
            "inspect-masks wrong.yaml",
        ),
        *("inspect-masks wrong.yaml", "trace wrong.yaml", "demo decoding wrong.yaml"),
    ]
    assert answered(keys, {"torch", "matplotlib"}, tmp_path) == ["2"] * len(keys)


def test_a_sound_training_imports_no_fault(tmp_path):
    (tmp_path / "c.yaml").write_text(tiny_yaml(train={"max_steps": 1}))
    code, modules = modules_after("train", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "r"))
    assert code == 0 and "toytrans.config.faults" in modules
    assert "toytrans.training.faults" not in modules


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_and_takes_the_same_wherever_it_stands(name):
    """Its first line stands in the help of all; its options are the arguments of what it does."""
    entry = COMMANDS[name]
    help_of_one = imported(name).help
    assert help_of_one is not None
    assert help_of_one.partition("\n\n")[0].replace("\n", " ") == entry.help
    for each in (entry.verbs or {name: entry}).values():
        declared, does = get_type_hints(function_of(each)), get_type_hints(part(each.place))
        assert list(declared.items()) == list(does.items())


# Faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_the_table_of_faults_names_a_class_of_each(fault):
    assert issubclass(resolve_name(FAULTS[fault]), Fault)
    assert len(set(FAULTS.values())) == len(FAULTS) == len(Fault.__subclasses__())


@pytest.mark.parametrize("fault", [*FAULTS, None])
def test_a_hidden_fault_is_at_work_and_named_nowhere(fault, tmp_path):
    hidden = load(tmp_path, PLAIN, f"fault={hide(fault)}").fault
    assert decoded_fault(hidden) == fault and decoded_fault(fault) == fault
    assert str(fault) not in hidden + fault_remark(hidden)
    assert openly_named_fault(fault) == fault and openly_named_fault(hidden) is None
    assert type(objective_of(hidden)) is type(objective_of(fault))
    # an error about one fault alone would tell which it is
    model = config_of(model={"n_heads": 1}).model
    check_fault(hidden, model)
    if fault == "wrong_scale":
        with pytest.raises(UserError, match="wrong_scale is no fault with one head"):
            check_fault(fault, model)
    assert fault_remark(hidden) == "an exercise"


def test_a_fault_without_effect_is_refused_where_it_was_written(command, tmp_path):
    text = PLAIN.replace("n_heads: 4", "n_heads: 1")
    path = write(tmp_path, f"{text}fault: wrong_scale\n")
    refused = command("train", str(path), "--out", str(tmp_path / "r"))
    assert refused.code == 2
    assert "run.yaml:11: fault: wrong_scale is no fault with one head" in refused.err


def test_what_is_no_hidden_fault_is_no_fault(tmp_path):
    hidden = hide("no_norm")
    for text in (hidden[:-1], f"{hidden}a", "hidden-", "hidden-é", hidden.upper()):
        refused_with(("fault: ", text), tmp_path, PLAIN, f"fault={text}")


def test_the_longest_training_sources_leave_none_beyond_them():
    """Test sources are five symbols longer by default, as far as a length may go."""
    assert config_of(data={"train_length": [2, 65_536]}).data.test_length == (2, 65_536)
    assert config_of(data={"train_length": [2, 65_533]}).data.test_length == (2, 65_536)
    assert config_of(data={"train_length": [2, 9]}).data.test_length == (2, 14)
