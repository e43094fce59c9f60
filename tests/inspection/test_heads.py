"""What each head does: rules on weights and models made by hand."""

import pytest
import torch
from conftest import VOCABULARY, masks_of, model_of
from torch import Tensor

from toytrans.data.batches import Batch, make_batch
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.errors import UserError
from toytrans.inspection import heads as h
from toytrans.inspection.heads import Head, translated
from toytrans.inspection.record import PARTS, Part, capture
from toytrans.model.masks import MaskMaker
from toytrans.tokens import EOS_ID, PAD_ID

ROWS = [[5, 6, 7, 8, 9, 10, 11], [9, 3, 4, 5, 12], [6, 7, 8, 9]]


def batch_of(rows: list[list[int]], source_bos: bool) -> Batch:
    """Sources and their reverses as symbol ids."""
    return make_batch(Pairs(*pad_rows(rows), *pad_rows([row[::-1] for row in rows])), source_bos)


def visible_of(part: str, batch: Batch) -> Tensor:
    """What the masks of a sound model open, (B, Tq, Tk)."""
    mask = masks_of(MaskMaker("keys"), batch.src, batch.tgt_in)[PARTS.index(part)][:, 0]
    return mask.expand(-1, h.axes(part, batch)[0].shape[1], -1)


def by_hand(part: str, rule: str, n: int, t: int, source_bos: bool) -> int:
    """The index of the key that a rule names for the symbol at place t = 1 .. n, or -1."""
    places = {"itself": t, "same place": t, "previous": t - 1, "next": t + 1, "end": n + 1}
    places |= {"mirror place": n + 1 - t, "before mirror": n - t, "after mirror": n + 2 - t}
    place = places.get(rule)
    if rule == "first":
        return 0
    starts_with_bos = source_bos or part == "decoder"
    names = [*(["bos"] if starts_with_bos else []), *range(1, n + 1)]
    names += [] if part == "decoder" else ["end"]
    wanted = "bos" if place == 0 else "end" if place == n + 1 else place
    return names.index(wanted) if wanted in names else -1


def following(part: str, rule: str, batch: Batch, source_bos: bool, weight: float) -> Head:
    """A head that puts `weight` on the key a rule names, where that is seen,
    and the rest evenly on the others; where it is not, all of it evenly."""
    visible = visible_of(part, batch)
    weights = visible / visible.sum(-1, keepdim=True).double()
    for b, row in enumerate(ROWS):
        for t in range(1, len(row) + 1):
            query = t - (part == "cross" or (part == "encoder" and not source_bos))
            key = by_hand(part, rule, len(row), t, source_bos)
            if key >= 0 and visible[b, query, key]:
                others = int(visible[b, query].sum()) - 1
                weights[b, query] = visible[b, query] * (1 - weight) / others
                weights[b, query, key] = weight
    return Head(part, 1, 1, weights, visible)


CASES = [(part, rule) for part, rules in h.RULES.items() for rule in rules]


@pytest.mark.parametrize("source_bos", [False, True])
@pytest.mark.parametrize(("part", "rule"), CASES)
def test_a_head_made_by_a_rule_gets_its_label(part: Part, rule: str, source_bos: bool):
    batch = batch_of(ROWS, source_bos)
    assert (batch.src == PAD_ID).any() and (batch.tgt_in == PAD_ID).any()
    (head,) = h.measure([([following(part, rule, batch, source_bos, 0.9)], batch)])
    symbols = sum(map(len, ROWS))
    named = sum(
        by_hand(part, rule, len(row), t, source_bos) >= 0
        for row in ROWS
        for t in range(1, len(row) + 1)
    )
    if (part, rule) == ("decoder", "next"):
        named = 0  # the mask closes it
    found = next(fit for fit in head.fits if fit.rule == rule)
    assert head.queries == symbols
    assert found.share == pytest.approx(named / symbols)
    assert found.weight == pytest.approx(0.9 * named / symbols)
    assert head.label == (rule if named else h.NO_RULE)
    assert found.low <= found.share <= found.high


