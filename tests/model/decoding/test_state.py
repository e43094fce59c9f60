"""One step of decoding equals the parallel pass."""

import pytest
import torch
from conftest import EVERY_ANCHOR, SCHEMES
from lively_models import SRC, lively

from toytrans.tokens import BOS_ID


@pytest.mark.parametrize("positions", SCHEMES, ids=str)
def test_step_by_step_logits_equal_one_parallel_pass(positions):
    model = lively(positions)
    tgt_in = torch.tensor([[1, 4, 7, 6, 5]]).expand(4, 5)
    with torch.no_grad():
        whole = model(SRC, tgt_in)
        state = model.start_decoding(SRC, 5)
        steps = [state.next_logits(tgt_in[:, t : t + 1]) for t in range(5)]
    assert torch.allclose(torch.cat(steps, 1), whole, atol=1e-12)


@pytest.mark.parametrize("model", ["anchored", EVERY_ANCHOR], ids=["default", "every_anchor"])
@torch.no_grad()
def test_beams_sharing_a_cache_see_their_own_past_alone(model):
    """Logits of beams that change places step by step equal those of whole passes over what each
    has said."""
    model = lively(model)
    src = SRC
    state = model.start_decoding(src, 4, 3)
    said = torch.full((4, 3, 1), BOS_ID)
    for step in range(4):
        logits = state.next_logits(said[:, :, -1])
        for beam in range(3):
            whole = model(src, said[:, beam])[:, -1]
            assert torch.allclose(logits[:, beam], whole, atol=1e-12)
        parents = torch.randint(3, (len(src), 3))
        assert (parents.sort(1).values != torch.arange(3)).any(), "some beam ends, one divides"
        said = torch.cat(
            (
                said.gather(1, parents[..., None].expand_as(said)),
                torch.randint(3, 9, (len(src), 3, 1)),
            ),
            2,
        )
        state.select_beams(parents)
        if step == 1:
            kept = torch.tensor([2, 0, 3])
            state.select_sources(kept)
            said, src = said[kept], SRC[kept]
