"""The walk through one small pass: its numbers are the model's, its traps are named."""

import torch
from torch.nn import functional as F

from toytrans.inspection import walkthrough
from toytrans.inspection.shown import batch_of_sequences, fresh
from toytrans.model.masks import MaskMaker
from toytrans.model.transformer import Transformer
from toytrans.table import Table
from toytrans.tokens import PAD_ID, vocabulary_of

STEPS = list(walkthrough.steps(walkthrough.PAIRS))


def step(number: str) -> list[Table]:
    return [table for table in STEPS if table.panel == number]


def values(table: Table) -> torch.Tensor:
    """The numbers of a table, without what stands behind the bar."""
    cells = [[float(cell) for cell in row if "|" not in cell] for _, *row in table.rows]
    return torch.tensor(cells, dtype=torch.float64)


def near(found: torch.Tensor, expected: torch.Tensor, rounding: float = 0.02) -> bool:
    return found.shape == expected.shape and bool((found - expected).abs().max() <= rounding)


def test_every_matrix_follows_from_those_before_it():
    (q,), (k_t,) = step("1"), step("2")
    product, scaled = step("3")
    assert near(values(product), values(q) @ values(k_t), 0.05)
    assert near(values(scaled), values(product) / 2), "the root of a head 4 wide"
    weights = values(step("5")[0])
    expected = values(scaled).clone()
    expected[:, 4] = -torch.inf
    assert near(weights, expected.softmax(-1)) and not weights[:, 4].any()
    v, context = step("6")
    assert near(values(context), weights @ values(v), 0.05)
    q, scores = values(step("8")[0]), values(step("10")[0])
    k, v = (values(table) for table in step("9"))
    assert near(scores, q @ k.T / 2, 0.05)
    seen = torch.ones(5, 5).tril().bool() & torch.tensor([1, 1, 1, 0, 0]).bool()
    assert torch.equal(values(step("7c")[0]) > 0, seen)
    weights = values(step("12")[0])
    scores[:, 4] = -torch.inf
    assert near(weights, scores.softmax(-1)) and not weights[:, 4].any()
    assert near(values(step("13")[0]), weights @ v, 0.05)


def test_the_last_numbers_are_those_of_the_model():
    vocabulary = vocabulary_of([text.split() for side in walkthrough.PAIRS for text in side])
    batch, _ = batch_of_sequences(*walkthrough.PAIRS, vocabulary)
    src, tgt_in, tgt_out = batch.src, batch.tgt_in, batch.tgt_out
    model = fresh(lambda: Transformer(walkthrough.TINY, vocabulary), 0)
    with torch.no_grad():
        memory, logits = model.encode(src), model(src, tgt_in)
    assert near(values(step("7")[0]).float(), memory[0])
    assert near(values(step("15")[0]).float(), logits[0])
    assert step("15")[0].columns[1:5] == ["<pad>", "<bos>", "<eos>", "3"]
    loss = F.cross_entropy(logits.flatten(0, 1), tgt_out.flatten(), ignore_index=PAD_ID)
    assert f"/ 8 = {float(loss):.4f}" in step("16")[0].notes[0]


def test_the_conclusion_is_a_measurement(monkeypatch):
    (table,) = step("17")
    (loss, gradient) = (row for _, *row in table.rows)
    assert loss[0] == loss[1] and float(loss[2]) < 1e-12 and float(gradient[2]) < 1e-12
    assert float(gradient[0]) > 0.01
    # were the other mask to close a real key, the difference would be seen
    whole = MaskMaker.encoder_self

    def closing_one_more(self: MaskMaker, src: torch.Tensor, *rest: object) -> torch.Tensor:
        mask = whole(self, src, *rest).clone()
        if self.pad_mask == "keys_and_queries":
            mask[..., 0] = False
        return mask

    monkeypatch.setattr(MaskMaker, "encoder_self", closing_one_more)
    (_, wrong) = (row for _, *row in list(walkthrough.steps(walkthrough.PAIRS))[-1].rows)
    assert float(wrong[2]) > 1e-3


def test_pairs_of_ones_own_are_walked_the_most_padded_first():
    found = list(walkthrough.steps((["a b c", "a"], ["c", "b a"])))
    assert "pair 2" in found[0].title and "src 2 of 4" in found[0].above[0]
    empty = list(walkthrough.steps(([""], [""])))
    assert [table.panel for table in empty] == [table.panel for table in found]
