"""Positions and models of the user's: trained, decoded, saved and checked like ours."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import VOCABULARY, Command, config_of
from torch import Tensor, nn

import toytrans
from toytrans.config.load import load_config
from toytrans.model.build import build_sound_model
from toytrans.model.decoding import search
from toytrans.model.own import OwnModel
from toytrans.model.seq2seq import Seq2Seq
from toytrans.references import trust
from toytrans.resolve import resolve
from toytrans.sweeps import trial
from toytrans.tokens import BOS_ID, EOS_ID

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
POSITIONS, MODEL = "my_positions.py:LogDistance", "my_model.py:TwoGRUs"


@pytest.fixture(autouse=True)
def examples(here: Path) -> Path:
    for path in EXAMPLES.glob("my_*.py"):
        shutil.copy(path, here)
    return here


def own(**model: object) -> Seq2Seq:
    config = config_of(model={"d_model": 8, "n_heads": 2, **model})
    trust(config.references.values())
    return build_sound_model(config.model, VOCABULARY).eval()


def ids() -> tuple[Tensor, Tensor]:
    src = torch.tensor([[5, 6, 7, EOS_ID], [8, EOS_ID, 0, 0]])
    return src, torch.tensor([[BOS_ID, 7, 6, 5], [BOS_ID, 8, 9, 3]])


def test_own_positions_bias_by_their_formula():
    model = own(positions=POSITIONS)
    attention = model.encoder_stack()[0].self_attention
    table = attention.bias_table
    assert table.shape == (2, 2)
    distances = model.positions.self_distances(range(5), torch.device("cpu"))
    assert distances is not None
    d = torch.arange(5)[:, None] - torch.arange(5)
    expected = table[:, :1, None] * torch.log1p(d.abs()) + table[:, 1:, None] * d.sign()
    assert torch.allclose(model.positions.bias(table, distances)[0], expected, atol=1e-6)


MINE = """
from torch import nn
from toytrans.model.positions.base import Positions
class Mine(Positions):
    def __init__(self, *given):
        super().__init__(*given)
        self.embedding, self.line = nn.Embedding(4, 2), nn.Linear(2, 2)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 3)
"""


def test_own_positions_keep_the_weights_they_start_with(here: Path):
    (here / "mine.py").write_text(MINE)
    model = own(positions="mine.py:Mine")
    assert all((parameter == 3).all() for parameter in model.positions.parameters())


def test_a_scheme_of_both_attentions_is_made_once(here: Path):
    """Another object would draw weights of its own, and those of all layers would change."""
    (here / "both.py").write_text(
        "from toytrans.model.positions.anchored import Anchored\n"
        "class Both(Anchored):\n"
        "    made = []\n"
        "    def __init__(self, *given):\n"
        "        super().__init__(*given)\n"
        "        self.made.append(self)\n"
    )
    both = {"positions": "both.py:Both", "cross_positions": "both.py:Both", "source_bos": True}
    model = own(**both)
    assert model.positions is model.cross_positions and len(model.positions.made) == 1


XPOS = """
import torch
from toytrans.model.positions.base import Positions
class XPos(Positions):
    def rotate(self, q, k, start=0):
        places = torch.arange(start, start + q.shape[2], dtype=q.dtype)[:, None]
        return q * 0.9**places, k * 0.9**-places
