"""Where NaN begins in a pass that was recorded: the first step on the way to the logits that makes
it, and which queries had no key, where that is a softmax."""

from typing import Any

import torch
from torch import Tensor

from toytrans.checks.asked import Asked
from toytrans.checks.beginning import named_place
from toytrans.checks.ids import Ids
from toytrans.checks.model import RAISED, Adapter
from toytrans.checks.numbers import listed_places
from toytrans.checks.recording import Step, recorded
from toytrans.checks.weights_seen import softmaxes_among

UNKNOWN: dict[str, Any] = {"nan": "", "at": "", "line": "", "operation": "", "queries": ""}
"""What causes go by where it is not seen where NaN begins."""


def nan_of_batch(asked: Asked) -> dict[str, Any]:
    """Where NaN begins that real outputs of a batch hold, as evidence: of the first pair that has
    it alone, with its pads, else of the whole batch."""
    rows = (asked.logits.isnan().any(-1) & asked.real).any(1).nonzero()[:, 0].tolist()
    alone = [Ids(asked.src[row, None], asked.tgt_in[row, None]) for row in rows[:1]]
    found = (nan_begins(asked.model, ids) for ids in (*alone, asked.ids))
    return next((each for each in found if each["nan"]), UNKNOWN)


@torch.no_grad()
def nan_begins(model: Adapter, ids: Ids) -> dict[str, Any]:
    """Where NaN begins in an answer, as evidence.

    nan: what kind of beginning it is: "" where none is seen, "elsewhere" where it is no softmax,
    else which queries have every key closed: "first key" or "own place" where it is the first one
    alone, because of that key or because the triangle leaves own places out; "last" where it is the
    last one alone; "pads", "all", "some".
    at: the module, in words; line: of the model; operation: torch's name of the step; queries: the
    places of those queries, in words.
    """
    try:
        steps = recorded(model, ids)
    except RAISED:  # a foreign model under a dispatch mode
        return UNKNOWN
    softmaxes = [n for n in softmaxes_among(steps) if _closed_in(steps[n], steps) is not None]
    first = _first_on_the_way(steps) or next(iter(softmaxes), None)  # torch's own gives 0 there
    if first is None:
        return UNKNOWN
    step = steps[first]
    words = named_place(model.module, step)
    about = UNKNOWN | {"nan": "elsewhere", "at": f"{words}: " if words else "", "line": step.line}
    about["operation"] = step.name
    if (scores := _closed_in(step, steps)) is None:
        return about
    closed = _without_key(scores)
    places = closed.nonzero()[:, 0].tolist()
    real = [model.facts.real_source(ids.src)[0], model.facts.real_inputs(ids.tgt_in)[0]]
    kind = _kind(scores, closed, [each for each in real if len(each) == len(closed)])
    queries = "all places" if kind == "all" else listed_places(places)
    return about | {"nan": kind, "queries": queries}


def _closed_in(step: Step, steps: list[Step]) -> Tensor | None:
    """The scores that a step was given in which a query has no key; None where there are none."""
    given = (steps[n].value for n in step.inputs)
    return next((x for x in given if bool(_without_key(x).any())), None)


def _first_on_the_way(steps: list[Step]) -> int | None:
    """The first step that holds NaN and leads to the logits through others that do."""
    holds = [step.of_ids and bool(step.value.isnan().any()) for step in steps]
    last = next((n for n in reversed(range(len(steps))) if holds[n]), None)
    if last is None:
        return None
    chain, waiting = {last}, [last]
    while waiting:
        more = {n for n in steps[waiting.pop()].inputs if holds[n]} - chain
        chain |= more
        waiting += more
    return min(chain)


def _without_key(scores: Tensor) -> Tensor:
    """Which queries (Tq,) have -inf at every key, in some head; none where these are no scores."""
    if scores.dim() < 2 or not scores.is_floating_point():
        return torch.zeros(0, dtype=torch.bool)
    return (scores == -torch.inf).all(-1).flatten(0, -2).any(0)


def _kind(scores: Tensor, closed: Tensor, real: list[Tensor]) -> str:
    """Which queries have every key closed. real: which places are, of sides as long."""
    is_square = scores.shape[-2] == scores.shape[-1]
    if bool(closed.all()):
        return "all"
    if closed.tolist() == [True] + [False] * (len(closed) - 1) and is_square:
        is_own_open = bool((scores[..., 1, 1] != -torch.inf).any())
        return "first key" if is_own_open else "own place"
    if closed.tolist() == [False] * (len(closed) - 1) + [True] and is_square:
        return "last"
    return "pads" if any(torch.equal(closed, ~each) for each in real) else "some"
