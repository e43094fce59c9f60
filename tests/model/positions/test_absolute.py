"""Random places."""

import pytest
import torch
from conftest import VOCABULARY, model_of

from toytrans.errors import UserError


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_random_places_are_sorted_drawn_anew_and_fixed_outside_of_training(positions):
    model = model_of(VOCABULARY, positions=positions, random_positions=True, max_positions=400)
    scheme, x = model.positions, torch.zeros(1, 20, 24, dtype=torch.float64)
    table = scheme.vectors(range(400), x)

    def places():
        added = scheme.embed(x)[0]
        return torch.cdist(added, table).argmin(1).tolist()

    still = places()
    assert still == places() == sorted(set(still)) and len(still) == 20
    assert torch.equal(scheme.embed(x[:, :7], start=3), scheme.embed(x)[:, 3:10])
    model.train()
    drawn = [places() for _ in range(50)]
    assert all(row == sorted(set(row)) for row in drawn)
    assert len({tuple(row) for row in drawn}) == 50
    seen = {place for row in drawn for place in row}
    assert min(seen) < 20 and max(seen) >= 380 and len(seen) > 300, "the whole range is met"
    model.eval()
    with pytest.raises(UserError, match="101 places is longer .* 100 .model.max_positions 400"):
        scheme.embed(torch.zeros(1, 101, 24, dtype=torch.float64))
