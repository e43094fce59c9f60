"""Recorded searches, without a GPU: the tokens of eager ones, from fixed memory."""

import gc
import weakref

import pytest
import torch
from conftest import SCHEMES, VOCABULARY, model_of, ragged
from lively_models import lively
from tape import Tape, as_on_a_gpu

from toytrans.model.decoding import recorded as recorded_module
from toytrans.model.decoding import search
from toytrans.model.decoding.recorded import RecordedSearch, _Recorded, smaller
from toytrans.model.recorder import RunAgain
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from toytrans.training.bf16_weights import Bf16Weights


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_recorded_searches_have_the_tokens_of_eager_ones(monkeypatch, scheme, beam):
    """Each operation runs on the memory that it was recorded with; weights that were changed in
    place, as by training, are seen, and so are chunks that only a later search needs."""
    as_on_a_gpu(monkeypatch)
    model = model_of(VOCABULARY, **{"n_encoder_layers": 1, "n_decoder_layers": 1} | scheme)
    recorded = RecordedSearch(Tape(), model)
    for seed, width in enumerate((6, 4, 6)):
        torch.manual_seed(seed)
        src = torch.cat((ragged(1, width), ragged(1, width).flip(0)))
        how = {"beam": beam, "growth": 1}
        expected, found = search(model, src, **how), recorded(model, src, **how)
        assert torch.equal(found.tokens, expected.tokens)
        assert beam == 1 or torch.equal(found.score, expected.score)
        with torch.no_grad():
            model.output.weight[EOS_ID] *= -3 if seed == 1 else 1
            for parameter in model.parameters():
                parameter.mul_(1.2)
    assert len(recorded.recorded) == 2, "a record for each shape"


def sources_of(*lengths: int) -> torch.Tensor:
    """Padded sources of so many random symbols."""
    src = torch.full((len(lengths), max(lengths) + 2), PAD_ID)
    for row, n in zip(src, lengths, strict=True):
        row[: n + 2] = torch.tensor([BOS_ID, *torch.randint(3, len(VOCABULARY), (n,)), EOS_ID])
    return src


WITHOUT_SEPARATORS = Vocabulary(VOCABULARY.symbols)
ANCHORED = [scheme for scheme in SCHEMES if scheme["positions"] == "anchored"]


@pytest.mark.parametrize(
    ("scheme", "vocabulary", "beam"),
    [
        *((scheme, VOCABULARY, 3) for scheme in SCHEMES),
        *((scheme, WITHOUT_SEPARATORS, 3) for scheme in ANCHORED),
        *((scheme, VOCABULARY, 1) for scheme in (SCHEMES[0], *ANCHORED)),
    ],
    ids=str,
)
def test_rows_that_go_on_do_so_in_a_smaller_shape(monkeypatch, scheme, vocabulary, beam):
    """16 rows, then 4, then 1. Others of these 16 leave a chunk later; and 4 rows come alone."""
    as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(recorded_module, "FEWEST", 1)
    model = model_of(vocabulary, **{"n_encoder_layers": 1, "n_decoder_layers": 1} | scheme)
    with torch.no_grad():
        model.output.weight[EOS_ID] = 0  # hardly ever said, so that limits end the rows
    recorded, steps = RecordedSearch(Tape(), model), []
    run_chunk = _Recorded.run_chunk

    def noted(one, place):
        steps[-1].append(len(one.src))
        return run_chunk(one, place)

    monkeypatch.setattr(_Recorded, "run_chunk", noted)
    for lengths in ([1, 12, *[1] * 9, 5, 5, 6, 1, 1], [6] * 13 + [12, 10, 11], [2, 12, 1, 1]):
        steps.append([])
        src = sources_of(*lengths)
        found = recorded(model, src, beam=beam, growth=1)
        expected = search(model, src, beam=beam, growth=1)
        assert torch.equal(found.tokens, expected.tokens)
        assert beam == 1 or torch.allclose(found.score, expected.score, rtol=1e-12)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.2)
    assert steps == [[16, 16, 16, 4, 1, 1], [16, 16, 16, 16, 4, 4], [4, 4, 4, 1, 1, 1]]


