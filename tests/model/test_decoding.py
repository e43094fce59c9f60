"""Decoding: a step equals the parallel pass, greedy search needs no cache, beams find the best."""

import itertools

import pytest
import torch
from conftest import EVERY_ANCHOR, SCHEMES, VOCABULARY, model_of

from toytrans.model import decoding
from toytrans.model.decoding import CachedState, search, token_limits
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary

SRC = torch.tensor(
    [[1, 5, 6, 7, 4, 2], [1, 8, 13, 2, 0, 0], [1, 2, 0, 0, 0, 0], [1, 9, 9, 9, 2, 0]]
)


def lively(positions, **model):
    """Logits differ enough for rows to end at different places. positions: a scheme or its name."""
    scheme = positions if isinstance(positions, dict) else {"positions": positions}
    built = model_of(VOCABULARY, **scheme, **model)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(2)
    return built


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", SCHEMES, ids=str)
def test_step_by_step_logits_equal_one_parallel_pass(positions, norm):
    model = lively(positions, norm=norm, share_layers=norm == "post")
    tgt_in = torch.tensor([[1, 4, 7, 6, 5]]).expand(4, 5)
    with torch.no_grad():
        whole = model(SRC, tgt_in)
        state = model.start_decoding(SRC, 5)
        steps = [state.next_logits(tgt_in[:, t : t + 1]) for t in range(5)]
    assert torch.allclose(torch.cat(steps, 1), whole, atol=1e-12)


@pytest.mark.parametrize("model", ["anchored", "rotary", EVERY_ANCHOR], ids=str)
@torch.no_grad()
def test_beams_sharing_a_cache_see_their_own_past_alone(model):
    """Logits of beams that change places step by step equal those of whole passes over what each
    has said."""
    model = lively(model)
    src = SRC
    state = model.start_decoding(src, 4, 3)
    said = torch.full((4, 3, 1), BOS_ID)
    for step in range(4):
        logits = state.next_logits(said[:, :, -1])
        for beam in range(3):
            whole = model(src, said[:, beam])[:, -1]
            assert torch.allclose(logits[:, beam], whole, atol=1e-12)
        parents = torch.randint(3, (len(src), 3))
        assert (parents.sort(1).values != torch.arange(3)).any(), "some beam ends, one divides"
        before = said.gather(1, parents[..., None].expand_as(said))
        said = torch.cat((before, torch.randint(3, 9, (len(src), 3, 1))), 2)
        state.select_beams(parents)
        if step == 1:
            kept = torch.tensor([2, 0, 3])
            state.select_sources(kept)
            said, src = said[kept], SRC[kept]


def test_limits_depend_on_the_source_and_on_a_learned_table():
    assert token_limits(SRC, 2).tolist() == [18, 14, 10, 16]
    assert token_limits(SRC, 6, longest=20).tolist() == [20, 20, 10, 20]
    model = model_of(VOCABULARY, positions="learned", max_positions=8)
    with torch.no_grad():
        model.output.weight[EOS_ID] = 0
        model.output.weight[5] *= 30
    assert search(model, SRC).tokens.shape[1] <= 8
    assert search(model, SRC[:0]).tokens.shape == (0, 0)


@torch.no_grad()
def scored(model, src, sequence):
    """Log-probability of a sequence, step by step."""
    state, newest, total = model.start_decoding(src, len(sequence)), BOS_ID, 0.0
    for token in sequence:
        logits = state.next_logits(torch.tensor([[newest]]))[0, 0]
        total += logits.log_softmax(-1)[token].item()
        newest = token
    return total


def test_wide_beams_find_the_best_of_all_sequences(monkeypatch):
    monkeypatch.setattr(decoding, "TARGET_SLACK", 2)
    src = torch.tensor([[1, 3, 2], [1, 2, 0]])
    for seed in range(4):
        torch.manual_seed(seed)
        model = model_of(Vocabulary(("a", "b")), n_encoder_layers=1, n_decoder_layers=1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        found = search(model, src, beam=300)
        for row, limit in ((0, 4), (1, 2)):
            alone = src[row : row + 1, : 3 - row]
            score, best = max(
                (scored(model, alone, (*middle, EOS_ID)) / (n + 1), (*middle, EOS_ID))
                for n in range(limit)
                for middle in itertools.product((3, 4), repeat=n)
            )
            assert found.score[row].item() == pytest.approx(score, abs=1e-9)
            assert found.tokens[row, : len(best)].tolist() == [*best]


@pytest.mark.parametrize(
    ("model", "width"),
    [("anchored", 1), ("sinusoidal", 1), ("sinusoidal", 3), (EVERY_ANCHOR, 3)],
    ids=str,
)
def test_rows_leave_and_the_others_do_not_notice(model, width, monkeypatch):
    """Ten padded sources together and one by one, with the batch shrinking on the way."""
    model = lively(model)
    sources = [torch.randint(3, 9, (n % 7 + 1,)).tolist() for n in range(10)]
    rows = [[BOS_ID, *source, EOS_ID] for source in sources]
    src = torch.tensor([row + [PAD_ID] * (9 - len(row)) for row in rows])
    sizes = []
    select = CachedState.select_sources

    def noted(state, kept):
        sizes.append(len(kept))
        select(state, kept)

    monkeypatch.setattr(CachedState, "select_sources", noted)
    together = search(model, src, beam=width)
    assert sizes and sizes == sorted(sizes, reverse=True) and sizes[-1] < 10
    for number, row in enumerate(rows):
        alone = search(model, torch.tensor([row]), beam=width)
        ids, said = together.tokens[number], alone.tokens[0].tolist()
        assert ids[: len(said)].tolist() == said and not ids[len(said) :].any()
        if width > 1:
            assert together.score[number].item() == pytest.approx(alone.score.item(), abs=1e-9)
