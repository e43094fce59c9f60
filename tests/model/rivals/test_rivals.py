"""The rivals of the transformer: trained, decoded, proved and refused like it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import TINY, VOCABULARY, Command, config_of
from torch import Tensor, nn

import toytrans
from toytrans.config.schema import Config
from toytrans.config.yaml import write_yaml
from toytrans.data.batches import Batch
from toytrans.insight.attention.heads import Choice, attend
from toytrans.insight.proofs import check_own
from toytrans.model.build import build
from toytrans.model.decoding import search
from toytrans.model.decoding.state import RivalState, UncachedState, start_decoding
from toytrans.model.rivals import Rival
from toytrans.tokens import BOS_ID, EOS_ID

RIVALS = [
    {"kind": "rnn"},
    {"kind": "rnn", "cell": "lstm", "rnn_attention": "luong", "n_decoder_layers": 1},
    {"kind": "rnn", "cell": "lstm", "tie_embeddings": False},
    {"kind": "conv"},
    {"kind": "conv", "kernel_size": 4, "positions": "sinusoidal", "pad_mask": "keys_and_queries"},
    {"kind": "conv", "kernel_size": 1, "positions": "none"},
]
CHECKED = [RIVALS[0], RIVALS[1], RIVALS[4]]
SIZES = {"d_model": 16, "n_encoder_layers": 1, "n_decoder_layers": 2}
CONFIG = write_yaml({name: TINY[name] for name in ("data", "train")} | {"model": SIZES})


def rival(**model: object) -> Rival:
    made = build(config_of(model={"n_heads": 4, "d_ff": 256, **model}).model, VOCABULARY)
    assert isinstance(made, Rival)
    return made.double().eval()


def ids() -> tuple[Tensor, Tensor]:
    src = torch.tensor([[5, 6, 7, 9, EOS_ID], [8, 4, EOS_ID, 0, 0], [EOS_ID, 0, 0, 0, 0], [0] * 5])
    return src, torch.tensor([[BOS_ID, 7, 6, 5], [BOS_ID, 8, 9, 3], [BOS_ID, 4, 4, 5], [0] * 4])


@pytest.mark.parametrize("model", RIVALS, ids=str)
@torch.no_grad()
def test_step_by_step_logits_equal_one_parallel_pass(model: dict):
    made, (src, tgt_in) = rival(**model), ids()
    state = start_decoding(made, src, 4)
    assert isinstance(state, RivalState)
    steps = [state.next_logits(token[:, None])[:, 0] for token in tgt_in.unbind(1)]
    real = tgt_in != 0
    assert torch.allclose(torch.stack(steps, 1)[real], made(src, tgt_in)[real], atol=1e-12)


@pytest.mark.parametrize("model", RIVALS, ids=str)
@torch.no_grad()
def test_beams_are_found_as_by_whole_passes(model: dict, monkeypatch: pytest.MonkeyPatch):
    """The state is reordered with the beams: over all tokens so far the same are found."""
    from toytrans.model.decoding import beam

    made, (src, _) = rival(**model), ids()
    with_state = search(made, src[:3], beam=3)
    monkeypatch.setattr(beam, "start_decoding", lambda m, s, p, b: UncachedState(m, s, b))
    again = search(made, src[:3], beam=3)
    assert torch.equal(with_state.tokens, again.tokens)
    assert torch.allclose(with_state.score, again.score)


@torch.no_grad()
def test_an_encoder_layer_is_a_bidirectional_gru_over_packed_sequences():
    """Two cells and a reversal that leaves pads behind = torch's own bidirectional layer."""
    made, (src, _) = rival(kind="rnn", n_encoder_layers=1), ids()
    src = src[:3]
    layer, memory = made.encoder[0], made.read(src)[0][1]
    both = nn.GRU(16, 8, batch_first=True, bidirectional=True).double()
    for name, value in layer.forward_cell.named_parameters():
        getattr(both, name).copy_(value)
    for name, value in layer.backward_cell.named_parameters():
        getattr(both, f"{name}_reverse").copy_(value)
    lengths = (src != 0).sum(1)
    packed = nn.utils.rnn.pack_padded_sequence(
        made.embed(made.src_embedding, src), lengths, batch_first=True, enforce_sorted=False
    )
    expected, _ = nn.utils.rnn.pad_packed_sequence(both(packed)[0], batch_first=True)
    assert torch.allclose(memory, expected, atol=1e-12)


