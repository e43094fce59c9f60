"""Every model of the zoo gets the verdict that it must get.

The fast suite asks a sound model only what it was written to mislead, and leaves out models that
show in another style what one of them shows already. `pytest -m slow tests/test_zoo.py` asks every
model everything.
"""

from collections import Counter

import pytest
from zoo import Entry, entries

import toytrans
from toytrans.checks import run, shrink
from toytrans.checks.rules import CHECKS
from toytrans.errors import UserError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ested.tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning"),
]

MISLEADING = {
    "row of pads may give nan": "rows",
    "steps with a cache": "steps",
    "pads that are ranked first": "steps",
    "spectral norm": "modes",
    "half precision": "modes",
    "a band without a hint": "modes",
    "a second head and a frozen table": "weights source",
    "a layer of before is left": "weights source",
    "chosen without a gradient": "weights source",
    "scale on the queries": "scale",
    "scale on both": "scale",
    "a bias of zeros and no scale": "scale order",
    "a learned temperature of one": "scale order",
    "normed queries and no scale": "scale order",
    "queries and keys of unit length": "scale reach",
    "rotary": "order scale",
    "relative keys": "order scale",
    "closed by the least number": "future",
    "pads closed as queries too": "pads",
    "pointer network": "pads",
    "pre norm": "sublayers weights",
    "no norms": "sublayers source",
    "parallel branches": "sublayers",
    "closed gates and decoding": "sublayers source steps",
    "experts one for each token": "rows weights",
    "gradient checkpointing": "modes weights",
    "torchs transformer time first": "rows order",
    "gru with dot products": "pads",
    "input feeding": "target reach sublayers",
    "a tuple": "calls future",
    "ids closed by minus a billion": "future",
    "log probabilities": "future",
    "a large constant": "future",
    "source and target of one length": "rows",
    "cross entropy": "loss labels",
    "one against the rest": "loss labels",
    "in bf16 of some width": "future",
    "ours sinusoidal": "order",
    "ours rotary": "order",
    "ours t5": "order scale",
    "ours anchored": "order scale",
    "ours learned": "order",
    "ours post norm": "sublayers",
    "ours with pads closed as queries": "pads",
    "bart whose pad is its end": "labels loss",
    "llama": "pads steps",
    "marian": "labels loss",
    "t5": "order sublayers",
    "two berts": "labels loss",
    "bert": "pads future",
    "gpt2": "steps",
    "bloom": "pads",
    "latents that read the source": "pads sublayers",
    "batch norm over real places": "pads",
    "compiled": "future",
    "pads in front": "pads order",
    "segments": "pads",
    "feed forward of an unknown name": "sublayers",
    "a transform between halves": "sublayers",
}
"""Sound models, and the checks that they were written to mislead."""

OTHER_STYLES = {
    "prefix one too long",
    "blocks open inside",
    "torchs transformer with the masks flipped",
    "places counted from the batchs end",
    "pad mask of another id",
    "recurrence over pads",
    "second half of the width closed",
    "three keys alone in torchs encoder",
    "a target without places in torchs",
    "future with mask behind softmax by einsum",
    "pads with mask behind softmax in a module",
    "future with mask inverted in a module",
    "pads with mask inverted by einsum",
    "future with closed by too little by einsum",
    "pads with closed by too little in a module",
    "a strict triangle in a module",
    "minus thirty added in a module",
    "minus thirty added for pads by einsum",
    "minus ten thousand in a module",
    "shared out again by einsum",
    "bart that reads source pads",
    "llama whose cache is off by one",
    "torchs transformer",
}
"""Models that show in another style, or a larger model, what others of the zoo show."""


FAST = [entry for entry in entries() if entry.name not in OTHER_STYLES]


def assert_verdict(entry: Entry, only: str = "") -> None:
    """Ask a model for its verdict, and for its causes. The longest sequences are left out unless
    the verdict needs them. A faulty model is asked for the checks that find it, of which one
    failure is the verdict, whatever others say."""
    extent = {"effort": "quick"} if entry.is_quick else {} if entry.is_long else {"length": 7}
    arguments = entry.build() | extent
    if only:
        arguments["only"] = only.split()
    elif entry.verdict == "FAIL" and entry.checks:
        arguments["only"] = entry.checks
    try:
        report = toytrans.check(**arguments)
        verdict = report.verdict
        words = "\n".join([str(report), *(found.message for found in report.results)])
        parts = [part for found in report.results for part in found.parts.values()]
        doubts = {part.cause.code for part in parts if part.cause and part.cause.is_doubt}
        failed = report.failures[:1] if entry.is_first else report.of("FAIL")
        causes = {found.cause.code for found in failed if found.cause} | doubts
    except UserError as refusal:
        verdict, words, causes, doubts = "refused", str(refusal), set(), set()
    assert verdict in entry.verdict.split(" or "), words
    if verdict == "PASS":
        must_pass = {*entry.checks} & {*(only.split() or CHECKS)}
        assert {found.name for found in report.of("PASS")} >= must_pass, words
    assert not entry.cause or entry.cause in causes, words
    assert entry.doubts is None or doubts == {*entry.doubts.split()}, words
    assert entry.says in words


def test_the_zoo_holds_models_that_fail_each_check_and_sound_ones():
    verdicts = Counter(entry.verdict for entry in entries())
    assert verdicts["FAIL"] >= 80 and verdicts["PASS"] >= 40
    failing = {check for entry in entries() if entry.verdict == "FAIL" for check in entry.checks}
    assert failing == {*CHECKS}


def test_the_fast_suite_leaves_out_no_cause():
    by_name = {entry.name: entry for entry in entries()}
    assert not (OTHER_STYLES | MISLEADING.keys()) - by_name.keys()
    assert all("PASS" in by_name[name].verdict for name in MISLEADING)
    assert {entry.cause for entry in FAST} == {entry.cause for entry in entries()}


@pytest.mark.parametrize("entry", FAST, ids=lambda entry: entry.name)
def test_a_model_gets_its_verdict(entry: Entry, monkeypatch: pytest.MonkeyPatch):
    """Without a search for the smallest example, which changes no verdict and costs most."""
    monkeypatch.setattr(shrink, "MOST_TRIED", 0)
    if entry.verdict == "PASS":
        monkeypatch.setattr(run, "WORK", 10e9)
    assert_verdict(entry, MISLEADING.get(entry.name, ""))


@pytest.mark.slow
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_a_model_gets_its_verdict_of_every_check(entry: Entry):
    """With the search for the smallest example, and without a bound of work."""
    assert_verdict(entry)
