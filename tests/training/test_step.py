"""One update: the loss against torch, and gradients of several batches together."""

import pytest
import torch
from conftest import VOCABULARY, config_of, model_of
from torch.nn import functional as F

from toytrans.config.schema import TrainConfig
from toytrans.data.batches import make_batch
from toytrans.data.open import open_dataset
from toytrans.training.optimizer import AdamW
from toytrans.training.step import Update, summed_loss


def test_the_loss_ignores_pads_and_smooths_as_torch_does():
    logits = torch.randn(2, 3, 5)
    tgt_out = torch.tensor([[3, 2, 0], [4, 4, 2]])
    real = tgt_out != 0
    expected = F.cross_entropy(logits[real], tgt_out[real], reduction="sum", label_smoothing=0.1)
    assert summed_loss(logits, tgt_out, 0.1).item() == pytest.approx(expected.item(), rel=1e-6)
    changed = logits.clone()
    changed[0, 2] += 100
    assert summed_loss(changed, tgt_out).item() == summed_loss(logits, tgt_out).item()


def gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return flat


@pytest.mark.parametrize("positions", ["sinusoidal", "anchored"])
def test_accumulation_equals_the_large_batch(positions):
    source = open_dataset(config_of("copy", data={"symbols": 10, "train_length": [1, 9]}))
    pairs = source.pairs("train", torch.arange(24))
    model = model_of(VOCABULARY, positions=positions)
    rows = torch.arange(24).split([5, 12, 7])
    parts = [make_batch(pairs.take(r), source_bos=True) for r in rows]
    whole = [make_batch(pairs, source_bos=True)]
    assert len({part.target_tokens for part in parts}) == 3, "parts of unequal weight"
    update = Update(model, AdamW(model, 0.0), torch.device("cpu"), TrainConfig(), "fp64")
    loss, tokens = update.backward(parts)
    accumulated = gradients(model)
    whole_loss, whole_tokens = update.backward(whole)
    assert tokens == whole_tokens
    assert loss.item() == pytest.approx(whole_loss.item(), abs=1e-9)
    assert (accumulated - gradients(model)).abs().max() < 1e-9
