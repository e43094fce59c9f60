"""Every task against its rule in plain Python, and the deal of pairs to splits."""

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from conftest import config_of
from hypothesis import given, settings
from hypothesis import strategies as st

from toytrans.data.hashing import mix
from toytrans.data.open import open_dataset
from toytrans.data.pairs import Pairs
from toytrans.data.task_dataset import TaskDataset
from toytrans.data.tasks import SWAP, TASKS, dictionary

NAMES = tuple(TASKS)


def dataset_of(task: str, seed: int = 0, **data: object) -> TaskDataset:
    config = config_of(task, data={"symbols": 10, "seed": seed, **data})
    source = open_dataset(config)
    assert isinstance(source, TaskDataset)
    return source


def drawn(
    source: TaskDataset, count: int, split: str = "train"
) -> list[tuple[list[str], list[str]]]:
    """Symbols of the first pairs of a split."""
    return symbols_of(source, source.pairs(split, torch.arange(count)))


def symbols_of(source: TaskDataset, pairs: Pairs) -> list[tuple[list[str], list[str]]]:
    decode, sides = source.facts.vocabulary.decode, zip(pairs.src, pairs.tgt, strict=True)
    return [(decode(src.tolist()), decode(tgt.tolist())) for src, tgt in sides]


def digits_of(value: int, base: int) -> list[int]:
    """Of a number above 0, least significant first."""
    digits = []
    while value:
        value, digit = divmod(value, base)
        digits.append(digit)
    return digits


def calculated(src: list[str], sign: str, operation: Callable[[int, int], int]) -> list[str]:
    a, b = (int(digits[::-1]) for digits in "".join(src).split(sign))
    return list(str(operation(a, b))[::-1])


def left_on_stack(src: list[str]) -> list[str]:
    """stack's rule, one action at a time."""
    held: list[str] = []
    for symbol in src:
        if symbol != "POP":
            held.append(symbol.removeprefix("PUSH"))
        elif held:
            held.pop()
    return held[::-1]


def translated(words: list[str], seed: int) -> list[str]:
    """lexicon's rule, one word at a time."""
    vocabulary = TASKS["lexicon"].vocabulary(10, seed)
    entries = dictionary(10, seed).tolist()
    order = list(words)
    for place, word in enumerate(words):
        if word == SWAP:
            order[place - 1], order[place + 1] = order[place + 1], order[place - 1]
    symbols = (s for word in order if word != SWAP for s in entries[int(word)] if s >= 0)
    return [vocabulary.symbols[s] for s in symbols]


RULES = {
    "copy": lambda s: s,
    "reverse": lambda s: s[::-1],
    "reverse_nlplike": lambda s: s[::-1],
    "shift": lambda s: [str(int(x) + 10) for x in s],
    "sort": lambda s: sorted(s, key=int),
    "duplicate": lambda s: s + s,
    "odds_first": lambda s: s[1::2] + s[::2],
    "addition": lambda s: calculated(s, "+", operator.add),
    "multiplication": lambda s: calculated(s, "*", operator.mul),
    "parity": lambda s: [str(sum(map(int, s)) % 10)],
    "stack": left_on_stack,
    "lexicon": lambda s: translated(s, seed=3),
}


@pytest.mark.parametrize("task", NAMES)
def test_targets_follow_the_rule(task):
    assert task in RULES, f"write the rule of {task} into RULES, not as tasks.py has it"
    sequences = drawn(dataset_of(task, seed=3, train_length=[1, 12]), 400)
    assert len({len(src) for src, _ in sequences}) > 5
    for src, tgt in sequences:
        assert tgt == RULES[task](src)
    rule = TASKS[task]
    for src, tgt in sequences:
        most = rule.growth * len(src) + rule.extra
        assert len(tgt) <= most, f"{task}: growth and extra allow {most} symbols, not {len(tgt)}"


def test_decoding_has_room_for_the_longest_target_of_a_task():
    assert dataset_of("duplicate").facts.target_growth == 2
    thrice = replace(TASKS["duplicate"], growth=3)
    data = config_of("duplicate", data={"symbols": 10}).data
    assert TaskDataset(thrice, data, seed=0).facts.target_growth == 3


