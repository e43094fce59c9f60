"""Counts, intervals, and the division at the end."""

import math

import pytest
import torch
from conftest import VOCABULARY, config_of, model_of
from torch.nn import functional as F

from toytrans.data.batches import make_batch
from toytrans.data.open import open_dataset
from toytrans.data.pairs import DataFacts
from toytrans.evaluation import evaluate, translate, wilson_interval
from toytrans.model.decoding import greedy


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
    assert wilson_interval(right, total) == (
        pytest.approx(low, abs=5e-5),
        pytest.approx(high, abs=5e-5),
    )


def test_an_interval_of_nothing_is_everything():
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_counts_are_those_of_one_row_at_a_time():
    source = open_dataset(config_of("copy", data={"symbols": 10, "train_length": [0, 7]}))
    pairs = source.pairs("test", torch.arange(60))
    model = model_of(VOCABULARY, positions="sinusoidal").train()
    facts = DataFacts(VOCABULARY, (0, 5))
    scores = evaluate(model, pairs, facts, batch_tokens=300)
    assert model.training, "the mode is left as it was"
    model.eval()
    tokens = right = exact = 0
    loss = 0.0
    for row in range(60):
        batch = make_batch(pairs.take(torch.tensor([row])), source_bos=False)
        with torch.no_grad():
            logits = model(batch.src, batch.tgt_in)
        loss += F.cross_entropy(logits[0], batch.tgt_out[0], reduction="sum").item()
        right += int((logits.argmax(-1) == batch.tgt_out).sum())
        tokens += batch.tgt_out.numel()
        exact += greedy(model, batch.src).tokens.tolist() == batch.tgt_out.tolist()
    total = scores.summary()
    assert (total["examples"], total["token_accuracy"]) == (60, right / tokens)
    assert total["exact_match"] == exact / 60
    assert total["loss"] == pytest.approx(loss / tokens)
    assert math.exp(total["loss"]) > 2, "an untrained model is uncertain"
    assert sum(scores.summary(n, n)["examples"] for n in scores.lengths) == 60
    assert scores.lengths == sorted(set(pairs.src_length.tolist()))


def test_translations_come_in_the_order_of_the_questions():
    model = model_of(VOCABULARY, positions="sinusoidal")
    facts = DataFacts(VOCABULARY, (0, 5))
    sequences = [["1"], [], ["4", "5", "6", "7", "8"], ["2", "+"]]
    together = translate(model, sequences, facts)
    alone = [translate(model, [s], facts)[0] for s in sequences]
    assert together == alone
    assert translate(model, [], facts) == []
