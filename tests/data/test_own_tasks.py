"""Tasks of the user's: loaded from a file, drawn like any other, and what is refused."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from conftest import Answer, Command, config_of, tiny_yaml

from toytrans.data.open import check_dataset, open_dataset
from toytrans.data.pairs import Pairs
from toytrans.data.task_dataset import TaskDataset
from toytrans.errors import UserError
from toytrans.references import trust

SWAP = '''\
def swap_pairs(source):
    """Neighbours change places."""
    target = list(source)
    for i in range(0, len(source) - 1, 2):
        target[i], target[i + 1] = source[i + 1], source[i]
    return target
'''

BRACKETS = '''\
class Brackets:
    """Whether brackets match."""

    symbols, target_symbols, shortest = ["(", ")"], ["yes", "no", "("], 2

    def source(self, length, random):
        return [random.randrange(2) for _ in range(length - length % 2)]

    def target(self, source):
        depth = 0
        for symbol in source:
            depth += 1 - 2 * symbol
            if depth < 0:
                return [1, 2]
        return [int(depth > 0)]
'''

CONFIG = tiny_yaml(data={"task": "own.py:swap_pairs"})


@pytest.fixture(autouse=True)
def own(here: Path) -> Path:
    """The file of tasks in the working directory."""
    (here / "own.py").write_text(SWAP + BRACKETS)
    return here / "own.py"


def opened(name: str, **data: object) -> TaskDataset:
    config = config_of(f"own.py:{name}", data={"symbols": None, **data})
    trust(config.references.values())
    source = open_dataset(config)
    assert isinstance(source, TaskDataset)
    return source


def rows(source: TaskDataset, pairs: Pairs) -> list[tuple[list[str], list[str]]]:
    decode, both = source.facts.vocabulary.decode, zip(pairs.src, pairs.tgt, strict=True)
    return [(decode(src.tolist()), decode(tgt.tolist())) for src, tgt in both]


def test_a_function_is_a_task_like_any_other():
    source = opened("swap_pairs", train_length=[0, 9])
    pairs = rows(source, source.pairs("train", torch.arange(300)))
    assert {len(src) for src, _ in pairs} == set(range(10))
    for src, tgt in pairs:
        for i in range(0, len(src) - 1, 2):
            assert tgt[i : i + 2] == [src[i + 1], src[i]]
        assert len(src) == len(tgt) and (len(src) % 2 == 0 or src[-1] == tgt[-1])
    assert source.facts.vocabulary.symbols == tuple("0123456789")


def test_a_sampler_and_symbols_of_its_own():
    source, again = (opened("Brackets", train_length=[2, 20]) for _ in range(2))
    pairs = rows(source, source.pairs("train", torch.arange(400)))
    assert rows(again, again.pairs("train", torch.tensor([40, 3]))) == [pairs[40], pairs[3]]
    assert source.facts.vocabulary.symbols == ("(", ")", "yes", "no")
    assert {len(src) % 2 for src, _ in pairs} == {0}
    answers = {tuple(tgt) for _, tgt in pairs}
    assert answers == {("yes",), ("no",), ("no", "(")}
    for src, tgt in pairs:
        text = "".join(src)
        while "()" in text:
            text = text.replace("()", "")
        assert (tgt == ["yes"]) == (not text)


def test_a_sampler_with_few_sources_of_a_length_shares_them(own):
    own.write_text(
        "def f(s): return s\nf.source = lambda length, random: [random.randrange(2)] * length\n"
    )
    source = opened("f", train_length=[4, 9])
    assert "length 4 to 9" in source.notes[0] and "share" in source.notes[0]
    assert len(source.pairs("valid", torch.arange(20))) == 20
    with pytest.raises(UserError, match=r"too few different sources of 40 .*data\.disjoint"):
        opened("f", valid_length=[40, 40]).pairs("valid", torch.arange(20))


TRUST = ("--trust-code",)


def test_train_eval_translate_and_resume(command: Command, own: Path):
    assert command("train", "c.yaml", "--out", "r", "--set", "train.max_steps=3").code == 0
    measured = command("eval", "r", *TRUST, "--lengths", "7:9", "--json")
    assert measured.code == 0 and '"longest": 9' in measured.out
    assert "resumed at step 3" in resumed(command, 4).err
    own.write_text("# moved about\n" + own.read_text())
    assert "r: changed since it was trained: data.task\n" in resumed(command, 5).err
    own = own.rename("moved.py")
    Path("c.yaml").write_text(Path("c.yaml").read_text().replace("own.py", "moved.py"))
    assert "resumed at step 5" in resumed(command, 6).err, "the pairs are the same"
    own.write_text(own.read_text().replace("return target", "return target[::-1]"))
    refusal = resumed(command, 7)
    assert refusal.code == 2 and "the training data is not that of the saved run" in refusal.err
    assert "not those that the run was trained on" in command("eval", "r", *TRUST).err
    own.unlink()
    assert command("translate", "r", "1 2 3").code == 0, "translation needs no task"
    gone = command("eval", "r", *TRUST)
    assert gone.code == 2 and "moved.py: no such file" in gone.err


def resumed(command: Command, steps: int) -> Answer:
    limit = f"train.max_steps={steps}"
    return command("train", "c.yaml", "--out", "r", "--resume", "--set", limit)


REFUSED = {
    "f = 3\n": ("own.py:f", "cannot be called"),
    "def g(s): return s\n": ("own.py: has no f", "there are g"),
    "x = 1\n\ndef f(s) return s\n": ("own.py:3: ", "SyntaxError"),
    "\nraise ValueError('no\\nway')\n": ("own.py:2: ", "ValueError: no\n"),
    "import nowhere_at_all\n": ("own.py:1: ", "nowhere_at_all", "install"),
    "def f(s):\n    return s[1000]\n": (
        "own.py:f: target([",
        "raises IndexError: list index out of range (own.py:2)",
    ),
    "def f(s): pass\n": ("is None, not a list", "end with return?"),
    "def f(s): return [x / 2 for x in s]\n": ("of type float, not a whole number",),
    "def f(s): return [10]\n": ("holds symbol 10; its symbols are 0 to 9",),
    "n = []\ndef f(s):\n    n.append(1)\n    return [len(n) % 9]\n": ("is not pure", "target(["),
    "def f(s): return []\n": ("is empty for all of 32 sources",),
    "def f(s): return s * 40\n": ("symbols for a source of", "growth (now 2)"),
    "def f(s): return s\nf.symbols = 0\n": (
        "own.py:f: symbols: 0; it may be a whole number, 1 to 100,000",
    ),
    "def f(s): return s\nf.symbols = ['a', 'a']\n": ("names of symbols differ",),
    "def f(s): return s\nf.shortest = 11\n": ("data.train_length", "11 or more"),
    "def f(s): return s\nf.separators = ['+']\n": ("'+' is none of its symbols",),
    "def f(s): return s\nf.source = 3\n": ("source is not a function",),
    "class f:\n    pass\n": ("has no target(source)",),
    "class f:\n    def __init__(self): 1 / 0\n": ("f() raises ZeroDivisionError", "own.py:2"),
    "def f(s): return s\nf.source = lambda n, r: [0] * (n + 1)\n": ("source(1, random) has 2",),
    "import random\ndef f(s): return s\n"
    "f.source = lambda n, r: [random.randrange(10) for _ in range(n)]\n": (
        "two calls of source(",
        "draw from `random`, its argument",
    ),
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_wrong_with_a_task_is_one_line(code: str, own: Path, refused: Callable[..., str]):
    own.write_text(code)
    message = refused("explain", "own.py:f")
    for part in REFUSED[code]:
        assert part in message, message


def test_places_that_hold_no_code(refused: Callable[..., str]):
    assert "none.py: no such file" in refused("explain", "none.py:f")
    assert "write it as FILE.py:NAME" in refused("explain", "own.py")
    assert "data.task" in refused("train", "c.yaml", "--set", "data.task=own.py:")


def test_symbols_of_the_config_and_of_the_task_exclude_each_other():
    assert len(opened("swap_pairs", symbols=4).facts.vocabulary.symbols) == 4
    with pytest.raises(UserError, match=r"names its 2 symbols itself; leave data\.symbols out"):
        opened("Brackets", symbols=4)


def test_a_position_table_needs_what_the_task_says_of_its_growth(own: Path):
    """30 symbols and 10 more fit 40 places."""
    own.write_text("def f(s): return s\nf.growth = 1\n")
    table = {"positions": "learned", "max_positions": 40}
    for longest in (30, 31):
        data = {"symbols": None, "train_length": [1, longest], "test_length": [1, longest]}
        fits = nullcontext() if longest == 30 else pytest.raises(UserError, match="31 symbols are")
        with fits:
            config = config_of("own.py:f", data=data, model=table)
            check_dataset(config, open_dataset(config))
