"""Below, in and beyond the training lengths: each share is recomputed from the translations."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import Command, tiny_yaml

import toytrans

RANGES = {"below": range(1, 2), "in_range": range(2, 7), "beyond": range(7, 13)}
"""Trained on lengths 2 to 6, tested on 1 to 12."""

SPOILT = {"below": 7, "in_range": 3, "beyond": 1}
"""Of ten tested targets of a length, so many are wrong on purpose."""


def copies(lengths: range, each: int, seed: int) -> list[list[str]]:
    chooser = torch.Generator().manual_seed(seed)
    draws = [torch.randint(4, (n,), generator=chooser) for n in lengths for _ in range(each)]
    return [[str(k) for k in draw.tolist()] for draw in draws]


def write(path: str, pairs: list[tuple[list[str], list[str]]]) -> None:
    Path(path).write_text("".join(f"{' '.join(s)}\t{' '.join(t)}\n" for s, t in pairs))


def test_each_range_has_its_share(here: Path, command: Command):
    write("train.tsv", [(source, source) for source in copies(range(2, 7), 80, 0)])
    tested = []
    for part, lengths in RANGES.items():
        for number, source in enumerate(copies(lengths, 10, 1)):
            last = str((int(source[-1]) + (number % 10 < SPOILT[part])) % 4)
            tested.append((source, [*source[:-1], last]))
    write("test.tsv", tested)
    data = {"files": {"train": "train.tsv", "test": "test.tsv"}, "batch_tokens": 512}
    train = {"max_steps": 60, "eval_every": 60, "lr": 0.01}
    Path("c.yaml").write_text(tiny_yaml(data=data, model={"d_model": 32}, train=train))
    assert command("train", "c.yaml", "--out", "r").code == 0
    shutil.copytree("r", "twin")
    said = toytrans.load("r").translate([" ".join(source) for source, _ in tested])
    right = [text.split() == target for text, (_, target) in zip(said, tested, strict=True)]

    def share(lengths: range) -> float:
        some = [ok for ok, (src, _) in zip(right, tested, strict=True) if len(src) in lengths]
        return sum(some) / len(some)

    shares = {part: share(lengths) for part, lengths in RANGES.items()}
    assert len(set(shares.values())) == 3, "no two of them can be taken for each other"

    found = json.loads(command("eval", "r", "--json").out)
    parts = found["parts"]
    assert {part: parts[part]["free_exact_match"] for part in RANGES} == shares
    assert [row["numbers"]["free_exact_match"] for row in found["by_length"]] == [
        share(range(n, n + 1)) for n in range(1, 13)
    ]
    for part, lengths in RANGES.items():
        assert parts[part]["pairs"] == 10 * len(lengths)
    for words, there in (("1:6", ["below", "in_range"]), ("9:9", ["beyond"])):
        found = json.loads(command("eval", "r", "--lengths", words, "--json").out)
        assert [part for part in RANGES if part in found["parts"]] == there

    (group,) = json.loads(command("eval", "r", "twin", "--lengths", "1:12", "--json").out)["groups"]
    for part in RANGES:
        assert group["runs"][0]["parts"][part]["free_exact_match"] == shares[part]
        assert group["summaries"]["free_exact_match"][part]["mean"] == pytest.approx(shares[part])
    assert command("eval", "r", "--lengths", "1:12", "--csv", "t.csv").code == 0
    rows = list(csv.DictReader(Path("t.csv").read_text().splitlines()))
    exact = [row for row in rows if row["metric"] == "free_exact_match"]
    of_parts = {row["part"]: float(row["value"]) for row in exact if not row["shortest"]}
    assert {part: of_parts[part] for part in RANGES} == pytest.approx(shares)
    spans = {row["shortest"]: row["part"] for row in exact if row["shortest"]}
    assert spans == {str(n): part for part, each in RANGES.items() for n in each}
