"""What is counted of each pair, how it is summed, and which pairs are measured."""

import math

import pytest
import torch
from conftest import VOCABULARY, config_of, model_of
from torch.nn import functional as F

from toytrans import evaluation
from toytrans.data.batches import make_batch
from toytrans.data.open import open_dataset
from toytrans.data.pairs import DataFacts, Pairs
from toytrans.data.selection import Selection, pairs_of_split, trained_lengths
from toytrans.errors import UserError
from toytrans.evaluation import evaluate, first_of_each, translate
from toytrans.model.decoding import search
from toytrans.outputs import Outputs
from toytrans.score_tables import LengthGroup, group_lengths
from toytrans.scores import Scores, wilson_interval
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, Vocabulary

A, B, C = 5, 6, 7


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17, table I, method 3 (score, no correction)
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_are_the_published_ones(right, total, low, high):
    found = pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5)
    assert wilson_interval(right, total) == found


def test_counts_are_those_of_one_row_at_a_time(monkeypatch):
    monkeypatch.setattr(evaluation, "BATCH_TOKENS", 100)
    source = open_dataset(config_of("copy", data={"symbols": 10, "train_length": [0, 7]}))
    pairs = source.pairs("test", torch.arange(20))
    model = model_of(VOCABULARY, positions="sinusoidal").train()
    facts = DataFacts(VOCABULARY, (0, 5))
    scores = evaluate(model, pairs, facts)
    assert model.training, "the mode is left as it was"
    model.eval()
    tokens = right = exact = 0
    loss = 0.0
    for row in range(20):
        batch = make_batch(pairs.take(torch.tensor([row])), source_bos=False)
        with torch.no_grad():
            logits = model(batch.src, batch.tgt_in)
        loss += F.cross_entropy(logits[0], batch.tgt_out[0], reduction="sum").item()
        right += int((logits.argmax(-1) == batch.tgt_out).sum())
        tokens += batch.tgt_out.numel()
        exact += search(model, batch.src).tokens.tolist() == batch.tgt_out.tolist()
    total = scores.summary()
    assert (total["examples"], total["token_accuracy"]) == (20, right / tokens)
    assert total["exact_match"] == exact / 20
    assert total["loss"] == pytest.approx(loss / tokens)
    assert math.exp(total["loss"]) > 2, "an untrained model is uncertain"
    assert sum(scores.summary(n, n)["examples"] for n in scores.lengths) == 20
    assert scores.lengths == sorted(set(pairs.src_length.tolist()))


def test_translations_come_in_the_order_of_the_questions():
    model, facts = model_of(VOCABULARY, positions="sinusoidal"), DataFacts(VOCABULARY, (0, 5))
    sequences = [["1"], [], ["4", "5", "6", "7", "8"], ["2", "+"]]
    alone = [translate(model, [s], facts)[0] for s in sequences]
    assert translate(model, sequences, facts) == alone


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
    columns = evaluation._compare(said, expected, unknown=-1)
    found = {name: column.int().tolist() for name, column in columns.items()}
    assert found["free_exact"] == [1, 0, 0, 0, 0, 0, 0, 1]
    assert found["free_tokens"] == [4, 3, 1, 3, 3, 1, 0, 1]
    assert found["ended"] == [1, 1, 1, 1, 0, 0, 1, 1]
    assert found["surplus"] == [0, 0, -2, 1, 1, -2, -3, 0]
    assert found["first_error"] == [0, 2, 2, 4, 4, 1, 1, 0]


def test_the_symbol_of_unknown_ones_is_never_right():
    """Targets are what the model writes, so all is right; until one of their symbols is <unk>."""
    model = model_of(VOCABULARY, positions="sinusoidal", tie_embeddings=False)
    with torch.no_grad():
        model.output.weight[EOS_ID] *= -3  # so that some outputs end
    sources = open_dataset(config_of("copy")).pairs("test", torch.arange(300))
    written = search(model, make_batch(sources, source_bos=False).src).tokens
    ended = (written == EOS_ID).any(1)
    target = written.where(written >= FIRST_SYMBOL_ID, 0)
    length = (target > 0).sum(1)
    pairs = Pairs(sources.src, sources.src_length, target, length).take(ended.nonzero()[:, 0])
    most = int(pairs.tgt[pairs.tgt > 0].mode().values)
    holds = (pairs.tgt == most).any(1)
    assert holds.any() and not holds.all(), "both occur"
    for unknown in ("", VOCABULARY.name(most)):
        facts = DataFacts(Vocabulary(VOCABULARY.symbols, unknown=unknown), (0, 6))
        columns = evaluate(model, pairs, facts).columns
        right = ~holds if unknown else torch.ones_like(holds)
        assert columns["free_exact"].bool().tolist() == right.tolist()
        assert columns["forced_exact"].bool().tolist() == right.tolist()
        wrong_tokens = (pairs.tgt == most).sum(1) if unknown else 0
        assert columns["forced_tokens"].equal(pairs.tgt_length + 1 - wrong_tokens)


