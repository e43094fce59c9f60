"""Rotary positions against complex numbers."""

import torch
from conftest import VOCABULARY, model_of

from toytrans.tokens import BOS_ID, EOS_ID


def test_rotary_rotates_pairs_and_leaves_the_distance_alone():
    model = model_of(VOCABULARY, positions="rotary")  # heads of width 8
    x = torch.randn(1, 3, 7, 8).double()
    rotated = model.positions.rotate(x, range(5, 12))
    for t in range(7):
        for i in range(4):
            pair = torch.complex(x[..., t, i], x[..., t, i + 4])
            angle = torch.tensor(1j * (5 + t) / 10_000 ** (2 * i / 8))
            expected = pair * torch.exp(angle)
            assert torch.allclose(rotated[..., t, i], expected.real)
            assert torch.allclose(rotated[..., t, i + 4], expected.imag)
    q, k = x[..., :1, :], x[..., 1:2, :]

    def score(i, j):
        rotate = model.positions.rotate
        return (rotate(q, range(i, i + 1)) * rotate(k, range(j, j + 1))).sum(-1)

    assert torch.allclose(score(3, 1), score(503, 501))
    assert not torch.allclose(score(3, 1), score(3, 2), rtol=1e-3)


def test_beams_are_turned_to_one_place():
    model = model_of(VOCABULARY, positions="rotary")
    src = torch.tensor([[5, 6, 7, EOS_ID]])
    state = model.start_decoding(src, 4, 3)
    state.next_logits(torch.full((1, 3), BOS_ID))
    second = state.next_logits(torch.tensor([[4, 5, 6]]))
    for beam, token in enumerate((4, 5, 6)):
        alone = model(src, torch.tensor([[BOS_ID, token]]))[0, 1]
        assert torch.allclose(second[0, beam], alone, atol=1e-12)