@torch.no_grad()
def test_bahdanau_attends_before_a_step_and_luong_after_all():
    """Additive scores by their formula; the first weights ask with the first state."""
    made, (src, tgt_in) = rival(kind="rnn", n_decoder_layers=1), ids()
    (_, memory, keys), (state,) = made.read(src[:1])
    part = made.attention
    scores = [
        part.score.weight[0] @ torch.tanh(part.query.weight @ state[0, -1] + key) for key in keys[0]
    ]
    weights = made.cross_weights(src[:1], tgt_in[:1])[0][0]
    assert torch.allclose(weights[0], torch.stack(scores).softmax(0), atol=1e-12)
    luong = rival(kind="rnn", n_decoder_layers=1, rnn_attention="luong")
    (_, memory, _), (state,) = luong.read(src[:1])
    states, _ = luong.decoder(luong.embed(luong.tgt_embedding, tgt_in[:1]), state.transpose(0, 1))
    scores = states[0] @ luong.attention.keys.weight @ memory[0].T
    weights = luong.cross_weights(src[:1], tgt_in[:1])[0][0]
    assert torch.allclose(weights, scores.softmax(-1), atol=1e-12)


@torch.no_grad()
def test_a_convolution_sees_its_kernel_and_no_further():
    """Encoder: (k - 1) / 2 places to either side a layer; decoder: k - 1 places back."""
    made = rival(kind="conv", kernel_size=5, n_encoder_layers=2, n_decoder_layers=1)
    src = torch.randint(3, 10, (1, 15))
    other = src.clone()
    other[0, 7] = 10
    moved = (made.read(src)[0][1] != made.read(other)[0][1])[0].any(-1)
    assert moved.nonzero()[:, 0].tolist() == list(range(3, 12))  # 2 layers of 2 places
    tgt_in = torch.randint(3, 10, (1, 12))
    other = tgt_in.clone()
    other[0, 2] = 10
    moved = (made(src, tgt_in) != made(src, other))[0].any(-1)
    assert moved.nonzero()[:, 0].tolist() == list(range(2, 7))


@pytest.mark.parametrize("model", CHECKED, ids=str)
def test_every_proof_that_applies_passes(model: dict):
    config = config_of(model={"n_heads": 4, "d_ff": 256, **model})
    report = check_own(build(config.model, VOCABULARY), config, VOCABULARY, "rival", length=7)
    verdicts = {finding.letter: finding.verdict for finding in report.findings}
    assert [each for each, said in verdicts.items() if said == "does not apply"] == [*"kopq"]
    assert {said for each, said in verdicts.items() if each not in "kopq"} == {"PASS"}, report


def test_a_pad_that_is_read_is_found(monkeypatch: pytest.MonkeyPatch):
    """The proofs bite: an encoder that reads its pads backwards first fails."""
    from toytrans.model.rivals import rnn

    def with_pads(real: Tensor) -> tuple[Tensor, Tensor]:
        return backwards(torch.ones_like(real))

    backwards = rnn._backwards
    monkeypatch.setattr(rnn, "_backwards", with_pads)
    made = rival(kind="rnn")
    report = toytrans.check(
        made, pad_id=0, vocabulary_size=14, start_id=1, eos_id=2, only="a", length=7
    )
    assert not report.passed


@pytest.mark.parametrize("model", RIVALS[:4:3], ids=str)
@torch.no_grad()
def test_attention_shows_the_weights_of_the_cross_attentions(model: dict):
    made, (src, tgt_in) = rival(**model), ids()
    shown = attend(made, Batch(src, tgt_in, tgt_in), Choice())
    assert [each.part for each in shown] == ["cross"] * made.attentions
    for each in shown:
        assert not each.weights[:, 0][~each.visible].any()
        sums = each.weights.sum(-1)[:3]
        assert torch.allclose(sums, torch.ones_like(sums))
        assert not each.weights[3].any()  # a row of pads may see nothing


