"""Beam search finds what exhaustive search finds."""

import itertools

import pytest
import torch
from conftest import EVERY_ANCHOR, model_of
from lively_models import SRC, lively

from toytrans.model.decoding import (
    beam_search,
    greedy,
    limits,
    search,
)
from toytrans.model.decoding.cached import CachedState
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary


def scored(model, src, sequence):
    """Log-probability of a sequence, step by step."""
    state, newest, total = model.start_decoding(src, len(sequence)), BOS_ID, 0.0
    for token in sequence:
        logits = state.next_logits(torch.tensor([[newest]]))[0, 0]
        total += logits.log_softmax(-1)[token].item()
        newest = token
    return total


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_wide_beams_find_the_best_of_all_sequences(monkeypatch, alpha):
    monkeypatch.setattr(limits, "TARGET_SLACK", 2)
    src = torch.tensor([[1, 3, 2], [1, 2, 0]])
    for seed in range(4):
        torch.manual_seed(seed)
        model = model_of(Vocabulary(("a", "b")), n_encoder_layers=1, n_decoder_layers=1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        found = beam_search(model, src, width=300, alpha=alpha)
        for row, limit in ((0, 4), (1, 2)):
            alone = src[row : row + 1, : 3 - row]
            with torch.no_grad():
                best = max(
                    (
                        (scored(model, alone, (*middle, EOS_ID)) / (n + 1) ** alpha, middle)
                        for n in range(limit)
                        for middle in itertools.product((3, 4), repeat=n)
                    ),
                )
            assert found.score[row].item() == pytest.approx(best[0], abs=1e-9)
            tokens = [i for i in found.tokens[row].tolist()][: len(best[1]) + 1]
            assert tokens == [*best[1], EOS_ID]


def test_one_beam_is_greedy_search_where_sequences_end():
    model = lively("anchored")
    one, plain = beam_search(model, SRC, width=1), greedy(model, SRC)
    ended = (plain.tokens == EOS_ID).any(1)
    assert ended.any()
    for row in ended.nonzero()[:, 0].tolist():
        said = plain.tokens[row][plain.tokens[row] != PAD_ID].tolist()
        assert one.tokens[row, : len(said)].tolist() == said
        alone = SRC[row : row + 1][:, SRC[row] != PAD_ID]
        assert one.score[row].item() == pytest.approx(scored(model, alone, said) / len(said))


@pytest.mark.parametrize("width", [2, 5])
def test_beams_do_not_depend_on_the_batch(width):
    model = lively("sinusoidal")
    together = search(model, SRC, beam=width)
    for row in range(len(SRC)):
        alone = search(model, SRC[row : row + 1][:, SRC[row] != PAD_ID], beam=width)
        real = alone.tokens.shape[1]
        assert together.tokens[row, :real].tolist() == alone.tokens[0].tolist()
        assert together.score[row].item() == pytest.approx(alone.score[0].item(), abs=1e-9)


@pytest.mark.parametrize("model", ["anchored", EVERY_ANCHOR], ids=["default", "every_anchor"])
@pytest.mark.parametrize("width", [1, 3])
def test_rows_leave_and_the_others_do_not_notice(model, width, monkeypatch):
    """Thirty padded sources together and one by one, with the batch shrinking on the way."""
    model = lively(model)
    sources = [torch.randint(3, 9, (n % 7 + 1,)).tolist() for n in range(30)]
    rows = [[BOS_ID, *source, EOS_ID] for source in sources]
    src = torch.tensor([row + [PAD_ID] * (9 - len(row)) for row in rows])
    sizes = []
    select = CachedState.select_sources

    def noted(state, kept):
        sizes.append(len(kept))
        select(state, kept)

    monkeypatch.setattr(CachedState, "select_sources", noted)
    together = search(model, src, beam=width).tokens
    assert sizes and sizes == sorted(sizes, reverse=True) and sizes[-1] < 30
    for ids, row in zip(together, rows, strict=True):
        alone = search(model, torch.tensor([row]), beam=width).tokens[0].tolist()
        assert ids[: len(alone)].tolist() == alone and not ids[len(alone) :].any()
