"""Decoding step by step: what `generate` may give, and what of it proves nothing."""

import pytest
import torch
import transformers as hf
from conftest import VOCABULARY, config_of
from torch import nn
from zoo import END, PAD, START, SYMBOLS, Translator
from zoo.faulty_models import _in_steps
from zoo.signatures import Named

import toytrans
from toytrans.checks.adapters.toytrans import of_model
from toytrans.model.seq2seq import RowState, Seq2Seq

GIVEN = {"pad_id": 0, "vocabulary_size": SYMBOLS, "start_id": START, "eos_id": END}


def steps(model, generate=None, **given):
    report = toytrans.check(model, only="steps", effort="quick", generate=generate, **given)
    return report["steps"]


def greedy_with_a_cache(late=0, tied=True):
    """A model whose output layer is its table of embeddings, and its greedy decoding by a cache, of
    which each place is so many too late."""
    torch.manual_seed(3)
    made = _in_steps(late)
    model, logits_of_steps = made["model"], made["generate"]
    if tied:
        with torch.no_grad():
            model.target.tokens.weight *= 5  # as large as tables of embeddings come
        model.head.weight = model.target.tokens.weight

    @torch.no_grad()
    def generate(src):
        ids = torch.full((len(src), 1), START)
        for _ in range(5):
            best = logits_of_steps(src, ids)[:, -1:].argmax(-1)
            ids = torch.cat((ids, best), 1)
        return ids

    return model, generate


