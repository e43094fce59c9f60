"""What is counted of each pair, how it is summed, and which pairs are measured."""

import math
import random

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
from toytrans.evaluation import evaluate, first_of_each, free_answers, translate
from toytrans.metrics import COLUMNS_FORCED, COLUMNS_FREE, COUNTS_FREE, METRICS, edits
from toytrans.model.decoding import search
from toytrans.outputs import Outputs
from toytrans.scores import Scores, Span, spans_of, wilson_interval
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
    total = scores.numbers()
    assert (total["pairs"], total["forced_token_accuracy"]) == (20, right / tokens)
    assert total["free_exact_match"] == exact / 20
    assert total["loss"] == pytest.approx(loss / tokens)
    assert total["perplexity"] == pytest.approx(math.exp(loss / tokens))
    assert math.exp(total["loss"]) > 2, "an untrained model is uncertain"
    assert sum(scores.numbers(n, n)["pairs"] for n in scores.lengths) == 20
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
    free = free_answers(said, expected, unknown=-1)
    found = {name: count(free).int().tolist() for name, count in COLUMNS_FREE.items()}
    assert found["decoded"] == [1] * 8 and found["decoded_symbols"] == [3] * 7 + [0]
    assert found["free_exact_match"] == [1, 0, 0, 0, 0, 0, 0, 1]
    assert found["wrong"] == [0, 1, 1, 1, 1, 1, 1, 0]
    assert found["free_token_accuracy"] == [4, 3, 1, 3, 3, 1, 0, 1]
    assert found["free_symbol_error_rate"] == [0, 1, 2, 1, 2, 2, 3, 0]
    assert found["free_first_error"] == [0, 2, 2, 4, 4, 1, 1, 0]
    assert found["ended_early"] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert found["ended_late"] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert found["never_ended"] == [0, 0, 0, 0, 1, 1, 0, 0]


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
        assert columns["free_exact_match"].bool().tolist() == right.tolist()
        assert columns["forced_exact_match"].bool().tolist() == right.tolist()
        wrong_tokens = (pairs.tgt == most).sum(1) if unknown else 0
        assert columns["forced_token_accuracy"].equal(
            (pairs.tgt_length + 1 - wrong_tokens).double()
        )
        assert columns["free_symbol_error_rate"].equal(
            torch.zeros(len(pairs)).double() + wrong_tokens
        )


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


def test_edits_are_those_of_the_table_by_hand():
    """Levenshtein's distance, one pair at a time, by the recursion of its definition."""

    def distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if not a or not b:
            return len(a) + len(b)
        replaced = distance(a[1:], b[1:]) + (a[0] != b[0])
        return min(replaced, distance(a[1:], b) + 1, distance(a, b[1:]) + 1)

    draw = random.Random(0)
    sides = [[tuple(draw.choices((A, B), k=draw.randrange(6))) for _ in range(60)] for _ in "ab"]
    padded = [
        torch.tensor([[*ids, EOS_ID, *[0] * (5 - len(ids))] for ids in side]) for side in sides
    ]
    padded[0][0] = torch.tensor([A, B, A, B, A, B])  # no end
    sides[0][0] = (A, B, A, B, A, B)
    expected = [distance(*both) for both in zip(*sides, strict=True)]
    assert edits(*padded).tolist() == expected and len(set(expected)) > 4


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "0.250"), (0.99987, "0.9999"), (0.999996, "0.999996"), (1.0, "1.000"), (None, "-")],
)
def test_a_share_is_never_written_as_1_unless_it_is_1(value, text):
    assert METRICS["free_exact_match"].written(value) == text


