"""The key-value cache."""

import torch

from toytrans.model.kv_cache import KVCache


def test_a_cache_keeps_what_was_appended_and_the_sources_selected():
    cache = KVCache(3, 2, 4, 2, 5, torch.zeros(1))
    parts = [torch.randn(3, 2, 2, 5) for _ in range(3)]  # two beams
    for part in parts[:2]:
        cache.extend(part, -part)
    cache.select(torch.tensor([2, 0]))
    k, v = cache.extend(parts[2][:2], -parts[2][:2])
    expected = torch.cat((*(part[[2, 0]] for part in parts[:2]), parts[2][:2]), 2)
    assert torch.equal(k, expected) and torch.equal(v, -expected)
