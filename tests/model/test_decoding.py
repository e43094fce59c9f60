"""Decoding: a step equals the parallel pass, greedy search needs no cache, beams find the best."""

import itertools

import pytest
import torch
from conftest import EVERY_ANCHOR, SCHEMES, VOCABULARY, id_of, model_of

from toytrans.config.faults import FAULTS
from toytrans.errors import UserError
from toytrans.model import decoding
from toytrans.model.build import plant
from toytrans.model.decoding import search, token_limits
from toytrans.model.transformer import CachedState
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
@pytest.mark.parametrize("positions", SCHEMES, ids=id_of)
def test_step_by_step_logits_equal_one_parallel_pass(positions, norm):
    model = lively(positions, norm=norm, share_layers=norm == "post")
    tgt_in = torch.tensor([[1, 4, 7, 6, 5]]).expand(4, 5)
    with torch.no_grad():
        whole = model(SRC, tgt_in)
        state = model.start_decoding(SRC, 5)
        steps = [state.next_logits(tgt_in[:, t]) for t in range(5)]
    assert torch.allclose(torch.stack(steps, 1), whole, atol=1e-12)


@pytest.mark.parametrize("fault", FAULTS)
@torch.no_grad()
def test_decoding_is_the_model_applied_to_the_prefix_under_every_fault(fault):
    """The whole, broken model: where its mask is not causal, row t of a longer pass is another."""
    tgt_in = torch.tensor([[1, 4, 7, 6, 5]]).expand(4, 5)
    for scheme in SCHEMES:
        model = lively(scheme)
        try:
            plant(fault, model)
        except UserError as error:
            assert (fault, scheme) == ("no_position", {"positions": "none"}), error
            continue
        state = model.start_decoding(SRC, 5, 2)
        for length in range(1, 6):
            prefix = tgt_in[:, :length]
            expected = model(SRC, prefix)[:, -1].repeat_interleave(2, 0)
            found = state.next_logits(prefix[:, -1].repeat_interleave(2))
            assert torch.allclose(found, expected, atol=1e-12), (scheme, length)
            state.select(torch.tensor([1, 0, 2, 2, 4, 5, 7, 7]))


@torch.no_grad()
def test_no_position_takes_the_anchors_of_a_model_without_other_positions():
    """Without them cross-attention cannot tell the order of a source."""
    model = lively({"positions": "none", "cross_positions": "anchored"})
    tgt_in, turned = torch.tensor([[1, 4, 7]]), SRC[:1, [0, 4, 3, 2, 1, 5]]
    assert not torch.allclose(model(SRC[:1], tgt_in), model(turned, tgt_in), atol=1e-3)
    plant("no_position", model)
    assert torch.allclose(model(SRC[:1], tgt_in), model(turned, tgt_in), atol=1e-12)


@pytest.mark.parametrize("model", ["anchored", "rotary", EVERY_ANCHOR], ids=id_of)
@torch.no_grad()
def test_each_beam_sees_its_own_past_alone(model):
    """Logits of beams that change places step by step, and whose sources leave, equal those of
    whole passes over what each has said."""
    model, beams = lively(model), 3
    src = SRC.repeat_interleave(beams, 0)  # a row for each beam
    state = model.start_decoding(SRC, 4, beams)
    said = torch.full((len(src), 1), BOS_ID)
    for step in range(4):
        logits = state.next_logits(said[:, -1])
        assert torch.allclose(logits, model(src, said)[:, -1], atol=1e-12)
        sources = torch.arange(len(src) // beams) if step != 1 else torch.tensor([0, 2, 3])
        parents = torch.randint(beams, (len(sources), beams))
        assert (parents.sort(1).values != torch.arange(beams)).any(), "some beam ends, one divides"
        rows = (sources[:, None] * beams + parents).flatten()
        state.select(rows)
        src, newest = src[rows], torch.randint(3, 9, (len(rows), 1))
        said = torch.cat((said[rows], newest), 1)


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
        logits = state.next_logits(torch.tensor([newest]))[0]
        total += logits.log_softmax(-1)[token].item()
        newest = token
    return total


@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.5])
def test_wide_beams_find_the_best_of_all_sequences(monkeypatch, penalty):
    monkeypatch.setattr(decoding, "TARGET_SLACK", 2)
    src = torch.tensor([[1, 3, 2], [1, 2, 0]])
    for seed in range(4):
        torch.manual_seed(seed)
        layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
        model = model_of(Vocabulary(("a", "b")), **layers, length_penalty=penalty)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        found = search(model, src, beam=300)
        for row, limit in ((0, 4), (1, 2)):
            alone = src[row : row + 1, : 3 - row]
            score, best = max(
                (scored(model, alone, (*middle, EOS_ID)) / (n + 1) ** penalty, (*middle, EOS_ID))
                for n in range(limit)
                for middle in itertools.product((3, 4), repeat=n)
            )
            assert found.score[row].item() == pytest.approx(score, abs=1e-9)
            assert found.tokens[row, : len(best)].tolist() == [*best]


@pytest.mark.parametrize(
    ("model", "width"),
    [("anchored", 1), ("sinusoidal", 1), ("sinusoidal", 3), (EVERY_ANCHOR, 3)],
    ids=id_of,
)
def test_rows_leave_and_the_others_do_not_notice(model, width, monkeypatch):
    """Ten padded sources together and one by one, with the batch shrinking on the way."""
    model = lively(model)
    sources = [torch.randint(3, 9, (n % 7 + 1,)).tolist() for n in range(10)]
    rows = [[BOS_ID, *source, EOS_ID] for source in sources]
    src = torch.tensor([row + [PAD_ID] * (9 - len(row)) for row in rows])
    sizes = []
    select = CachedState.select

    def noted(state, rows):
        sizes.append(len(rows) // width)
        select(state, rows)

    monkeypatch.setattr(CachedState, "select", noted)
    together = search(model, src, beam=width)
    assert sizes and sizes == sorted(sizes, reverse=True) and sizes[-1] < 10
    for number, row in enumerate(rows):
        alone = search(model, torch.tensor([row]), beam=width)
        ids, said = together.tokens[number], alone.tokens[0].tolist()
        assert ids[: len(said)].tolist() == said and not ids[len(said) :].any()
        if width > 1:
            assert together.score[number].item() == pytest.approx(alone.score.item(), abs=1e-9)


def test_a_programs_own_choice_of_products_is_no_error():
    """Made by torch's newer settings, after which its older ones cannot be read."""
    chosen, model = torch.backends.cuda.matmul, model_of(VOCABULARY).eval()
    before, chosen.fp32_precision = chosen.fp32_precision, "tf32"
    try:
        with pytest.raises(RuntimeError, match="precision"):
            torch.get_float32_matmul_precision()
        assert len(search(model, torch.tensor([[1, 5, 6, 2]])).tokens) == 1
    finally:
        chosen.fp32_precision = before