def test_numbers_are_divided_once():
    """Ten pairs, the first four of them decoded."""
    columns = {
        "length": [1] * 4 + [2] * 6,
        "pairs": [1] * 10,
        "tokens": [4] * 10,
        "with_unknown": [1] + [0] * 9,
        "forced_token_accuracy": [4, 4, 2, 2, 4, 4, 4, 2, 2, 2],
        "forced_exact_match": [1, 1, 0, 0, 1, 1, 1, 0, 0, 0],
        "decoded": [1] * 4 + [0] * 6,
        "decoded_tokens": [4] * 4 + [0] * 6,
        "decoded_symbols": [3] * 4 + [0] * 6,
        "wrong": [0, 1, 1, 1] + [0] * 6,
        "ended_early": [0, 1] + [0] * 8,
        "ended_late": [0] * 10,
        "never_ended": [0, 0, 1, 1] + [0] * 6,
        "free_exact_match": [1] + [0] * 9,
        "free_token_accuracy": [4, 2, 1, 1] + [0] * 6,
        "free_symbol_error_rate": [0, 2, 4, 3] + [0] * 6,
        "free_first_error": [0, 3, 8, 7] + [0] * 6,
    }
    assert columns.keys() == {"length", *COLUMNS_FORCED, *COLUMNS_FREE}
    tensors = {name: torch.tensor(column) for name, column in columns.items()}
    scores = Scores(tensors, {1: 5.0, 2: 15.0}, (1, 2))
    found = scores.numbers()
    assert found["free_exact_match"] == 1 / 4 and found["forced_exact_match"] == 5 / 10
    assert found["free_less_forced_exact_match"] == -1 / 4
    assert found["forced_token_accuracy"] == 30 / 40 and found["free_token_accuracy"] == 8 / 16
    assert found["free_symbol_error_rate"] == 9 / 12 and found["with_unknown"] == 1
    assert (found["wrong"], found["free_first_error"]) == (3, 18 / 3)
    assert (found["ended_early"], found["ended_late"], found["never_ended"]) == (1, 0, 2)
    assert found["intervals"] == {
        "free_exact_match": wilson_interval(1, 4),
        "forced_exact_match": wilson_interval(5, 10),
    }
    assert found["loss"] == 20 / 40 and scores.numbers(1, 1)["loss"] == 5 / 16
    assert scores.numbers(2)["free_exact_match"] is None, "none of these was decoded"
    nothing = scores.numbers(0, 0)
    assert nothing["pairs"] == 0 and nothing["loss"] is None


def test_greedy_exact_match_is_that_of_teacher_forcing():
    """Of untrained models too: an output is right where every forced token is."""
    config = config_of("copy", data={"symbols": 2, "train_length": [0, 2]})
    pairs = open_dataset(config).pairs("test", torch.arange(300))
    torch.manual_seed(2)
    model = model_of(VOCABULARY, positions="sinusoidal")
    with torch.no_grad():  # says less than it could, so that it is right now and then
        model.src_embedding.weight[5:] = 0
    found = evaluate(model, pairs, DataFacts(VOCABULARY, (0, 2)))
    total = found.numbers()
    assert total["decoded"] == total["pairs"] == 300
    assert 0 < total["wrong"] < 300, "some are right and some are not"
    assert total["free_exact_match"] == total["forced_exact_match"]
    assert found.columns["free_exact_match"].equal(found.columns["forced_exact_match"])


def test_only_some_pairs_of_each_length_are_decoded():
    config = config_of("copy", data={"train_length": [1, 5]})
    pairs = open_dataset(config).pairs("test", torch.arange(60))
    model, facts = model_of(VOCABULARY), DataFacts(VOCABULARY, (1, 5))
    whole = evaluate(model, pairs, facts)
    some = evaluate(model, pairs, facts, decode=3)
    rows = first_of_each(pairs.src_length, 3)
    alone = evaluate(model, pairs.take(rows), facts)
    for length in some.lengths:
        found, of_all, decoded = (each.numbers(length, length) for each in (some, whole, alone))
        assert found["decoded"] == 3 < found["pairs"]
        intervals = found.pop("intervals")
        for key in found:
            free = key in COUNTS_FREE or key.startswith("free")
            assert found[key] == (decoded if free else of_all)[key], key
        assert intervals["free_exact_match"] == decoded["intervals"]["free_exact_match"]


def test_spans_of_lengths_are_few_round_and_on_one_side_of_the_training_lengths():
    assert spans_of([3, 5], (1, 9)) == [Span(3, 3, "in_range"), Span(5, 5, "in_range")]
    found = spans_of(range(1, 401), (1, 25))
    inside, beyond = "in_range", "beyond"
    assert found[:4] == [
        Span(1, 10, inside),
        Span(11, 20, inside),
        Span(21, 25, inside),
        Span(26, 30, beyond),
    ]
    assert found[-1] == Span(391, 400, beyond) and len(found) == 41
    assert [span.low for span in spans_of(range(1, 51), (1, 10))] == [*range(1, 51)]
    parts = [span.part for span in spans_of([1, 2, 3, 4], (2, 3))]
    assert parts == ["below", "in_range", "in_range", "beyond"]
    assert len(spans_of(range(0, 5001, 7), (50, 60))) <= 50


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