@pytest.mark.parametrize("kind", ["rnn", "conv"])
def test_a_rival_learns_to_copy(kind: str, here: Path):
    run = toytrans.train(
        {
            "data": {"task": "copy", "symbols": 5, "train_length": [1, 4], "batch_tokens": 512},
            "model": {"kind": kind, "d_model": 32, "n_encoder_layers": 1, "n_decoder_layers": 1},
            "train": {"max_steps": 150, "lr": 1e-2, "precision": "fp32"},
        },
        "learns",
    )
    assert run.evaluate((1, 4), examples=200).exact_match > 0.9


@pytest.mark.parametrize("kind", ["rnn", "conv"])
def test_train_resume_eval_translate_and_attention(kind: str, here: Path, command: Command):
    for name, steps in (("whole", 6), ("halves", 3), ("halves", 6)):
        sets = (f"model.kind={kind}", f"train.max_steps={steps}", "train.schedule=constant")
        sets += ("train.warmup_steps=0", "model.dropout=0.1")
        more = ("--resume",) if (here / name).exists() else ()
        options = [word for text in sets for word in ("--set", text)]
        done = command("train", "c.yaml", "--out", name, *options, *more)
        assert done.code == 0, done.err
    whole, halves = (toytrans.load(name, "last", "cpu").model for name in ("whole", "halves"))
    assert all(map(torch.equal, whole.parameters(), halves.parameters()))
    measured = command("eval", "halves", "--json", "--beam", "2")
    assert measured.code == 0 and json.loads(measured.out)
    assert command("translate", "halves", "1 2 3").code == 0
    shown = command("attention", "1 2 3", "--run", "halves", "--json", "--sample", "9")
    heads = json.loads(shown.out)["heads"]
    assert [head["part"] for head in heads] == ["cross"] * (1 if kind == "rnn" else 2)
    for words in (("inspect-masks", "--run", "halves"), ("trace", "--run", "halves")):
        refusal = command(*words)
        assert refusal.code == 2 and "none of the transformer's layers" in refusal.err
    exported = command("export", "halves", "--format", "safetensors")
    assert exported.code == 2 and f"no format can express model.kind: {kind}" in exported.err
    assert command("attention", "1", "--run", "halves", "--part", "encoder").code == 2


REFUSED = [
    (("kind=rnn", "positions=sinusoidal"), "model.positions: sinusoidal has no effect"),
    (("kind=rnn", "d_model=15"), "model.d_model: "),
    (("kind=rnn", "kernel_size=3"), "model.kernel_size: belongs to model.kind: conv, not rnn"),
    (("cell=gru",), "model.cell: belongs to model.kind: rnn, not transformer"),
    (("kind=conv", "positions=rotary"), "take learned, sinusoidal, none"),
    (("kind=conv", "n_heads=8"), "model.n_heads: has no effect in model.kind: conv"),
    (("kind=conv", "norm=post"), "model.norm: has no effect"),
    (("kind=conv", "backward=by_hand"), "model.backward: has no effect"),
    (("kind=conv", "cross_positions=anchored"), "model.cross_positions: has no effect"),
    (("kind=conv", "class=x.py:X"), "model.kind: a model of your own is of no kind"),
    (("kind=conv", "d_model=65536"), "parameters"),
    (("kind=mlp",), "model.kind: found 'mlp', expected transformer, rnn or conv"),
]


@pytest.mark.parametrize(("sets", "message"), REFUSED, ids=str)
def test_keys_without_effect_are_refused(sets, message, here: Path, refused: Callable[..., str]):
    (here / "r.yaml").write_text("data: {task: copy}\n")
    options = [word for text in sets for word in ("--set", f"model.{text}")]
    assert message in refused("train", "r.yaml", *options)


def test_faults_of_the_objective_alone_can_be_planted():
    config = {"data": {"task": "copy"}, "model": {"kind": "rnn"}, "fault": "no_causal"}
    from toytrans.training.faults import build_model

    with pytest.raises(toytrans.UserError, match="take one of its training: labels_not_shifted"):
        build_model(Config.model_validate(config), VOCABULARY)
    build_model(Config.model_validate(config | {"fault": "pad_is_eos"}), VOCABULARY)


def test_a_saved_config_is_read_again():
    for model in RIVALS:
        config = config_of(model={"n_heads": 4, "d_ff": 256, **model})
        assert Config.model_validate(config.model_dump()) == config
