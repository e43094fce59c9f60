"""(k) in attention of any code: every softmax is followed back to its product, without names."""

import pytest
import torch
from torch import nn
from zoo import built

from toytrans import check
from toytrans.errors import UserError


def scores_of(**given):
    report = check(**given, length=7, only="scale")
    return report.results[0]


def test_a_plain_function_is_judged_too():
    arguments = built("no scale by hand")
    model = arguments.pop("model").eval()
    found = scores_of(**arguments, model=lambda src, tgt: model(src, tgt))
    assert found.verdict == "FAIL" and found.message.startswith("nothing scales the scores")


def test_a_scale_that_is_given_is_asked_for():
    arguments = built("scale on both")
    assert scores_of(**arguments | {"scale": 0.5}).verdict == "PASS"
    found = scores_of(**arguments | {"scale": 1})
    assert found.verdict == "FAIL" and "times 0.5, and scale=1 was given" in found.message
    for scale in ("1", 0, True, float("nan")):
        with pytest.raises(UserError, match="above 0, that multiplies q k"):
            check(**arguments | {"scale": scale})


class Multihead(nn.Module):
    """nn.MultiheadAttention in self-attention."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(20, 16), nn.Parameter(torch.randn(80, 16))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, ids):
        x = self.table(ids) + self.places[: ids.shape[1]]
        blocked = torch.ones(2 * ids.shape[1:]).bool().triu(1)
        with torch.no_grad():
            return self.head(self.attention(x, x, x, attn_mask=blocked)[0] + x)


def test_torchs_own_module_is_judged_where_it_takes_shortcuts():
    found = scores_of(model=Multihead(), kind="decoder", pad_id=0, vocabulary_size=20)
    assert found.verdict == "PASS" and "1 attention:" in found.message


def test_why_nothing_was_judged_is_said():
    table = nn.Embedding(20, 20)

    def written_out(ids):
        scores = (table(ids) @ table(ids).mT).tril().exp()
        return scores / scores.sum(-1, keepdim=True) @ table(ids)

    found = scores_of(model=written_out, kind="decoder", pad_id=0, vocabulary_size=20)
    assert found.verdict == "does not apply" and "written out" in found.message


def test_a_scale_of_hugging_faces_config_is_no_mistake():
    hf = pytest.importorskip("transformers")
    ids = {"vocab_size": 30, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 80}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4}
    by_layer = hf.GPT2Config(**ids, **sizes, **layers, scale_attn_by_inverse_layer_idx=True)
    by_width = hf.GraniteConfig(**ids, **sizes, **layers, attention_multiplier=1 / 4)
    granite = hf.GraniteForCausalLM(by_width)
    for model in (hf.GPT2LMHeadModel(by_layer), granite):
        found = scores_of(model=model)
        assert found.verdict == "cannot judge" and "give scale=0.25" in found.message
    assert scores_of(model=granite, scale=0.25).verdict == "PASS"
    assert scores_of(model=granite, scale=0.5).verdict == "FAIL"