def test_swaps_and_double_words_do_occur_in_the_lexicon():
    sources = [src for src, _ in drawn(dataset_of("lexicon", seed=3, train_length=[6, 12]), 100)]
    assert sum(src.count(SWAP) > 1 for src in sources) > 10
    for src in sources:
        places = [k for k, word in enumerate(src) if word == SWAP]
        assert all(0 < k < len(src) - 1 for k in places)
        assert all(b - a > 2 for a, b in zip(places, places[1:], strict=False))
    entries = dictionary(10, 3)[:-1]
    assert 0 < (entries[:, 1] >= 0).sum() < 10
    assert len(set(entries[:, 0].tolist())) == 10


NUMBERS = st.lists(st.tuples(st.integers(1, 10**40), st.integers(1, 10**40)), max_size=8)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 13), NUMBERS)
def test_sums_and_products_in_any_base(base, numbers):
    numbers += [(base**30 - 1, base**30 - 1), (base**20, base - 1), (base**12 - 1, 1), (1, 1)]
    for task, operation in (("addition", operator.add), ("multiplication", operator.mul)):
        assert_calculated(task, operation, base, numbers)


def test_products_of_hundreds_of_digits_are_exact():
    """With the fullest columns, and a carry through all of them."""
    numbers = [(10**400 - 1, 10**400 - 1), (3**700, 7**500), (10**399 + 1, 10**399)]
    assert_calculated("multiplication", operator.mul, 10, numbers)
    assert_calculated("multiplication", operator.mul, 2, [(2**500 - 1, 2**250 + 1)])


def assert_calculated(
    task: str, operation: Callable[[int, int], int], base: int, numbers: list[tuple[int, int]]
) -> None:
    rows = [[*digits_of(a, base), base, *digits_of(b, base)] for a, b in numbers]
    length = torch.tensor([len(row) for row in rows])
    src = torch.tensor([row + [1] * (max(length) - len(row)) for row in rows])
    results, result_length = TASKS[task].targets(src, length, base, 0)
    found = [row[:n] for row, n in zip(results.tolist(), result_length.tolist(), strict=True)]
    assert found == [digits_of(operation(a, b), base) for a, b in numbers]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["0", "1", *["POP"] * 3, "PUSH0", "PUSH1"])), min_size=1))
def test_stacks_of_any_actions_are_those_of_a_list(rows):
    names = {name: k for k, name in enumerate(TASKS["stack"].vocabulary(2, 0).symbols)}
    length = torch.tensor([len(row) for row in rows])
    src = torch.tensor([[*map(names.get, row), *[3] * (max(length) - len(row))] for row in rows])
    left, left_length = TASKS["stack"].targets(src.long(), length, 2, 0)
    found = [row[:n] for row, n in zip(left.tolist(), left_length.tolist(), strict=True)]
    assert found == [[int(symbol) for symbol in left_on_stack(row)] for row in rows]


def test_stacks_and_actions_are_drawn_as_on_the_board():
    sources = [src for src, _ in drawn(dataset_of("stack", symbols=2, train_length=[9, 9]), 8000)]
    heights = torch.tensor([sum(s in "01" for s in src) for src in sources]).bincount()
    assert heights[0] == 0 and len(heights) == 9, "a stack, and at least one action"
    assert (heights[1:] - 1000).abs().max() < 5 * 1000**0.5
    for src in sources:
        assert not any(s in "01" for s in src[sum(s in "01" for s in src) :])
    actions = Counter(s for src in sources for s in src if s not in "01")
    assert actions.keys() == {"POP", "PUSH0", "PUSH1"}
    assert max(actions.values()) < 1.06 * min(actions.values())


@pytest.mark.parametrize(
    ("task", "shortest"), [("addition", 3), ("multiplication", 3), ("parity", 1), ("stack", 0)]
)
def test_sources_of_a_length_are_counted_right(task, shortest):
    source = dataset_of(task, symbols=2, train_length=[shortest, 10])
    sources = {tuple(src) for src, _ in drawn(source, 9000)}
    for length in range(shortest, shortest + 3):
        assert sum(len(src) == length for src in sources) == TASKS[task].count(2, length)
    assert 10_000 <= TASKS[task].count(2, 2**16) < 10**9, "long ones are not counted to the end"


@pytest.mark.parametrize(("task", "sign"), [("addition", "+"), ("multiplication", "*")])
def test_operands_are_as_long_as_the_board_says(task, sign):
    source = dataset_of(task, train_length=[1, 20])
    assert source.facts.vocabulary.separators == (sign,)
    lengths = set()
    for src, _ in drawn(source, 3000):
        a, b = src.index(sign), len(src) - src.index(sign) - 1
        assert 1 <= a <= 10 and 1 <= b <= 20 - a - 1
        assert src[a - 1] != "0" and src[-1] != "0"
        lengths.add((a, b))
    assert len(lengths) == sum(20 - a - 1 for a in range(1, 11))
    exact = dataset_of(task, train_length=[1, 20], test_length=[40, 40])
    assert set(exact.pairs("test", torch.arange(200)).src_length.tolist()) == {40}