def test_a_wrong_cache_is_seen_in_ids_of_fresh_tied_weights():
    """They repeat one id, whatever the cache holds, so other weights are taken."""
    model, generate = greedy_with_a_cache(late=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = steps(model, generate, **GIVEN)
    assert found.verdict == "FAIL" and found.cause.code == "steps.not_greedy"
    assert found.message.startswith("with other weights decoding takes ids")
    assert "also where the source has no pads" in found.message
    assert found.details["example"].startswith("src [")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert steps(*greedy_with_a_cache(), **GIVEN).verdict == "PASS"


def test_constant_ids_prove_nothing():
    model, _ = greedy_with_a_cache(tied=False)
    with torch.no_grad():
        model.head.bias[START] = 20.0
    constant = lambda src: torch.full((len(src), 6), START)  # noqa: E731
    report = toytrans.check(model, generate=constant, **GIVEN, effort="quick", only="future,steps")
    found = report["steps"]
    assert report.verdict == "cannot judge" and report.decisive is found
    assert found.cause.code == "steps.same_whatever_weights"
    codes = {name: part.cause.code for name, part in found.parts.items() if part.cause}
    assert codes == {
        "ids": "steps.hardly_vary",
        "with other weights": "steps.same_whatever_weights",
    }


@pytest.mark.parametrize(
    ("first_id", "reads", "cause"),
    [(0, -1, "steps.other_start"), (START, 0, "steps.one_id")],
    ids=["start", "place"],
)
def test_a_greedy_loop_that_goes_wrong_is_told_how(first_id, reads, cause):
    torch.manual_seed(3)
    model = Translator().eval()
    with torch.no_grad():
        model.head.weight *= 4

    @torch.no_grad()
    def generate(src):
        ids = torch.full((len(src), 1), first_id)
        for _ in range(5):
            best = model(src, ids)[:, reads, 3:].argmax(-1) + 3
            ids = torch.cat((ids, best[:, None]), 1)
        return ids

    with torch.no_grad():
        model.head.bias[:3] = -50
    assert steps(model, generate, **GIVEN).cause.code == cause


def test_steps_without_the_sources_pad_mask_are_told_from_others():
    """The cache of cross-attention sees the pads of the source; where it has none all is well."""
    made = _in_steps()
    model = made["model"]

    @torch.no_grad()
    def generate(src, tgt_in):
        cross_mask = model.cross_mask
        model.cross_mask = lambda src, tgt: torch.ones_like(cross_mask(src, tgt))
        try:
            return model(src, tgt_in)
        finally:
            model.cross_mask = cross_mask

    found = steps(model, generate, **GIVEN)
    assert found.cause.code == "steps.source_pads"
    assert steps(**made, **GIVEN).verdict == "PASS"


# Beams -------------------------------------------------------------------------------------------


def beam_search(model, exchanges_scores):
    """Three beams for four steps, by parallel passes; hypotheses and the sums of their
    log-probabilities divided by their lengths."""

    @torch.no_grad()
    def generate(src):
        rows, beams, length = len(src), 3, 4
        ids = torch.full((rows, beams, 1), START)
        scores = torch.full((rows, beams), -1e9).index_fill(1, torch.tensor([0]), 0.0)
        for _ in range(length):
            flat, wide = ids.flatten(0, 1), src.repeat_interleave(beams, 0)
            logits = model(wide, flat)[:, -1].log_softmax(-1).view(rows, beams, -1)
            logits[..., :3] = -1e4  # no end before all are as long
            best, at = (scores[..., None] + logits).flatten(1).topk(beams)
            parent, token = at // SYMBOLS, at % SYMBOLS
            kept = ids.gather(1, parent[..., None].expand(-1, -1, ids.shape[2]))
            ids = torch.cat((kept if exchanges_scores else ids, token[..., None]), 2)
            scores = best
        return ids, scores / length

    return generate


def test_scores_of_hypotheses_follow_from_the_pass():
    torch.manual_seed(3)
    model = Translator().eval()
    assert steps(model, beam_search(model, True), **GIVEN).verdict == "PASS"
    found = steps(model, beam_search(model, False), **GIVEN)
    assert found.verdict == "FAIL" and found.cause.code == "steps.wrong_scores"
    odd = lambda src: (beam_search(model, True)(src)[0], torch.rand(len(src), 3))  # noqa: E731
    assert steps(model, odd, **GIVEN).cause.code == "steps.scores_unknown"


class Unsorted(RowState):
    """Beams that change places keep their pasts."""

    def select(self, rows):
        past = self.past
        super().select(rows)
        self.past = past if len(rows) == len(past[0]) else self.past


class SourcesStay(RowState):
    """Sources that leave are dropped from the end, whichever they are."""

    def select(self, rows):
        source, fewer = self.source, len(rows) < self.rows
        super().select(rows)
        self.source = [part[: len(rows)] for part in source] if fewer else self.source


class Grus(Seq2Seq):
    """Recurrent: the sum of the source's words, and a hidden state of the target's."""

    state = RowState

    def __init__(self, settings, vocabulary_size):
        super().__init__(settings)
        width = settings.d_model
        self.words, self.out = (
            nn.Embedding(vocabulary_size, width),
            nn.Linear(width, vocabulary_size),
        )
        self.reader = nn.GRU(width, width, batch_first=True)
        self.writer = nn.GRU(width, width, batch_first=True)

    def read(self, src):
        outputs = self.reader(self.words(src))[0]
        return outputs.gather(
            1, ((src != 0).sum(1) - 1)[:, None, None].expand(-1, 1, outputs.shape[2])
        )

    def write(self, tokens, memory, hidden):
        states, hidden = self.writer(self.words(tokens) + memory, hidden)
        return self.out(states), hidden

    def forward(self, src, tgt_in):
        return self.write(tgt_in, self.read(src), None)[0]

    def start_decoding(self, src, places, beams=1):
        hidden = torch.zeros(len(src), self.words.embedding_dim).to(self.out.weight)

        def step(tokens, source, past, place):
            logits, after = self.write(tokens, source[0], past[0][None].contiguous())
            return logits, [after[0]]

        return self.state(step, [self.read(src)], [hidden], beams)


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (RowState, None),
        (Unsorted, "steps.past_of_another"),
        (SourcesStay, "steps.source_of_another"),
    ],
)
def test_the_rows_of_a_state_take_their_past_along(monkeypatch, state, cause):
    monkeypatch.setattr(Grus, "state", state)
    config = config_of()
    model = of_model(Grus(config.model, len(VOCABULARY)), config, VOCABULARY, "grus")
    found = steps(model)
    assert (found.cause and found.cause.code) == cause
    assert found.parts["one by one"].verdict == "PASS", "greedy decoding does not show it"


def test_a_model_of_transformers_whose_forward_takes_no_encoder_outputs_needs_generate():
    class Config(hf.PreTrainedConfig):
        model_type = "of_its_own"

    class Own(hf.PreTrainedModel):
        config_class = Config

        def __init__(self, config):
            super().__init__(config)
            self.inner = Named()

        def forward(self, input_ids=None, attention_mask=None, decoder_input_ids=None, **more):
            return self.inner(input_ids, attention_mask, decoder_input_ids)

    ids = {"pad_token_id": PAD, "decoder_start_token_id": START, "eos_token_id": END}
    model = Own(Config(**ids, vocab_size=SYMBOLS, is_encoder_decoder=True))
    found = steps(model)
    assert found.verdict == "not asked" and found.give == ("generate",)
    assert "encoder_outputs" in found.message
