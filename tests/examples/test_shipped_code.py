"""The code of configs/examples: every model learns, passes `check`, and decodes as it computes."""

from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY, VOCABULARY, Command, config_of
from torch import Tensor, nn

import toytrans
from toytrans.config.yaml import write_yaml
from toytrans.model.build import build_sound_model
from toytrans.model.decoding import search
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import BOS_ID, EOS_ID

EXAMPLES = ROOT / "configs" / "examples"
RNN, CONV = "rnn.py:Recurrent", "conv.py:Convolutional"
MODELS = [RNN, "rnn.py:LuongLSTM", CONV, "conv.py:Sinusoidal", "conv.py:EvenKernel"]


def example(name: str, **model: object) -> Seq2Seq:
    """A small model of an example, fresh weights, fp64."""
    sizes = {"class": f"{EXAMPLES}/{name}", "max_positions": 64, "tie_embeddings": False}
    return build_sound_model(config_of(model=sizes | model).model, VOCABULARY).double().eval()


def ids() -> tuple[Tensor, Tensor]:
    """The last row is pads alone."""
    src = torch.tensor([[5, 6, 7, 9, EOS_ID], [8, 4, EOS_ID, 0, 0], [EOS_ID, 0, 0, 0, 0], [0] * 5])
    return src, torch.tensor([[BOS_ID, 7, 6, 5], [BOS_ID, 8, 9, 3], [BOS_ID, 4, 4, 5], [0] * 4])


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_decoding_from_a_state_equals_whole_passes(name: str, monkeypatch: pytest.MonkeyPatch):
    """Step by step and by beams, whose states change places; rows of pads do no harm."""
    model, (src, tgt_in) = example(name), ids()
    state = model.start_decoding(src, 4)
    steps = [state.next_logits(tokens) for tokens in tgt_in.unbind(1)]
    assert torch.allclose(torch.stack(steps, 1), model(src, tgt_in), atol=1e-12)
    with_state = search(model, src[:3], beam=3)
    monkeypatch.setattr(type(model), "start_decoding", Seq2Seq.start_decoding)
    again = search(model, src[:3], beam=3)
    assert torch.equal(with_state.tokens, again.tokens)
    assert torch.allclose(with_state.score, again.score)


@pytest.mark.parametrize("name", [RNN, "rnn.py:LuongLSTM", CONV])
def test_a_model_learns_to_copy_and_passes_check(name: str, here: Path, command: Command):
    model = {"class": name, "d_model": 32, "n_encoder_layers": 1, "n_decoder_layers": 1}
    model |= {"max_positions": 64, "dropout": 0.1}
    data = TINY["data"] | {"batch_tokens": 512}
    train = {"max_steps": 120, "eval_every": 120, "lr": 1e-2, "precision": "fp32"}
    for part in EXAMPLES.glob("*.py"):
        (here / part.name).write_bytes(part.read_bytes())
    (here / "c.yaml").write_text(write_yaml({"data": data, "model": model, "train": train}))
    assert command("train", "c.yaml", "--out", "learns").code == 0
    run = toytrans.load("learns", trust_code=True)
    assert run.evaluate((1, 4), examples=100)["free_exact_match"] > 0.9
    checked = command("check", "learns", "--length", "7", "--all", "--trust-code")
    assert checked.code == 0, checked.out
    assert "steps = one parallel pass" in checked.out


@torch.no_grad()
def test_an_encoder_layer_is_a_bidirectional_gru_over_packed_sequences():
    """Two cells and a reversal that leaves pads behind = torch's own bidirectional layer."""
    model, (src, _) = example(RNN, n_encoder_layers=1), ids()
    src = src[:3]
    memory = model.read(src)[0][1]
    layer, both = model.encoder[0], nn.GRU(16, 8, batch_first=True, bidirectional=True).double()
    for name, value in layer.forward_cell.named_parameters():
        getattr(both, name).copy_(value)
    for name, value in layer.backward_cell.named_parameters():
        getattr(both, f"{name}_reverse").copy_(value)
    lengths, x = (src != 0).sum(1), model.embed(model.src_embedding, src)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(both(packed)[0], batch_first=True)
    assert torch.allclose(memory, expected, atol=1e-12)


@torch.no_grad()
def test_a_convolution_sees_its_kernel_and_no_further():
    """Encoder: (k - 1) / 2 places to either side a layer; decoder: k - 1 places back."""
    model = example(CONV, n_encoder_layers=2, n_decoder_layers=1)
    src, tgt_in = torch.randint(3, 10, (1, 15)), torch.randint(3, 10, (1, 12))
    other = src.index_fill(1, torch.tensor([7]), 10)
    moved = (model.read(src)[0][1] != model.read(other)[0][1])[0].any(-1)
    assert moved.nonzero()[:, 0].tolist() == list(range(3, 12))  # 2 layers of 2 places
    other = tgt_in.index_fill(1, torch.tensor([2]), 10)
    moved = (model(src, tgt_in) != model(src, other))[0].any(-1)
    assert moved.nonzero()[:, 0].tolist() == list(range(2, 7))


def test_what_an_example_cannot_be_built_with_is_said_in_one_line():
    with pytest.raises(toytrans.UserError, match="d_model: 15; each direction reads half"):
        example(RNN, d_model=15)
    with pytest.raises(toytrans.UserError, match="give the rows of the table"):
        example(CONV, max_positions=None)
