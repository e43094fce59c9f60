"""Position schemes against their formulas, and what all of them keep."""

import math
from pathlib import Path

import pytest
import torch
from conftest import VOCABULARY, model_of

from toytrans.errors import UserError
from toytrans.model.positions import SCHEMES, scheme_class
from toytrans.model.positions.absolute import sinusoids
from toytrans.model.positions.base import Positions
from toytrans.tokens import BOS_ID, EOS_ID


def self_bias(model, length):
    """(H, Tq, Tk) of the first encoder layer, its table shaken."""
    attention = model.encoder_layers[0].self_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    distances = model.positions.self_distances(range(length), torch.device("cpu"))
    return attention, model.positions.bias(attention.bias_table, distances)[0]


def test_cross_attention_may_have_a_scheme_of_its_own():
    model = model_of(VOCABULARY, positions="rotary", cross_positions="anchored")
    assert model.settings.source_bos
    layer = model.decoder_layers[0]
    assert not layer.self_attention.bias_table.numel() and layer.cross_attention.bias_table.numel()
    alone = model_of(VOCABULARY, positions="anchored", cross_positions="none")
    assert not alone.decoder_layers[0].cross_attention.bias_table.numel()


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative", "anchored"])
def test_a_table_serves_any_pass_whatever_it_was_made_in(positions):
    """In inference mode, for another dtype, under autocast, or for fewer places."""
    model, fresh = (model_of(VOCABULARY, positions=positions) for _ in "12")
    fresh.load_state_dict(model.state_dict())
    ids = torch.tensor([[BOS_ID, 5, 6, 7, EOS_ID]])
    with torch.inference_mode():
        model(ids, ids)
    model(ids, ids).sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        model.float()(ids[:, :3], ids)
    model.double().load_state_dict(fresh.state_dict())
    longer = ids.repeat(1, 2)
    assert torch.allclose(model(ids, longer), fresh(ids, longer), rtol=0, atol=1e-13)


def test_sinusoids_follow_the_paper():
    table = sinusoids(2, 3, 6)
    for row in range(3):
        for i in range(3):
            angle = (row + 2) / 10_000 ** (2 * i / 6)
            assert table[row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_random_places_are_sorted_drawn_anew_and_fixed_outside_of_training(positions):
    model = model_of(VOCABULARY, positions=positions, random_positions=True, max_positions=400)
    scheme, x = model.positions, torch.zeros(1, 20, 24, dtype=torch.float64)
    table = scheme.vectors(400, x)

    def places():
        added = scheme.embed(x)[0]
        return torch.cdist(added, table).argmin(1).tolist()

    still = places()
    assert still == places() == sorted(set(still)) and len(still) == 20
    assert torch.equal(scheme.embed(x[:, :7], start=3), scheme.embed(x)[:, 3:10])
    model.train()
    drawn = [places() for _ in range(50)]
    assert all(row == sorted(set(row)) for row in drawn)
    assert len({tuple(row) for row in drawn}) == 50
    seen = {place for row in drawn for place in row}
    assert min(seen) < 20 and max(seen) >= 380 and len(seen) > 300, "the whole range is met"
    model.eval()
    with pytest.raises(UserError, match="101 places is longer .* 100 .model.max_positions 400"):
        scheme.embed(torch.zeros(1, 101, 24, dtype=torch.float64))


def test_a_learned_table_ends_where_it_ends():
    model = model_of(VOCABULARY, positions="learned", max_positions=7)
    model(torch.tensor([[3] * 6 + [2]]), torch.tensor([[1, 3]]))
    with pytest.raises(
        UserError, match="8 places is longer than the position table has room for: 7"
    ):
        model(torch.tensor([[3] * 7 + [2]]), torch.tensor([[1, 3]]))


def test_rotary_rotates_pairs_and_leaves_the_distance_alone():
    model = model_of(VOCABULARY, positions="rotary")  # heads of width 8
    x = torch.randn(1, 3, 7, 8).double()
    rotated, _ = model.positions.rotate(x, x, 5)
    for t in range(7):
        for i in range(4):
            pair = torch.complex(x[..., t, i], x[..., t, i + 4])
            angle = torch.tensor(1j * (5 + t) / 10_000 ** (2 * i / 8))
            expected = pair * torch.exp(angle)
            assert torch.allclose(rotated[..., t, i], expected.real)
            assert torch.allclose(rotated[..., t, i + 4], expected.imag)
    q, k = x[..., :1, :], x[..., 1:2, :]

    def score(i, j):
        (query, _), (_, key) = model.positions.rotate(q, q, i), model.positions.rotate(k, k, j)
        return (query * key).sum(-1)

    assert torch.allclose(score(3, 1), score(503, 501))
    assert not torch.allclose(score(3, 1), score(3, 2), rtol=1e-3)


def test_alibi_follows_the_paper():
    model = model_of(VOCABULARY, d_model=32, n_heads=8, positions="alibi")
    attention, bias = self_bias(model, 9)
    assert not isinstance(attention.bias_table, torch.nn.Parameter)
    for head, slope in enumerate([2.0**-k for k in range(1, 9)]):  # the paper's for 8 heads
        for i, j in ((0, 8), (8, 0), (4, 4), (2, 7)):
            assert bias[head, i, j].item() == pytest.approx(-slope * abs(i - j), abs=1e-12)


def test_t5_buckets_are_those_of_t5():
    from transformers.models.t5.modeling_t5 import T5Attention

    model = model_of(VOCABULARY, positions="t5")
    attention, bias = self_bias(model, 300)
    keys_less_queries = torch.arange(300)[None] - torch.arange(300)[:, None]
    theirs = T5Attention._relative_position_bucket(keys_less_queries, True, 32, 128)
    # both number the same buckets, but each its own way
    ours = model.positions.bucket(-keys_less_queries)
    pairs = set(zip(ours.flatten().tolist(), theirs.flatten().tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) > 25
    assert torch.allclose(bias, attention.bias_table[:, ours])


def test_relative_positions_are_clipped():
    model = model_of(VOCABULARY, positions="relative")
    attention, bias = self_bias(model, 40)
    for i, j in ((0, 0), (3, 1), (1, 3), (39, 0), (0, 39), (20, 3), (3, 20)):
        wanted = attention.bias_table[:, max(-16, min(16, i - j)) + 16]
        assert torch.equal(bias[:, i, j], wanted)


def test_anchored_bias_in_self_attention_counts_from_key_to_query():
    model = model_of(VOCABULARY, d_model=16, n_heads=2, positions="anchored")
    attention = model.encoder_layers[0].self_attention
    with torch.no_grad():
        attention.bias_table.normal_()
    distances = model.positions.self_distances(range(9), torch.device("cpu"))
    bias = model.positions.bias(attention.bias_table, distances)
    for head, i, j in [(0, 0, 8), (1, 4, 4), (0, 5, 3), (1, 8, 0), (1, 2, 3)]:
        expected = 16 * attention.bias_table[head, max(-3, min(3, i - j)) + 3] - abs(i - j)
        assert bias[0, head, i, j].item() == pytest.approx(expected.item(), abs=1e-9)


def test_every_scheme_has_a_row_in_the_table_of_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    missing = [name for name in SCHEMES if f"| `{name}`" not in page]
    assert not missing, f"docs/results.md: give {', '.join(missing)} a row in the table of schemes"


@pytest.mark.parametrize("name", SCHEMES)
def test_every_entry_of_the_table_of_schemes_names_a_class(name):
    scheme = scheme_class(name)
    assert issubclass(scheme, Positions)
    assert f"{scheme.__module__}:{scheme.__name__}" == SCHEMES[name]
