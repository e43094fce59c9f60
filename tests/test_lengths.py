"""Long sequences: attention in blocks, and what is counted per length."""

import pytest
import torch
from conftest import VOCABULARY, config_of, model_of

from toytrans import evaluation
from toytrans.data.open import open_dataset
from toytrans.data.pairs import DataFacts, Pairs, pad_rows
from toytrans.data.selection import (
    Selection,
    first_of_each,
    pairs_of_split,
    trained_lengths,
)
from toytrans.errors import UserError
from toytrans.evaluation import Scores, Span, spans
from toytrans.tokens import EOS_ID

A, B, C = 5, 6, 7


# Counting ------------------------------------------------------------------------------------


def test_outputs_are_compared_place_by_place():
    """Seven outputs of the target A B C, and one of the empty target."""
    expected = torch.tensor([[A, B, C, EOS_ID]] * 7 + [[EOS_ID, 0, 0, 0]])
    said = torch.tensor(
        [
            [A, B, C, EOS_ID, 0],  # right
            [A, C, C, EOS_ID, 0],  # wrong at place 2, ended where the target does
            [A, EOS_ID, 0, 0, 0],  # too early: 2 and 4
            [A, B, C, A, EOS_ID],  # too late: place 4
            [A, B, C, A, B],  # never: place 4
            [C, B, 0, 0, 0],  # ran into a lower limit: place 1
            [EOS_ID, 0, 0, 0, 0],
            [EOS_ID, 0, 0, 0, 0],
        ]
    )
    columns = evaluation._free(said, expected)
    found = {name: column.int().tolist() for name, column in columns.items()}
    assert found["right"] == [1, 0, 0, 0, 0, 0, 0, 1]
    assert found["free_tokens"] == [4, 3, 1, 3, 3, 1, 0, 1]
    assert found["ended"] == [1, 1, 1, 1, 0, 0, 1, 1]
    assert found["surplus"] == [0, 0, -2, 1, 1, -2, -3, 0]
    assert found["first_error"] == [0, 2, 2, 4, 4, 1, 1, 0]
    narrow = evaluation._free(said[2:3, :2], expected[2:3])
    assert {name: column.tolist() for name, column in narrow.items()} == {
        name: [column.tolist()[2]] for name, column in columns.items()
    }


def scores_of(losses: dict[int, float], **columns: list[int]) -> Scores:
    return Scores({name: torch.tensor(column) for name, column in columns.items()}, losses, (1, 2))


FOUR_OF_TEN = scores_of(
    {1: 5.0, 2: 15.0},
    length=[1] * 4 + [2] * 6,
    tokens=[4] * 10,
    right_tokens=[4, 4, 2, 2, 4, 4, 4, 2, 2, 2],
    forced=[1, 1, 0, 0, 1, 1, 1, 0, 0, 0],
    decoded=[1] * 4 + [0] * 6,
    right=[1] + [0] * 9,
    free_tokens=[4, 2, 1, 1] + [0] * 6,
    surplus=[0, -2, 3, 3] + [0] * 6,
    ended=[1, 1] + [0] * 8,
    first_error=[0, 3, 8, 8] + [0] * 6,
)
"""Ten pairs, the first four of them decoded."""


def test_a_summary_divides_once():
    found = FOUR_OF_TEN.summary()
    assert found["exact_match"] == 1 / 4 and found["forced_exact_match"] == 5 / 10
    assert found["exact_match_difference"] == -1 / 4
    assert found["token_accuracy"] == 30 / 40 and found["free_token_accuracy"] == 8 / 16
    assert found["token_accuracy_difference"] == -4 / 16
    assert (found["wrong"], found["first_error_median"], found["first_error_earliest"]) == (3, 8, 3)
    assert (found["eos_early"], found["eos_late"], found["eos_never"]) == (1, 0, 2)
    assert (found["low"], found["high"]) == evaluation.wilson_interval(1, 4)
    assert found["loss"] == 20 / 40 and FOUR_OF_TEN.summary(1, 1)["loss"] == 5 / 16
    nothing = FOUR_OF_TEN.summary(0, 0)
    assert nothing["first_error_median"] is None
    assert nothing["examples"] == nothing["exact_match"] == nothing["loss"] == 0


