"""Learned positions."""

import pytest
import torch
from conftest import VOCABULARY, model_of

from toytrans.errors import UserError


def test_a_learned_table_ends_where_it_ends():
    model = model_of(VOCABULARY, positions="learned", max_positions=7)
    model(torch.tensor([[3] * 6 + [2]]), torch.tensor([[1, 3]]))
    with pytest.raises(
        UserError, match="8 places is longer than the position table has room for: 7"
    ):
        model(torch.tensor([[3] * 7 + [2]]), torch.tensor([[1, 3]]))
