"""Greedy decoding: with a cache as without, and rows leave the batch."""

import pytest
import torch
from conftest import SCHEMES, VOCABULARY, model_of
from lively_models import SRC, lively

from toytrans.data.pairs import bucket
from toytrans.model.decoding import (
    greedy,
)
from toytrans.model.decoding.cached import CachedState
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


@torch.no_grad()
def greedy_without_cache(model, src):
    """One row at a time, one whole pass per token."""
    rows = []
    for row in src:
        row = row[row != PAD_ID][None]
        limit = 2 * int((row > 2).sum()) + 10
        tgt_in = [BOS_ID]
        while len(tgt_in) <= limit:
            tgt_in.append(2 + int(model(row, torch.tensor([tgt_in]))[0, -1, 2:].argmax()))
            if tgt_in[-1] == EOS_ID:
                break
        rows.append(tgt_in[1:])
    return rows


@pytest.mark.parametrize("positions", SCHEMES, ids=str)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_cache_gives_the_same_tokens_as_whole_passes(positions, norm):
    for seed in range(2):
        torch.manual_seed(seed)
        model = lively(positions, norm=norm, share_layers=seed == 1)
        with torch.no_grad():
            model.output.weight[EOS_ID] *= 1.5
        found = greedy(model, SRC).tokens.tolist()
        expected = greedy_without_cache(model, SRC)
        assert [[i for i in row if i != PAD_ID] for row in found] == [
            [i for i in row if i != PAD_ID] for row in expected
        ]


def test_rows_end_at_different_places_and_leave_the_batch(monkeypatch):
    model = lively("sinusoidal")
    sizes, step = [], CachedState.next_logits

    def counted(state: CachedState, tokens: torch.Tensor) -> torch.Tensor:
        sizes.append(len(tokens))
        return step(state, tokens)

    monkeypatch.setattr(CachedState, "next_logits", counted)
    tokens = greedy(model, SRC).tokens
    lengths = [int((row != PAD_ID).sum()) for row in tokens]
    assert len(set(lengths)) > 1 and len(sizes) == max(lengths)
    assert sizes[0] == len(SRC) and sizes[-1] == bucket(lengths.count(max(lengths))) < len(SRC)


def test_a_learned_table_bounds_decoding():
    model = model_of(VOCABULARY, positions="learned", max_positions=8)
    with torch.no_grad():
        model.output.weight[EOS_ID] = 0
        model.output.weight[5] *= 30
    assert greedy(model, SRC).tokens.shape[1] <= 8


def test_no_rows_give_no_rows():
    assert greedy(lively("none"), SRC[:0]).tokens.shape == (0, 0)