def test_chance_by_hand():
    batch = batch_of([[5, 6, 7]], False)
    found = {}
    for part in PARTS:
        visible = visible_of(part, batch)
        seen = Head(part, 1, 1, visible / visible.sum(-1, keepdim=True), visible)
        (head,) = h.measure([([seen], batch)])
        found |= {(part, fit.rule): fit.chance for fit in head.fits}
    # four keys, three queries; the first symbol has nothing before it
    assert found["encoder", "itself"] == pytest.approx(1 / 4)
    assert found["encoder", "previous"] == pytest.approx((0 + 1 / 4 + 1 / 4) / 3)
    assert found["cross", "end"] == pytest.approx(1 / 4)
    assert found["cross", "before mirror"] == pytest.approx((1 / 4 + 1 / 4 + 0) / 3)
    # queries that have read a symbol see two, three and four keys
    assert found["decoder", "previous"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert found["decoder", "next"] == 0


@pytest.mark.parametrize("part", PARTS)
def test_even_weights_follow_no_rule(part: Part):
    """Not even "first", which the first of equal weights would give; nor by rounding."""
    batch = batch_of(ROWS, True)
    visible = visible_of(part, batch)
    even = visible / visible.sum(-1, keepdim=True)
    shaken = even * (1 + 1e-6 * torch.rand_like(even))
    seen = [Head(part, 2, number, each, visible) for number, each in ((1, even), (2, shaken))]
    for head in h.measure([(seen, batch)]):
        assert head.label == h.NO_RULE and all(fit.share == 0 for fit in head.fits)
        assert all(fit.weight == pytest.approx(fit.chance) for fit in head.fits)


def test_half_of_the_queries_or_a_few_of_them_prove_no_rule():
    batch = batch_of(ROWS, False)
    rules = ("same place", "mirror place")
    seen = [following("cross", rule, batch, False, 0.9) for rule in rules]
    (head,) = h.measure([([each], batch) for each in seen] * 10)
    assert {fit.rule for fit in head.fits[:2]} == {*rules}
    assert 0.5 <= head.best.share < 0.6, "the middle symbol is its own mirror"
    assert head.label == h.NO_RULE
    batch = batch_of([[5, 6]], False)
    one = Head("cross", 1, 1, torch.eye(3)[None], visible_of("cross", batch))
    for times, label in ((1, h.NO_RULE), (10, "same place")):
        (head,) = h.measure([([one], batch)] * times)
        assert (head.best.rule, head.best.share, head.label) == ("same place", 1, label)


def test_the_weights_are_those_of_the_pass():
    batch = batch_of(ROWS, False)
    model = model_of(VOCABULARY, positions="sinusoidal", n_encoder_layers=2, n_decoder_layers=1)
    seen = h.attend(model, batch)
    (one,) = h.attend(model, batch, h.Choice("encoder", 2, 3))
    assert one[:3] == ("encoder", 2, 3) and torch.equal(one.weights, seen[5].weights)
    calls = capture(model, batch)
    for one in seen:
        weights = calls[one.part, one.layer].intermediates().weights
        assert torch.equal(one.weights, weights[:, one.number - 1])
        pads = (h.axes(one.part, batch)[1] == PAD_ID)[:, None].expand_as(one.weights)
        assert pads.any() and not one.visible[pads].any()


def test_weights_that_are_no_numbers_are_refused():
    batch = batch_of(ROWS, False)
    model = model_of(VOCABULARY)
    with torch.no_grad():
        model.decoder_stack()[0].cross_attention.in_proj.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="not finite.*diverged"):
        h.attend(model, batch)


def test_a_translation_that_is_cut_off_has_no_end():
    model = model_of(VOCABULARY)
    with torch.no_grad():
        model.output.weight[EOS_ID] = 0
    src = batch_of([[5, 6, 7], [5]], False).src
    said = translated(model, src, 2)
    assert EOS_ID not in said.tgt_out
    assert (said.tgt_in != PAD_ID).equal(said.tgt_out != PAD_ID)
    assert said.tgt_in[0, 1:].equal(said.tgt_out[0, :-1])
