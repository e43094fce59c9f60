"""The whole model: torch's own layers with the same weights, and what must not change."""

import pytest
import torch
from conftest import SCHEMES, VOCABULARY, id_of, model_of
from torch import nn

from toytrans.config.schema import ModelSettings
from toytrans.model.seq2seq import count_parameters
from toytrans.model.transformer import Transformer
from toytrans.tokens import Vocabulary

SRC = torch.tensor([[1, 5, 6, 7, 4, 2], [1, 8, 13, 2, 0, 0], [1, 2, 0, 0, 0, 0]])
TGT_IN = torch.tensor([[1, 4, 7, 6, 5], [1, 8, 9, 0, 0], [1, 0, 0, 0, 0]])
REAL = TGT_IN != 0


def copy_attention(ours, theirs):
    theirs.in_proj_weight.copy_(ours.in_proj.weight)
    theirs.in_proj_bias.copy_(ours.in_proj.bias)
    theirs.out_proj.weight.copy_(ours.out_proj.weight)
    theirs.out_proj.bias.copy_(ours.out_proj.bias)


def copy_layer(ours, theirs):
    copy_attention(ours.self_attention, theirs.self_attn)
    norms = [theirs.norm1, theirs.norm2]
    if hasattr(ours, "cross_attention"):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        norms.append(theirs.norm3)
    theirs.linear1.load_state_dict(ours.feed_forward[0].state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward[3].state_dict())
    for residual, norm in zip(ours.residuals, norms, strict=True):
        norm.load_state_dict(residual.norm.state_dict())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_torchs_transformer_with_the_same_weights_gives_the_same_outputs(norm, activation):
    """Distinct sizes, so that swapped axes cannot cancel: D 24, H 3, ff 32, 2 + 3 layers."""
    shape = {"positions": "none", "tie_embeddings": False, "d_ff": 32}
    layers = {"n_encoder_layers": 2, "n_decoder_layers": 3}
    ours = model_of(VOCABULARY, norm=norm, activation=activation, **shape, **layers)
    more = {"batch_first": True, "norm_first": norm == "pre", "dtype": torch.float64}
    theirs = nn.Transformer(24, 3, 2, 3, 32, 0.0, activation, **more).eval()
    with torch.no_grad():
        for side in ("encoder", "decoder"):
            layers = getattr(ours, f"{side}_layers")
            for our_layer, their_layer in zip(layers, getattr(theirs, side).layers, strict=True):
                copy_layer(our_layer, their_layer)
            final = getattr(ours, f"{side}_norm").state_dict() if norm == "pre" else None
            if final:
                getattr(theirs, side).norm.load_state_dict(final)
            else:
                getattr(theirs, side).norm = None  # which post-norm has not
        expected_memory = theirs.encoder(
            ours.src_embedding(SRC) * 24**0.5, src_key_padding_mask=SRC == 0
        )
        hidden = theirs.decoder(
            ours.tgt_embedding(TGT_IN) * 24**0.5,
            expected_memory,
            tgt_mask=torch.ones(5, 5).triu(1).bool(),
            tgt_key_padding_mask=TGT_IN == 0,
            memory_key_padding_mask=SRC == 0,
        )
        memory, logits = ours.encode(SRC), ours(SRC, TGT_IN)
    assert torch.allclose(memory[SRC != 0], expected_memory[SRC != 0], atol=1e-12)
    assert torch.allclose(logits[REAL], ours.output(hidden)[REAL], atol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES, ids=id_of)
@pytest.mark.parametrize("pad_mask", ["keys", "keys_and_queries"])
def test_more_pads_and_more_rows_change_nothing_at_real_places(scheme, pad_mask):
    model = model_of(VOCABULARY, **scheme, pad_mask=pad_mask)
    with torch.no_grad():
        expected = model(SRC, TGT_IN)
        wider = model(nn.functional.pad(SRC, (0, 3)), nn.functional.pad(TGT_IN, (0, 2)))
        alone = model(SRC[1:2, :4], TGT_IN[1:2, :3])
        taller = model(
            nn.functional.pad(SRC, (0, 0, 0, 2)), nn.functional.pad(TGT_IN, (0, 0, 0, 2))
        )
    assert torch.allclose(wider[:, :5][REAL], expected[REAL], atol=1e-12)
    assert torch.allclose(alone[0], expected[1, :3], atol=1e-12)
    assert torch.allclose(taller[:3][REAL], expected[REAL], atol=1e-12)
    assert taller.isfinite().all(), "rows that are all pad give finite numbers"


@pytest.mark.parametrize("positions", ["sinusoidal", "anchored"])
def test_key_only_and_key_and_query_masks_give_the_same_logits_and_gradients(positions):
    """At real places, which are all that a loss counts."""
    one, other = (
        model_of(VOCABULARY, positions=positions, pad_mask=pad_mask)
        for pad_mask in ("keys", "keys_and_queries")
    )
    other.load_state_dict(one.state_dict())
    found = []
    for model in (one, other):
        logits = model(SRC, TGT_IN)[REAL]
        loss = (logits * torch.arange(logits.shape[1])).sum()
        found.append((logits, *torch.autograd.grad(loss, list(model.parameters()))))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_without_positions_the_order_of_the_source_is_not_seen():
    order = torch.tensor([0, 3, 1, 4, 2, 5])
    for positions, seen in (("none", False), ("sinusoidal", True), ("anchored", True)):
        model = model_of(VOCABULARY, positions=positions)
        with torch.no_grad():
            memory = model.encode(SRC[:1])
            permuted = model.encode(SRC[:1, order])
        difference = (memory[:, order] - permuted).abs().max().item()
        assert (difference > 1e-3) if seen else (difference < 1e-12)


def test_tied_and_shared_weights_are_counted_once():
    def count(**model):
        config = ModelSettings(
            d_model=8, n_heads=2, d_ff=16, **{"positions": "none", "norm": "pre"} | model
        )
        return count_parameters(Transformer(config, Vocabulary(("a", "b"))))

    table = 5 * 8
    assert count(tie_embeddings=False) - count() == 2 * table
    attention, feed_forward, norm = 4 * (8 * 8 + 8), 2 * 8 * 16 + 16 + 8, 16
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    assert count() == table + 2 * encoder + 2 * decoder + 2 * norm
    assert count(share_layers=True) == table + encoder + decoder + 2 * norm
    assert count(norm="post") == count() - 2 * norm


def test_initial_scales_are_as_written_down():
    torch.manual_seed(0)
    model = Transformer(
        ModelSettings(d_model=256, positions="none", tie_embeddings=False), VOCABULARY
    )
    ids = torch.arange(3, 14)[None]
    assert (model.src_embedding(ids) * 16).std().item() == pytest.approx(1, abs=0.05)
    query = model.encoder_layers[0].self_attention.in_proj.weight[:256]
    assert query.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.03)
    src, tgt_in = torch.cat((ids, torch.tensor([[2]])), 1), torch.cat((torch.tensor([[1]]), ids), 1)
    assert model(src, tgt_in).std().item() == pytest.approx(1, abs=0.1)


def test_dropout_acts_in_training_only():
    model = model_of(VOCABULARY, dropout=0.3)
    assert torch.equal(model(SRC, TGT_IN), model(SRC, TGT_IN))
    model.train()
    assert not torch.equal(model(SRC, TGT_IN), model(SRC, TGT_IN))
