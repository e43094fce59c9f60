"""Below, in and beyond the training lengths: each share is recomputed from the translations."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import Command, call, tiny_yaml

import toytrans

LOW, HIGH, LONGEST = 2, 6, 12
RANGES = {
    "below": range(1, LOW),
    "in_range": range(LOW, HIGH + 1),
    "beyond": range(HIGH + 1, LONGEST + 1),
}
Pair = tuple[list[str], list[str]]


def copies(lengths: range, each: int, seed: int) -> list[Pair]:
    chooser = torch.Generator().manual_seed(seed)
    draws = [torch.randint(4, (n,), generator=chooser) for n in lengths for _ in range(each)]
    sources = [[str(k) for k in draw.tolist()] for draw in draws]
    return [(source, source) for source in sources]


def write(path: str, pairs: list[Pair]) -> None:
    Path(path).write_text("".join(f"{' '.join(s)}\t{' '.join(t)}\n" for s, t in pairs))


def spoil(pairs: list[Pair]) -> Iterator[Pair]:
    """Give some pairs a wrong target: of length 1 seven in ten, to length 6 three, beyond one."""
    for number, (source, target) in enumerate(pairs):
        spoilt = 7 if len(source) < LOW else 3 if len(source) <= HIGH else 1
        wrong = str((int(target[-1]) + 1) % 4)
        yield source, [*target[:-1], wrong] if number % 10 < spoilt else target


TESTED = list(spoil(copies(range(1, LONGEST + 1), 10, 1)))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run trained on lengths 2 to 6 and tested on 1 to 12."""
    folder = tmp_path_factory.mktemp("ranges")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write("train.tsv", copies(range(LOW, HIGH + 1), 80, 0))
        write("test.tsv", TESTED)
        files = {"train": "train.tsv", "test": "test.tsv"}
        model = {"positions": "anchored", "d_model": 32}
        train = {"max_steps": 60, "eval_every": 60, "lr": 0.01}
        data = {"files": files, "batch_tokens": 512}
        Path("c.yaml").write_text(tiny_yaml(data=data, model=model, train=train))
        assert call("train", "c.yaml", "--out", "r") == 0
        shutil.copytree("r", "twin")
    return folder


@pytest.fixture
def right(study: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the translation of each tested source is its target, in the folder of the run."""
    monkeypatch.chdir(study)
    said = toytrans.load("r").translate([" ".join(source) for source, _ in TESTED])
    return [text.split() == target for text, (_, target) in zip(said, TESTED, strict=True)]


def share(right: list[bool], lengths: range) -> float:
    """Exact match of some lengths."""
    values = [ok for ok, (source, _) in zip(right, TESTED, strict=True) if len(source) in lengths]
    return sum(values) / len(values)


@pytest.fixture
def shares(right: list[bool]) -> dict[str, float]:
    found = {part: share(right, lengths) for part, lengths in RANGES.items()}
    assert len(set(found.values())) == 3, "no two of them can be taken for each other"
    return found


def test_eval_gives_each_range_its_share(shares, right, command: Command):
    found = json.loads(command("eval", "r", "--json").out)
    assert {part: found[part]["exact_match"] for part in RANGES} == shares
    for part, lengths in RANGES.items():
        rows = [row for row in found["by_length"] if row["length"] in lengths]
        assert found[part]["examples"] == len(rows) * 10 == len(lengths) * 10
        assert [row["exact_match"] for row in rows] == [
            share(right, range(n, n + 1)) for n in lengths
        ]
    for lengths, there in (("1:6", ["below", "in_range"]), ("9:9", ["beyond"])):
        found = json.loads(command("eval", "r", "--lengths", lengths, "--json").out)
        assert [part for part in RANGES if part in found] == there


def test_several_runs_give_each_range_its_share(shares, tmp_path, command: Command):
    lengths = ("--lengths", "1:12")
    found = json.loads(command("eval", "r", "twin", *lengths, "--json").out)
    (group,) = found["groups"]
    for part in RANGES:
        assert group["runs"][0]["values"][part] == pytest.approx(shares[part])
        assert group["summaries"][part]["mean"] == pytest.approx(shares[part])
    table = tmp_path / "t.csv"
    assert command("eval", "r", *lengths, "--csv", str(table)).code == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    mine = [row for row in rows if row["run"] == "r"]
    exact = [row for row in mine if row["metric"] == "exact_match_free_running"]
    of_parts = {row["part"]: float(row["value"]) for row in exact if not row["shortest"]}
    assert {part: of_parts[part] for part in RANGES} == pytest.approx(shares)
    spans = {row["shortest"]: row["part"] for row in exact if row["shortest"]}
    assert spans == {str(n): part for part, each in RANGES.items() for n in each}
