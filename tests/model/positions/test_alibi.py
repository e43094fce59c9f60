"""ALiBi against the formula."""

import pytest
from conftest import VOCABULARY, model_of
from self_biases import self_bias


def test_alibi_follows_the_paper():
    model = model_of(VOCABULARY, d_model=32, n_heads=8, positions="alibi")
    attention, bias = self_bias(model, 9)
    assert attention.bias_table is None
    for head, slope in enumerate([2.0**-k for k in range(1, 9)]):  # the paper's for 8 heads
        for i, j in ((0, 8), (8, 0), (4, 4), (2, 7)):
            assert bias[head, i, j].item() == pytest.approx(-slope * abs(i - j), abs=1e-12)
