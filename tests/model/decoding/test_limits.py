"""How long decoding goes on, and which rows stay."""

import torch
from lively_models import SRC

from toytrans.data.pairs import bucket
from toytrans.model.decoding import token_limits
from toytrans.model.decoding.loop import rows_to_keep


def test_ended_rows_leave_in_few_sizes():
    """Every row still going stays, in order; ended ones fill up the size."""
    sizes = set()
    for left in range(1, 300):
        going = torch.zeros(300, dtype=torch.bool)
        going[torch.randperm(300)[:left]] = True
        kept = rows_to_keep(going, min(bucket(left), 300))
        assert kept.tolist() == sorted(set(kept.tolist()))
        assert set(going.nonzero()[:, 0].tolist()) <= set(kept.tolist())
        sizes.add(len(kept))
    assert len(sizes) < 30 and max(sizes) == 300


def test_limits_depend_on_the_source_alone():
    assert token_limits(SRC, 2).tolist() == [18, 14, 10, 16]
    assert token_limits(SRC, 6, longest=20).tolist() == [20, 20, 10, 20]