@torch.no_grad()
@pytest.mark.parametrize("beam", [1, 3])
def test_saved_scores_are_those_of_the_search(beam):
    """Of beam search its own; of greedy search those of a beam of one, written out."""
    model, facts = model_of(VOCABULARY, positions="sinusoidal"), DataFacts(VOCABULARY, (0, 6))
    pairs = open_dataset(config_of("copy")).pairs("test", torch.arange(9))
    saved = Outputs(model, VOCABULARY)
    evaluate(model, pairs, facts, beam=beam, keep=saved)
    assert sorted(saved.lines) == list(range(9))
    for row, line in saved.lines.items():
        src = make_batch(pairs.take(torch.tensor([row])), source_bos=False).src
        found = search(model, src, beam=beam)
        if found.score is None:
            (ids,) = found.tokens.tolist()
            logits = model(src, torch.tensor([[BOS_ID, *ids[:-1]]]))[0].double()
            log_probs = logits.log_softmax(-1)[range(len(ids)), ids]
            expected = float(log_probs.sum()) / len(ids)
        else:
            expected = float(found.score[0])
        assert line["score"] == pytest.approx(expected, abs=1e-5)
        assert line["output"].split() == VOCABULARY.decode(found.tokens[0].tolist())
        assert line["source"].split() == VOCABULARY.decode(src[0].tolist())


def test_a_summary_divides_once():
    """Ten pairs, the first four of them decoded."""
    columns = {
        "length": [1] * 4 + [2] * 6,
        "tokens": [4] * 10,
        "forced_tokens": [4, 4, 2, 2, 4, 4, 4, 2, 2, 2],
        "forced_exact": [1, 1, 0, 0, 1, 1, 1, 0, 0, 0],
        "decoded": [1] * 4 + [0] * 6,
        "free_exact": [1] + [0] * 9,
        "free_tokens": [4, 2, 1, 1] + [0] * 6,
        "surplus": [0, -2, 3, 3] + [0] * 6,
        "ended": [1, 1] + [0] * 8,
        "first_error": [0, 3, 8, 8] + [0] * 6,
    }
    tensors = {name: torch.tensor(column) for name, column in columns.items()}
    scores = Scores(tensors, {1: 5.0, 2: 15.0}, (1, 2))
    found = scores.summary()
    assert found["exact_match"] == 1 / 4 and found["forced_exact_match"] == 5 / 10
    assert found["exact_match_difference"] == -1 / 4
    assert found["token_accuracy"] == 30 / 40 and found["free_token_accuracy"] == 8 / 16
    assert found["token_accuracy_difference"] == -4 / 16
    assert (found["wrong"], found["first_error_median"], found["first_error_earliest"]) == (3, 8, 3)
    assert (found["eos_early"], found["eos_late"], found["eos_never"]) == (1, 0, 2)
    assert (found["low"], found["high"]) == wilson_interval(1, 4)
    assert found["loss"] == 20 / 40 and scores.summary(1, 1)["loss"] == 5 / 16
    nothing = scores.summary(0, 0)
    assert nothing["first_error_median"] is None
    assert nothing["examples"] == nothing["exact_match"] == nothing["loss"] == 0


def test_greedy_exact_match_is_that_of_teacher_forcing():
    """Of untrained models too: an output is right where every forced token is."""
    config = config_of("copy", data={"symbols": 2, "train_length": [0, 2]})
    pairs = open_dataset(config).pairs("test", torch.arange(300))
    torch.manual_seed(2)
    model = model_of(VOCABULARY, positions="sinusoidal")
    with torch.no_grad():  # says less than it could, so that it is right now and then
        model.src_embedding.weight[5:] = 0
    found = evaluate(model, pairs, DataFacts(VOCABULARY, (0, 2)))
    total = found.summary()
    assert total["decoded"] == total["examples"] == 300
    assert 0 < total["wrong"] < 300, "some are right and some are not"
    assert total["exact_match"] == total["forced_exact_match"]
    assert found.columns["free_exact"].equal(found.columns["forced_exact"])
    both = (found + found).summary()
    assert (both["examples"], both["wrong"]) == (600, 2 * total["wrong"])
    assert both["loss"] == pytest.approx(total["loss"])


def test_only_some_pairs_of_each_length_are_decoded():
    config = config_of("copy", data={"train_length": [1, 5]})
    pairs = open_dataset(config).pairs("test", torch.arange(60))
    model, facts = model_of(VOCABULARY), DataFacts(VOCABULARY, (1, 5))
    whole = evaluate(model, pairs, facts)
    some = evaluate(model, pairs, facts, decode=3)
    rows = first_of_each(pairs.src_length, 3)
    alone = evaluate(model, pairs.take(rows), facts)
    forced = ("examples", "token_accuracy", "forced_exact_match", "loss")
    for length in some.lengths:
        found, of_all, decoded = (each.summary(length, length) for each in (some, whole, alone))
        assert found["decoded"] == 3 < found["examples"]
        for key in found:
            assert found[key] == (of_all if key in forced else decoded)[key], key


def test_groups_of_lengths_are_few_round_and_on_one_side_of_the_training_lengths():
    assert group_lengths([3, 5], (1, 9)) == [
        LengthGroup(3, 3, "in_range"),
        LengthGroup(5, 5, "in_range"),
    ]
    found = group_lengths(range(1, 401), (1, 25))
    inside, beyond = "in_range", "beyond"
    assert found[:3] == [
        LengthGroup(1, 20, inside),
        LengthGroup(21, 25, inside),
        LengthGroup(26, 40, beyond),
    ]
    assert found[-1] == LengthGroup(381, 400, beyond) and len(found) == 21
    parts = [group.part for group in group_lengths([1, 2, 3, 4], (2, 3))]
    assert parts == ["below", "in_range", "in_range", "beyond"]
    assert len(group_lengths(range(0, 5001, 7), (50, 60))) <= 25


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