def test_graphs_go_with_the_last_reference():
    """Not with the garbage, whenever that is found: they hold memory of a GPU."""
    graphs = weakref.WeakSet()

    class Graph:
        def __init__(self, work):
            self.work = weakref.WeakMethod(work)  # as a graph, it holds no Python
            graphs.add(self)

        def __call__(self):
            self.work()()

    class Graphs(RunAgain):
        def record(self, work):
            return Graph(work)

    recorded = RecordedSearch(Graphs(), lively("anchored"))
    recorded(recorded.model, ragged(2, 6))
    assert graphs
    gc.disable()
    del recorded
    left = len(graphs)
    gc.enable()
    assert not left


@pytest.mark.parametrize(
    ("rows", "going", "beams", "left"),
    [
        (400, 400, 1, 400),
        (400, 101, 1, 400),
        (400, 100, 1, 100),
        (400, 1, 1, 100),
        (400, 1, 5, 25),
        (4096, 64, 1, 64),
        (4096, 65, 1, 256),
        (255, 1, 1, 255),
    ],
)
def test_a_quarter_goes_on_while_that_saves_time(rows, going, beams, left):
    assert smaller(rows, going, beams) == left


@pytest.mark.parametrize("positions", ["sinusoidal", "anchored"])
def test_chunks_that_are_recorded_after_a_pass_in_bf16_have_its_tables(monkeypatch, positions):
    """Training in bf16_weights comes between two evaluations, of which the second says more."""
    as_on_a_gpu(monkeypatch)
    model = model_of(VOCABULARY, positions=positions).float()
    with torch.no_grad():
        model.output.weight[EOS_ID] = 0  # hardly ever said
    recorded = RecordedSearch(Tape(), model)
    short, long = torch.tensor([[5, 2] + [0] * 9]), torch.tensor([[*range(3, 13), 2]])
    chunks = []
    for src in (short, long):
        found, expected = recorded(model, src, growth=1), search(model, src, growth=1)
        assert torch.equal(found.tokens, expected.tokens)
        chunks += [len(one.chunks) for one in recorded.recorded.values()]
        Bf16Weights(model)(long, long)
    assert chunks == [3, 5]


def test_records_under_autocast_see_weights_that_change_later():
    """Autocast keeps rounded weights until its end; a record may not read these."""
    as_on_a_gpu(patch := pytest.MonkeyPatch())
    model, src = lively("sinusoidal").float(), ragged(2, 6)
    recorded, tokens = RecordedSearch(Tape(), model), []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = recorded(model, src), search(model, src)
        assert torch.equal(found.tokens, expected.tokens)
        tokens.append(found.tokens)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-1.5)
    patch.undo()
    assert not torch.equal(*(row[:, :1] for row in tokens)), "the weights matter"


@pytest.mark.parametrize("beam", [1, 2])
def test_a_search_ends_with_the_chunk_in_which_the_last_row_ends(beam):
    model = lively("anchored")
    replays = []

    class Counting(RunAgain):
        def record(self, work):
            return lambda: (replays.append(1), work())

    recorded = RecordedSearch(Counting(), model)
    src = torch.tensor([[1, 5, 2], [1, 4, 2], [1, 3, 2]])
    found, expected = recorded(model, src, beam=beam), search(model, src, beam=beam)
    assert torch.equal(found.tokens, expected.tokens)
    places, chunks = found.tokens.shape[1], len(replays) - 1  # without the encoder's
    assert places < 12, "of 16"
    assert chunks == -(-places // 4) if beam == 1 else -(-places // 4) <= chunks <= 4


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_searches_under_autocast_find_what_the_model_says(scheme, beam, weights):
    """Scores stay fp32 and finite, whatever the dtype of the weights and of the products."""
    model = model_of(VOCABULARY, **{"n_encoder_layers": 1, "n_decoder_layers": 1} | scheme)
    model.to(weights)
    src = ragged(2, 7)
    with torch.autocast("cpu", torch.bfloat16):
        found = search(model, src, beam=beam, growth=1)
    assert (found.tokens >= 0).all() and (found.tokens[:, 0] >= EOS_ID).all()
    if beam > 1:
        assert found.score.dtype == torch.float32 and found.score.isfinite().all()
