"""Attention in chunks: the same numbers, in memory that is linear in the length."""

import pytest
import torch
from conftest import SCHEMES, VOCABULARY, config_of, model_of, ragged
from torch.utils._python_dispatch import TorchDispatchMode

from toytrans import evaluation
from toytrans.config import COUNTING
from toytrans.data import open_source
from toytrans.data.pairs import DatasetInfo, Pairs, pad_rows
from toytrans.model.backends import chunked
from toytrans.model.backends.chunked import limit_scores
from toytrans.model.context import LazyContext
from toytrans.training.faults import plant


@pytest.mark.parametrize("backward", ["autograd", "by_hand"])
@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_chunks_give_what_the_whole_gives(scheme, pad_mask, backward, monkeypatch):
    if backward == "by_hand" and "cross_anchors" in scheme:  # by hand without those that count
        anchors = [name for name in scheme["cross_anchors"] if name not in COUNTING]
        scheme = {**scheme, "cross_anchors": anchors, "n_heads": len(anchors), "d_model": 56}
    model = model_of(VOCABULARY, **{"n_heads": 3, **scheme}, pad_mask=pad_mask, backward=backward)
    src, tgt_in = ragged(3, 17), ragged(3, 13)
    assert (src == 0).any() and (tgt_in == 0).any(), "there are pads"
    with torch.no_grad():
        whole = model(src, tgt_in)
        sizes: list[int] = []
        made = LazyContext.rows
        monkeypatch.setattr(
            LazyContext,
            "rows",
            lambda self, queries: sizes.append(len(queries)) or made(self, queries),
        )
        heads = model.config.n_heads
        # 5 queries at once; 1; 1 although even that is over the limit
        for most in (3 * heads * 17 * 5, 3 * heads * 17, 1):
            with limit_scores(most):
                assert torch.allclose(model(src, tgt_in), whole, rtol=0, atol=1e-12)
    assert {1, 5} <= set(sizes) and set(sizes) <= {1, 2, 3, 5, 6}, "whole chunks and their rests"


@pytest.mark.parametrize(
    "fault", ["no_causal", "triangle_off_by_one", "pad_visible", "mask_flipped"]
)
def test_chunks_of_a_broken_mask_are_as_broken(fault):
    model = model_of(VOCABULARY, positions="sinusoidal")
    src, tgt_in = ragged(3, 17), ragged(3, 13)
    with torch.no_grad():
        sound = model(src, tgt_in)
        plant(fault, model)
        whole = model(src, tgt_in)
        with limit_scores(500):
            assert torch.allclose(model(src, tgt_in), whole, rtol=0, atol=1e-12)
    assert not torch.allclose(sound, whole, atol=1e-3)


def test_gradients_of_chunks_are_those_of_the_whole():
    model = model_of(VOCABULARY, positions="anchored")
    src, tgt_in = ragged(2, 17), ragged(2, 13)
    gradients = []
    for most in (None, 400):
        model.zero_grad()
        with limit_scores(most):
            model(src, tgt_in).pow(2).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for whole, parts in zip(*gradients, strict=True):
        assert torch.allclose(whole, parts, rtol=1e-9, atol=1e-12)


class Largest(TorchDispatchMode):
    """The numbers of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for found in result if isinstance(result, tuple | list) else (result,):
            if isinstance(found, torch.Tensor) and found.untyped_storage().size():
                size = found.untyped_storage().size() // found.element_size()
                self.numbers = max(self.numbers, size)
        return result


@pytest.mark.parametrize("positions", ["sinusoidal", "none", "anchored"])
@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
def test_memory_grows_with_the_length_not_with_its_square(positions, pad_mask, monkeypatch):
    """The largest tensor of an evaluation, decoding included, at two lengths."""
    monkeypatch.setattr(evaluation, "MOST_SCORES", 2**11)
    sizes = {"n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1}
    model = model_of(VOCABULARY, positions=positions, pad_mask=pad_mask, **sizes)
    facts = DatasetInfo(VOCABULARY, (0, 5))

    def largest(length: int) -> int:
        row = [list(torch.randint(3, 13, (length,)))]
        pairs = Pairs(*pad_rows(row), *pad_rows(row))
        with Largest() as seen:
            evaluation.evaluate(model, pairs, facts, source_bos=True)
        return seen.numbers

    short, long = largest(40), largest(160)
    assert long <= 4.5 * short
    assert long < 160 * 160, "not even one mask of all queries and keys"


def test_evaluation_ends_with_no_limit_of_scores():
    model = model_of(VOCABULARY).train()
    pairs = open_source(config_of("copy")).pairs("test", torch.arange(4))
    evaluation.evaluate(model, pairs, DatasetInfo(VOCABULARY, (1, 6)), source_bos=True)
    assert chunked._max_scores is None and model.training