@pytest.mark.parametrize("positions", ["sinusoidal", "anchored"])
def test_greedy_exact_match_is_that_of_teacher_forcing(positions):
    """Of untrained models too: an output is right where every forced token is."""
    torch.manual_seed(3)
    config = config_of("copy", data={"symbols": 2, "train_length": [0, 2]})
    pairs = open_dataset(config).pairs("test", torch.arange(300))
    found = []
    for _ in range(4):
        model = model_of(VOCABULARY, positions=positions)
        with torch.no_grad():  # says less than it could, so that it is right now and then
            model.src_embedding.weight[5:] = 0
        found.append(evaluation.evaluate(model, pairs, DataFacts(VOCABULARY, (0, 2))))
    together = found[0] + found[1] + found[2] + found[3]
    total = together.summary()
    assert total["decoded"] == total["examples"] == 1200
    assert 0 < total["wrong"] < 1200, "some are right and some are not"
    assert total["exact_match"] == total["forced_exact_match"]
    assert total["exact_match_difference"] == 0
    assert together.columns["right"].equal(together.columns["forced"])
    assert int((together.columns["first_error"] > 0).sum()) == total["wrong"]
    assert total["loss"] == pytest.approx(
        sum(sum(each.losses.values()) for each in found) / int(together.columns["tokens"].sum())
    )


def test_only_some_pairs_of_each_length_are_decoded():
    config = config_of("copy", data={"train_length": [1, 5]})
    pairs = open_dataset(config).pairs("test", torch.arange(60))
    model, facts = model_of(VOCABULARY), DataFacts(VOCABULARY, (1, 5))
    whole = evaluation.evaluate(model, pairs, facts)
    some = evaluation.evaluate(model, pairs, facts, decode=3)
    rows = first_of_each(pairs.src_length, 3)
    alone = evaluation.evaluate(model, pairs.take(rows), facts)
    forced = ("examples", "token_accuracy", "forced_exact_match", "loss")
    for length in some.lengths:
        found, of_all, decoded = (each.summary(length, length) for each in (some, whole, alone))
        assert found["decoded"] == 3 < found["examples"]
        for key in found:
            assert found[key] == (of_all if key in forced else decoded)[key], key


def test_the_first_rows_of_each_length():
    lengths = torch.tensor([4, 2, 4, 4, 2, 9])
    assert first_of_each(lengths, 2).tolist() == [0, 1, 2, 4, 5]
    assert first_of_each(lengths, None).tolist() == [0, 1, 2, 3, 4, 5]


def test_spans_are_few_round_and_on_one_side_of_the_training_lengths():
    assert spans([3, 5], (1, 9)) == [Span(3, 3, "in_range"), Span(5, 5, "in_range")]
    found = spans(range(1, 401), (1, 25))
    inside, beyond = "in_range", "beyond"
    assert found[:3] == [Span(1, 20, inside), Span(21, 25, inside), Span(26, 40, beyond)]
    assert found[-1] == Span(381, 400, beyond) and len(found) == 21
    parts = [span.part for span in spans([1, 2, 3, 4], (2, 3))]
    assert parts == ["below", "in_range", "in_range", "beyond"]
    assert len(spans(range(0, 5001, 7), (50, 60))) <= 25


# Which pairs ---------------------------------------------------------------------------------


def test_a_tasks_pairs_are_chosen_by_the_length_of_their_targets():
    config = config_of("duplicate", data={"train_length": [1, 6], "test_examples": 50})
    facts = open_dataset(config).facts
    pairs = pairs_of_split(config, facts, "test", Selection((9, 14), 30, "tgt"))
    assert len(pairs) == 30
    assert set(pairs.tgt_length.tolist()) == {10, 12, 14}, "every other length has no target"
    assert trained_lengths(config, facts, "tgt") == (2, 12)
    assert trained_lengths(config, facts, "src") == (1, 6)
    with pytest.raises(UserError, match="lengths 7:7: the data holds no target"):
        pairs_of_split(config, facts, "test", Selection((7, 7), 5, "tgt"))


def test_whoever_follows_an_evaluation_hears_of_every_pair():
    model, facts = model_of(VOCABULARY, positions="none"), DataFacts(VOCABULARY, (0, 5))
    rows = [[3 + k % 7] * (k % 5) for k in range(40)]
    pairs, heard = Pairs(*pad_rows(rows), *pad_rows(rows)), []
    evaluation.evaluate(
        model,
        pairs,
        facts,
        decode=2,
        batch_tokens=60,
        follow=lambda done, total: heard.append((done, total)),
    )
    assert {total for _, total in heard} == {40 + 10}
    assert sum(done for done, _ in heard) == 50 and len(heard) > 4
