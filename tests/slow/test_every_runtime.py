"""Random sequences in every runtime of `toytrans export`: the tokens are those of toytrans.

ROWS in the environment says how many, say 1000. A runtime that is not installed is skipped.
"""

import itertools
import os
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
import torch
from conftest import call, write_yaml

import toytrans
from toytrans import export
from toytrans.config.names import ExportFormat, PositionName
from toytrans.errors import UserError
from toytrans.tokens import BOS_ID, EOS_ID

pytestmark = pytest.mark.slow

ROWS = int(os.environ.get("ROWS", "100"))
NEAR_TIE = 1e-4
"""Nats; fp32 rounds logits of a few nats by less."""

SCHEMES = {name: {"positions": name} for name in get_args(PositionName)}
SCHEMES["random"] = {"positions": "sinusoidal", "random_positions": True}
CONFIG = {
    "data": {"task": "reverse", "symbols": 20, "train_length": [1, 20]}
    | {"valid_examples": 100, "test_examples": 100, "batch_tokens": 1024},
    "train": {"max_steps": 100, "lr": 3e-3, "precision": "fp32"},
}


def gap(run: toytrans.Run, src: list[int], ours: list[int], theirs: list[int]) -> float:
    """Nats between the two likeliest tokens where two answers part."""
    both = enumerate(itertools.zip_longest(ours, theirs))
    same = next(place for place, (our, their) in both if our != their)
    with torch.no_grad():
        logits = run.model(torch.tensor([src]), torch.tensor([[BOS_ID, *ours[:same]]]))[0, -1]
    best, second = logits[EOS_ID:].topk(2).values.tolist()
    return float(best - second)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_runtime_decodes_the_same_tokens(scheme: str, norm: str, tmp_path: Path) -> None:
    """Or refuses the model; two tokens that are equally likely but for rounding may be swapped."""
    model = {"d_model": 32, "n_heads": 4, "d_ff": 64, "norm": norm} | SCHEMES[scheme]
    (tmp_path / "c.yaml").write_text(write_yaml(CONFIG | {"model": model}))
    assert call("train", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "run")) == 0
    run = toytrans.load(tmp_path / "run", "last")
    src = export.random_sources(run, ROWS, 20)
    compared = 0
    for name in get_args(ExportFormat):
        if not all(map(find_spec, export.FORMATS[name].needs)):
            continue
        try:
            export.export(run, name, tmp_path / name)
        except UserError as refusal:
            assert "cannot express" in str(refusal)
            continue
        pairs = export.compare(run, export.decoder_of(name, tmp_path / name), src)
        answers = zip(src, pairs, strict=True)
        gaps = [gap(run, row, *pair) for row, pair in answers if pair[0] != pair[1]]
        assert max(gaps, default=0.0) <= NEAR_TIE, name
        compared += 1
    assert compared, "plain PyTorch takes every model"
