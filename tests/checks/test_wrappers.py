"""Models that cannot be asked as they are: `check` shows what to write around them, and that works
as it is pasted."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from zoo.kinds import Attending
from zoo.parts import END, PAD, START, SYMBOLS, Torchs, Translator, mean_loss, real

import toytrans
from toytrans.errors import UserError

IDS = {"pad_id": PAD, "vocabulary_size": SYMBOLS, "start_id": START, "eos_id": END}


class Flat(Translator):
    def forward(self, src, tgt):
        return super().forward(src, tgt).flatten(0, 1), [torch.zeros(1)]


class ClassesFirst(Translator):
    def forward(self, src, tgt):
        return super().forward(src, tgt).mT


class CutsTheLastOff(Translator):
    def forward(self, src, tgt):
        return super().forward(src, tgt[:, :-1])


class AddsTheStart(Translator):
    def forward(self, src, tgt):
        return super().forward(src, F.pad(tgt, (1, 0), value=START))


class LastAlone(Attending):
    def forward(self, ids, targets=None):
        logits = super().forward(ids)
        if targets is None:
            return logits[:, [-1]], None
        return logits, mean_loss(logits, targets)


class FlatWithLabels(Attending):
    def forward(self, ids, targets=None):
        logits = super().forward(ids)
        if targets is None:
            return logits[:, [-1]], None
        return logits.flatten(0, 1), mean_loss(logits, targets)


class FromADict(Translator):
    def forward(self, batch):
        self.seen = batch["source_mask"]
        return super().forward(batch["source"], batch["target"])

    def keys(self, src):
        return self.seen


class FromAttributes(Translator):
    def forward(self, batch):
        return super().forward(batch.src, batch.trg)


class LengthFirst(Torchs):
    def __init__(self):
        super().__init__(batch_first=False)

    def forward(self, src, trg, trg_mask, src_padding_mask, memory_key_padding_mask):
        x, y = (
            embed(ids.mT).transpose(0, 1) for embed, ids in ((self.source, src), (self.target, trg))
        )
        masks = {
            "tgt_mask": trg_mask,
            "src_key_padding_mask": src_padding_mask,
            "memory_key_padding_mask": memory_key_padding_mask,
        }
        return self.head(self.transformer(x, y, **masks))


class MaskOfADecoder(Attending):
    def open(self, ids):
        return self.seen

    def forward(self, ids, attn_mask):
        self.seen = attn_mask
        return super().forward(ids)


@pytest.mark.parametrize(
    "build",
    [
        *(Flat, ClassesFirst, CutsTheLastOff, AddsTheStart, LastAlone, FlatWithLabels),
        *(FromADict, FromAttributes, LengthFirst, MaskOfADecoder),
    ],
)
def test_what_is_shown_works_as_it_is_pasted(build):
    torch.manual_seed(0)
    model = build()
    given = IDS | ({"kind": "decoder"} if isinstance(model, Attending) else {})
    with pytest.raises(UserError, match=r"Asked\(model\)") as refused:
        toytrans.check(model, **given)
    names = {"torch": torch}
    exec(str(refused.value).partition("\n\n")[2], names)
    report = toytrans.check(names["Asked"](model), **given, effort="quick", only="pads,future,rows")
    assert report.passed, report


class OneForEachSourceToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(SYMBOLS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, SYMBOLS)

    def forward(self, src, tgt):
        return self.head(self.layers(self.tokens(src), src_key_padding_mask=~real(src)))


def test_a_model_that_answers_the_source_alone_is_an_encoder():
    torch.manual_seed(0)
    model, ids = OneForEachSourceToken(), {"pad_id": PAD, "vocabulary_size": SYMBOLS}
    with pytest.raises(UserError, match="kind='encoder'") as refused:
        toytrans.check(model, **ids)
    names = {"torch": torch}
    exec(str(refused.value).partition("\n\n")[2], names)
    asked = names["Asked"](model)
    report = toytrans.check(asked, **ids, kind="encoder", effort="quick", only="pads,rows")
    assert report.passed, report


def test_a_model_of_vectors_is_told_what_it_is_handed():
    class OfVectors(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, SYMBOLS)

        def forward(self, src, tgt):
            return self.first(tgt) + self.first(src).mean(1, keepdim=True)

    with pytest.raises(UserError, match=r"hands over ids.*TorchTransformer"):
        toytrans.check(OfVectors(), **IDS)
    of_batches = lambda src, tgt: src.ids  # noqa: E731
    with pytest.raises(UserError, match=r"has no attribute 'ids'; check hands over ids"):
        toytrans.check(of_batches, **IDS)


def test_a_model_that_needs_equal_lengths_needs_no_module_around_it():
    class Equal(Translator):
        def forward(self, src, tgt):
            assert src.shape == tgt.shape
            return super().forward(src, tgt)

    assert toytrans.check(Equal(), **IDS, effort="quick", only="future").passed