"""


def test_a_scheme_may_turn_queries_and_keys_in_different_ways(here: Path):
    """As xPos does (Sun et al. 2023): scores decay with the distance, in decoding too."""
    (here / "xpos.py").write_text(XPOS)
    model, (src, tgt_in) = own(positions="xpos.py:XPos"), ids()
    attention = model.encoder_stack()[0].self_attention
    x = torch.randn(1, 4, 8)
    context = model.self_context(torch.ones(1, 1, 4, 4, dtype=torch.bool))
    q, k, _ = attention.queries_keys_values(x, context)
    plain_q, plain_k, _ = attention.project_qkv(x)
    i, j = torch.arange(4)[:, None], torch.arange(4)
    assert torch.allclose(q @ k.mT, plain_q @ plain_k.mT * 0.9 ** (i - j), atol=1e-6)
    with torch.no_grad():
        state = model.start_decoding(src, 4)
        steps = [state.next_logits(tgt_in[:, t]) for t in range(4)]
        assert torch.allclose(torch.stack(steps, 1), model(src, tgt_in), atol=1e-5)


def test_a_model_of_ones_own_decodes_without_a_cache():
    """Greedy search and beams over it = those over all prefixes, written out."""
    model = own(**{"class": MODEL})
    assert isinstance(model, OwnModel)
    src, _ = ids()
    greedy = search(model, src).tokens
    for row, source in enumerate(src):
        source = source[source != 0][None]
        read = torch.tensor([[BOS_ID]])
        for token in greedy[row].tolist():
            with torch.no_grad():
                best = int(model.inner(source, read)[0, -1, EOS_ID:].argmax()) + EOS_ID
            assert token == best
            if token == EOS_ID:
                break
            read = torch.cat((read, torch.tensor([[token]])), 1)
    beams = search(model, src, beam=3)
    assert beams.score is not None and beams.score.isfinite().all()


def test_rows_of_pads_make_no_gradient_nan():
    model = own(**{"class": MODEL}).train()
    src, tgt_in = (torch.cat((part, torch.zeros_like(part[:1]))) for part in ids())
    logits = model(src, tgt_in)
    logits[:2].sum().backward()
    assert not logits[2].any() and logits[:2].isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model(torch.zeros_like(src), torch.zeros_like(tgt_in)).shape == logits.shape


@pytest.mark.parametrize("setting", [f"model.positions={POSITIONS}", f"model.class={MODEL}"])
def test_train_eval_translate_check_and_resume(setting: str, here: Path, command: Command):
    constant = ("--set", "train.schedule=constant", "--set", "train.warmup_steps=0")
    for name, steps, *more in (("whole", 6), ("halves", 3), ("halves", 6, "--resume")):
        sets = ("--set", setting, "--set", f"train.max_steps={steps}", *constant)
        done = command("train", "c.yaml", "--out", name, *sets, *more)
        assert done.code == 0, done.err
    whole, halves = (
        toytrans.load(name, "last", "cpu", trust_code=True).model for name in ("whole", "halves")
    )
    assert all(map(torch.equal, whole.parameters(), halves.parameters()))
    measured = command("eval", "halves", "--json", "--beam", "2", "--trust-code")
    assert measured.code == 0 and json.loads(measured.out)
    assert command("translate", "halves", "1 2 3", "--trust-code").code == 0
    checked = command("check", "halves", "--length", "8", "--trust-code")
    assert checked.code == 0, checked.out


def test_the_layers_of_a_model_of_ones_own_are_not_known(
    command: Command, refused: Callable[..., str]
):
    trained = command("train", "c.yaml", "--out", "r", "--set", f"model.class={MODEL}")
    assert trained.code == 0
    suggested = re.findall(r"^  toytrans (.*)", trained.out, re.MULTILINE)
    assert [line.split()[0] for line in suggested] == ["eval", "translate", "check"]
    for line in suggested:
        assert command(*shlex.split(line)).code in (0, 1)
    looks = ("inspect-masks", "r"), ("trace", "r"), ("trace", "./r", "1 2", "--panel", "heads")
    for words in looks:
        assert "whose layers this command does not know" in refused(*words, "--trust-code")
    broken = refused("check", "r", "--break", "no_causal", "--trust-code")
    assert "a model of your own, whose layers this command does not know" in broken


NORM = """
import torch
class Norm(torch.nn.Module):
    def __init__(self, config, size):
        super().__init__()
        self.a, self.b = torch.nn.Embedding(size, 8), torch.nn.Linear(8, size)
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    def forward(self, src, tgt_in):
        return self.b(self.norm(self.a(tgt_in).mT).mT)
"""


def test_buffers_of_ones_own_model_are_saved(here: Path, command: Command):
    (here / "norm.py").write_text(NORM)
    assert command("train", "c.yaml", "--out", "r", "--set", "model.class=norm.py:Norm").code == 0
    norm = toytrans.load("r", "last", "cpu", trust_code=True).model.inner.norm
    assert isinstance(norm, nn.BatchNorm1d) and norm.num_batches_tracked == 6
    assert norm.running_mean is not None and norm.running_mean.any()


MODULE = "import torch\nclass X(torch.nn.Module):\n  def __init__(s, c, v): super().__init__()\n"
SEQ2SEQ = """
import torch
from toytrans.model.seq2seq import Seq2Seq
class X(Seq2Seq):
  def __init__(s, c, v): super().__init__(c); s.a = torch.nn.Linear(1, 1)
  def forward(s, a, b): return s.a.weight.sum() + torch.zeros(*b.shape, 8)
"""
LEARNS = """
import torch
class X(torch.nn.Module):
  def forward(s, a, b): return s.a(b)
  def __init__(s, c, v):
    super().__init__(); s.a = torch.nn.Embedding(8, 8)