@pytest.mark.parametrize("task", NAMES)
def test_a_pair_depends_on_seed_split_and_index_alone(task):
    source, other = (dataset_of(task, seed=seed, train_length=[1, 9]) for seed in (0, 1))
    many, some = drawn(source, 300, "test"), torch.tensor([299, 7, 7, 130])
    assert symbols_of(source, source.pairs("test", some)) == [many[i] for i in some.tolist()]
    assert many != drawn(source, 300, "valid") and many != drawn(other, 300, "test")


@pytest.mark.parametrize("task", NAMES)
def test_no_source_of_valid_or_test_is_trained_on(task):
    source = dataset_of(task, train_length=[1, 7], test_length=[1, 7])
    counts = {"train": 4000, "valid": 1000, "test": 1000}
    seen = {name: {tuple(s) for s, _ in drawn(source, n, name)} for name, n in counts.items()}
    limit = next(n for n in range(20) if TASKS[task].count(10, n) >= 10_000)
    assert limit <= 7

    train, valid, test = ({src for src in each if len(src) >= limit} for each in seen.values())
    assert len(valid) > 100 and not train & (valid | test) and not valid & test
    shared = {src for src in seen["train"] if len(src) < limit - 1}
    assert shared & seen["test"], "short sources are shared by all splits"
    assert f"{limit - 1}: fewer than 10,000" in source.notes[0]


def test_splits_may_overlap_where_a_board_wants_it():
    source = dataset_of("copy", symbols=2, train_length=[14, 14], disjoint=False)
    train, test = ({tuple(s) for s, _ in drawn(source, 5000, name)} for name in ("train", "test"))
    assert len(train & test) > 100
    assert "disjoint is false" in source.notes[0]


def test_lengths_and_symbols_are_uniform():
    source = dataset_of("copy", train_length=[0, 9])
    pairs = source.pairs("train", torch.arange(20_000))
    lengths = pairs.src_length.bincount(minlength=10)
    assert (lengths - 2000).abs().max() < 5 * 2000**0.5
    symbols = pairs.src[pairs.src > 0].bincount(minlength=13)[3:]
    assert (symbols - symbols.float().mean()).abs().max() < 5 * symbols.float().mean() ** 0.5


def test_nlplike_sources_are_shaped_as_the_board_says():
    source = dataset_of("reverse_nlplike", symbols=8000, train_length=[1, 70], test_length=[35, 70])
    pairs = source.pairs("train", torch.arange(20_000))
    lengths = pairs.src_length.double()
    assert lengths.mean() == pytest.approx(35.5, abs=0.2)  # a normal number of mean 35, rounded up
    assert lengths.std() == pytest.approx(7, abs=0.15)
    middle = ((lengths > 28) & (lengths <= 42)).double().mean()
    assert middle == pytest.approx(0.683, abs=0.015), "one standard deviation to either side"
    counts = pairs.src[pairs.src > 0].sub(3).bincount(minlength=8000)
    shares = [k**-1.3 for k in range(1, 8001)]
    for symbol in (0, 1, 2, 9, 99):
        expected = counts.sum().item() * shares[symbol] / sum(shares)
        assert counts[symbol].item() == pytest.approx(expected, abs=5 * expected**0.5)
    tail = counts[4000:].sum().item()
    assert tail == pytest.approx(counts.sum().item() * sum(shares[4000:]) / sum(shares), rel=0.05)
    clipped = source.pairs("test", torch.arange(2000)).src_length.bincount(minlength=36)
    assert clipped[:35].sum() == 0
    assert clipped[35].item() == pytest.approx(1000, abs=120), "all that were shorter"


def test_mixing_is_a_bijection_that_changes_half_of_the_bits():
    numbers = torch.arange(100_000)
    mixed = mix(numbers)
    assert len(mixed.unique()) == len(numbers)
    flipped = mix(numbers) ^ mix(numbers ^ 1)
    bits = sum(((flipped >> k) & 1).sum().item() for k in range(64)) / len(numbers)
    assert 31.9 < bits < 32.1
    # splitmix64's published first output for seed 0 is 0xE220A8397B1DCDAF
    assert mix(torch.tensor(0)).item() == 0xE220A8397B1DCDAF - 2**64
