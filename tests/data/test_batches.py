"""Padding, the target shift, buckets, and the stream of training batches."""

from collections import Counter
from itertools import islice

import pytest
import torch
from conftest import config_of
from hypothesis import given, settings
from hypothesis import strategies as st

from toytrans.data.batches import (
    Batch,
    evaluation_batches,
    make_batch,
    plan_batches,
    training_batches,
)
from toytrans.data.open import open_dataset
from toytrans.data.pairs import Pairs, bucket, pad_rows
from toytrans.tokens import PAD_ID


def ragged() -> Pairs:
    """Lengths 2 and 0 in the source, 1 and 3 in the target."""
    return Pairs(
        torch.tensor([[5, 7], [0, 0]]),
        torch.tensor([2, 0]),
        torch.tensor([[9, 0, 0], [4, 5, 6]]),
        torch.tensor([1, 3]),
    )


def test_ends_padding_and_shift_by_hand():
    batch = make_batch(ragged(), source_bos=False)
    assert batch.src.tolist() == [[5, 7, 2], [2, 0, 0]]
    assert batch.tgt_in.tolist() == [[1, 9, 0, 0], [1, 4, 5, 6]]
    assert batch.tgt_out.tolist() == [[9, 2, 0, 0], [4, 5, 6, 2]]
    assert make_batch(ragged(), source_bos=True).src.tolist() == [[1, 5, 7, 2], [1, 2, 0, 0]]
    assert (batch.target_tokens, batch.real_tokens, batch.padded_tokens) == (6, 10, 14)


@given(st.integers(1, 5000))
def test_buckets_waste_little_and_are_few(length):
    size = bucket(length)
    assert length <= size <= max(length + 1, 1.25 * length)
    assert len({bucket(n) for n in range(1, length + 1)}) <= 8 + 4 * length.bit_length()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=200),
    st.integers(50, 4000),
    st.booleans(),
)
def test_plans_hold_every_pair_once_within_the_budget(lengths, budget, even_rows):
    sources, targets = ([[3] * n for n in side] for side in zip(*lengths, strict=True))
    pairs = Pairs(*pad_rows(sources), *pad_rows(targets))
    plans = plan_batches(pairs, budget, True, even_rows)
    planned = [row for plan in plans for row in plan.pair_indices.tolist()]
    assert sorted(planned) == list(range(len(lengths)))
    for members, (rows, src_width, tgt_width) in plans:
        assert 0 < len(members) <= rows
        assert rows == 1 or rows * (src_width + tgt_width) <= budget
        assert pairs.src_length[members].max() + 2 <= src_width
        assert pairs.tgt_length[members].max() + 1 <= tgt_width


def stream(task="reverse", budget=1024, pairs_used=0, count=60, **data):
    config = config_of(
        task, data={"symbols": 20, "train_length": [1, 20], "batch_tokens": budget} | data
    )
    return list(islice(training_batches(open_dataset(config), config, pairs_used), count))


def test_few_shapes_and_little_padding():
    batches = [batch for batch, _ in stream(count=200)]
    shapes = Counter((*batch.src.shape, batch.tgt_in.shape[1]) for batch in batches)
    assert len(shapes) < 25
    padded = sum(batch.padded_tokens for batch in batches)
    assert padded / sum(batch.real_tokens for batch in batches) < 1.15
    tokens = [batch.target_tokens for batch in batches]
    assert min(tokens) > 0.1 * sum(tokens) / len(tokens), "no batch of a few tokens"


@pytest.mark.parametrize("data", [{}, {"train_examples": 700}])
def test_the_number_of_pairs_used_is_all_the_state(data):
    batches = stream(**data)
    for index in (0, 13, 40):
        _, used = batches[index]
        rest = stream(pairs_used=used, count=len(batches) - index - 1, **data)
        for (batch, number), expected in zip(rest, batches[index + 1 :], strict=True):
            assert number == expected[1]
            for name, ids in expected[0].named().items():
                assert batch.named()[name].equal(ids)


def sources_up_to(batches: list[tuple[Batch, int]], pairs: int) -> Counter:
    """The sources of the batches up to a number of pairs, where one ends, and how often each."""
    assert pairs in [used for _, used in batches]
    rows = (row for batch, used in batches if used <= pairs for row in batch.src.tolist())
    return Counter(tuple(i for i in row if i != PAD_ID) for row in rows if row[0] != PAD_ID)


def test_any_batch_size_trains_on_the_same_pairs():
    small, large = stream(budget=1024, count=700), stream(budget=6144, count=400)  # two pools, one
    assert sources_up_to(small, 8192) == sources_up_to(large, 8192)


def test_tokens_are_counted_and_shards_have_one_shape():
    """Three processes share two rows: the last one has a row of PAD alone."""
    batch = make_batch(ragged(), source_bos=False)
    shards = [batch.shard(rank, 3) for rank in range(3)]
    assert [tuple(shard.src.shape) for shard in shards] == [(1, 3)] * 3
    assert [tuple(shard.tgt_out.shape) for shard in shards] == [(1, 4)] * 3
    assert [shard.target_tokens for shard in shards] == [2, 4, 0]
    assert [shard.real_tokens for shard in shards] == [5, 5, 0]
    assert not shards[2].src.any() and not shards[2].tgt_in.any()


def test_buckets_end_where_a_learned_table_does():
    """Sources of 25 symbols and their end are 26 places; their bucket would be 28."""
    assert bucket(26) == 28
    data = {"symbols": 20, "train_length": [20, 25], "batch_tokens": 512}
    config = config_of("copy", data=data, model={"positions": "learned", "max_positions": 26})
    batches = [batch for batch, _ in islice(training_batches(open_dataset(config), config), 20)]
    assert max(batch.src.shape[1] for batch in batches) == 26
    assert max(batch.tgt_in.shape[1] for batch in batches) == 26


def test_a_limited_split_goes_round_in_epochs():
    counts = sources_up_to(stream(train_examples=1024, budget=1024, count=300), 4096)
    assert all(n % 4 == 0 for n in counts.values()) and counts.total() == 4096


def test_evaluation_sees_every_pair_once():
    source = open_dataset(config_of("sort", data={"train_length": [0, 9]}))
    pairs = source.pairs("test", torch.arange(333))
    seen = []
    for batch, rows in evaluation_batches(pairs, 512, source_bos=False):
        for ids, row in zip(batch.src.tolist(), rows.tolist(), strict=True):
            n = int(pairs.src_length[row])
            assert ids[:n] == pairs.src[row, :n].tolist() and ids[n] == 2
            seen.append(row)
    assert sorted(seen) == list(range(333))


def test_an_evaluation_of_long_pairs_has_few_rows_at_once(monkeypatch):
    """Rows x heads x T x S stays within bounds; one row is the least."""
    most, heads = 4 * 24 * 24 * 3, 4
    monkeypatch.setattr("toytrans.data.batches.MOST_SCORES", most)
    rows = [[3] * length for length in (18,) * 7 + (70, 5, 5)]
    pairs = Pairs(*pad_rows(rows), *pad_rows(rows))
    scores, seen = [], []
    for batch, which in evaluation_batches(pairs, 10_000, source_bos=True, heads=heads):
        scores.append(len(which) * heads * batch.src.shape[1] * batch.tgt_in.shape[1])
        seen += which.tolist()
        assert len(which) == 1 or scores[-1] <= most
    assert sorted(seen) == list(range(10)), "every pair once"
    assert max(scores) > most and len(scores) > 3, "the longest pair comes alone"
