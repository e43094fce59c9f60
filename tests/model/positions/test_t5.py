"""T5's buckets against T5's own."""

import torch
from conftest import VOCABULARY, model_of
from self_biases import self_bias


def test_t5_buckets_are_those_of_t5():
    from transformers.models.t5.modeling_t5 import T5Attention

    model = model_of(VOCABULARY, positions="t5")
    attention, bias = self_bias(model, 300)
    keys_less_queries = torch.arange(300)[None] - torch.arange(300)[:, None]
    theirs = T5Attention._relative_position_bucket(keys_less_queries, True, 32, 128)
    # both number the same buckets, but each its own way
    ours = model.positions.features(-keys_less_queries).argmax(-1)
    pairs = set(zip(ours.flatten().tolist(), theirs.flatten().tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) > 25
    assert torch.allclose(bias, attention.bias_table[:, ours])