"""
SCHEME = """
import torch
from toytrans.model.positions.base import DistanceBias
class X(DistanceBias):
"""
REFUSED = {
    ("model.positions", "def X(m, v): return m"): ("x.py:X: derive it from Positions",),
    ("model.positions", "X = 3"): ("x.py:X: derive it from Positions",),
    (
        "model.positions",
        "from toytrans.model.positions.base import Positions\n"
        "class X(Positions):\n"
        "    def __init__(self, m, v):\n"
        "        m.nothing",
    ): ("x.py:X: fails: AttributeError", "(x.py:4)"),
    ("model.class", LEARNS + "  def forward(s, a, b): exit(0)"): (
        "forward(src, tgt_in) fails: SystemExit: 0 (x.py:7)",
    ),
    ("model.class", "def X(c, v): return 3"): ("x.py:X: is no torch.nn.Module",),
    ("model.class", LEARNS + "  def forward(s, a, b): return a"): (
        "forward(src, tgt_in) gives (2, 2); expected logits (B, T, V), here (2, 1, 8)",
    ),
    (
        "model.class",
        MODULE + "  def forward(s, a, b): return torch.zeros(*b.shape, 8)",
    ): ("0 parameters; a model has 1 to",),
    ("model.class", LEARNS + "    s.requires_grad_(False)"): ("all parameters are frozen",),
    ("model.class", LEARNS + "  def forward(s, a, b): return s.a(b).detach()"): (
        "x.py:X: forward(src, tgt_in) gives logits that no parameter can learn from",
    ),
    ("model.class", LEARNS + "    s.to('meta')"): ("a.weight is on the device meta",),
    ("model.class", LEARNS + "    s.register_buffer('m', torch.eye(3).to_sparse())"): (
        "x.py:X: m is sparse, and checkpoints hold dense tensors alone",
    ),
    ("model.class", LEARNS + "  def get_extra_state(s): return {}"): ("get_extra_state",),
    ("model.positions", SCHEME + "  def __init__(s, m, v): s.n = 3"): (
        "x.py:X: its __init__ must call super().__init__(settings, vocabulary) first",
    ),
    ("model.positions", SCHEME + "  bias_weights = -1"): ("bias_weights is -1; a number",),
    ("model.positions", SCHEME + "  bias_weights = '7'"): ("bias_weights is '7'; a number",),
    ("model.positions", SCHEME + "  bias_weights = 10**9"): ("bias_weights is 1000000000; a num",),
    ("model.positions", SCHEME + "  bias_deviation = float('nan')"): ("bias_deviation is nan",),
    ("model.positions", SCHEME + "  def embed(s, x, start=0): return x[:, 0]"): (
        "embed gives (2, 16), where (2, 3, 16) is wanted",
    ),
    ("model.positions", SCHEME + "  def rotate(s, q, k, start=0): return q, k[0]"): (
        "rotate gives (2, 3, 8), where (2, 2, 3, 8) is wanted",
    ),
    (
        "model.positions",
        "from toytrans.model.positions.anchored import Anchored\n"
        "class X(Anchored): anchors = 'start', 'finish'",
    ): ("x.py:X: fails when it is tried out: ValueError: no anchor is called 'finish'",),
    ("model.positions", SCHEME + "  def values(s, table, d): return d.double()"): (
        "x.py:X: fails when it is tried out",
    ),
    ("model.positions", SCHEME + "  def bias(s, table, d): return torch.ones(2, 3)"): (
        "x.py:X: fails when it is tried out: ValueError: bias gives (2, 3)",
    ),
    (
        "model.cross_positions",
        SCHEME + "  def values(s, table, d): return table[:, :1] * d\n  bias_weights = 1",
    ): ("model.cross_positions: x.py:X has no cross_distances",),
    ("model.class", SEQ2SEQ + "  def start_decoding(s, src, places, beams=1): return 1 / 0"): (
        "x.py:X: start_decoding(src, places).next_logits(tokens) fails: ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_is_wrong_is_one_line(case: tuple[str, str], here: Path, refused: Callable[..., str]):
    key, code = case
    (here / "x.py").write_text(code + "\n")
    message = refused("check", "--config", "c.yaml", "--set", f"{key}=x.py:X")
    for part in REFUSED[case]:
        assert part in message, message


def test_what_code_raises_on_the_way_names_the_line(here: Path, command: Command):
    words = "SystemExit: 0"
    (here / "x.py").write_text(
        "from toytrans.model.positions.base import Positions\n"
        "class X(Positions):\n"
        "    def embed(self, x, start=0):\n"
        "        if x.shape[1] > 3: exit(0)\n"
        "        return x\n"
    )
    change = "model.positions=x.py:X"
    done = command("train", "c.yaml", "--set", change)
    assert done.code == 2 and done.err.endswith(f"toytrans: your code: {words} (x.py:4)\n")

    config = load_config(here / "c.yaml", [change])
    failure = trial.run(trial.Trial(here / "r", config, resolve(config), ()))
    assert failure is not None and failure.reason == f"your code: {words} (x.py:4)"


def test_a_config_with_a_model_of_ones_own(here: Path):
    config = config_of(model={"class": MODEL, "d_model": 33})  # which 2 heads do not divide
    assert config.model.max_positions is None
    assert config.model_dump()["model"]["class"] == f"{here}/{MODEL}"
    assert not config.model.source_bos and config.model.cross_positions == "none"
