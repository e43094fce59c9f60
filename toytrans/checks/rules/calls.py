"""Calls: nothing is kept from call to call, and the same input gets the same answer."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from toytrans.checks.asked import Asked
from toytrans.checks.beginning import named_place
from toytrans.checks.changes import Change
from toytrans.checks.ids import Ids
from toytrans.checks.model import RAISED
from toytrans.checks.numbers import largest
from toytrans.checks.outcome import Evidence, Judged, Outcome, fails, measured
from toytrans.checks.recording import recorded
from toytrans.checks.registry import Check
from toytrans.errors import UserError

CALLS = Check(
    "calls",
    "nothing is kept from call to call",
    how="the same twice; other calls between; the ids after a call",
    limits="What the first call makes and keeps for all others is not seen.",
)

# The same twice ------------------------------------------------------------------------------


def draws_random_numbers(evidence: Evidence) -> bool:
    """Whether a call moves torch's random numbers on."""
    return bool(evidence["draws"])


DRAWS_RANDOM_NUMBERS = CALLS.cause(
    "draws_random_numbers",
    when="two answers to one input differ in eval mode, and torch's random numbers move on",
    words="{at}{name} answers the same input twice with logits that differ by {by:.2g}",
    remedy="it draws random numbers in eval mode: functional dropout without "
    "training=self.training, or sampling",
    fits=draws_random_numbers,
)
UNSTEADY = CALLS.cause(
    "unsteady",
    when="two answers to one input differ, and no random numbers of torch's are drawn",
    words="{name} answers the same input twice with logits that differ by {by:.2g}",
    remedy="it keeps something from call to call, or draws random numbers of its own",
)


@CALLS.part("the same twice", of_unsteady=True)
def the_same_twice(asked: Asked) -> Outcome:
    """The shortest batch is asked twice. A model that gives two answers is asked nothing else.

    Raises UserError where it may be dropout that its user left on.
    """
    if asked.is_steady:
        return measured(asked.jitter, asked.tolerance, "two answers to one batch are the same")
    before, model = _random_state(asked), asked.model
    asked.ask(*asked.ids)
    draws = not torch.equal(before, _random_state(asked))
    evidence: dict[str, Any] = {"draws": draws, "name": asked.facts.name, "by": asked.jitter}
    evidence |= _where_it_draws(asked, asked.ids)
    if draws and (model.module is None or model.module.training):
        raise UserError(
            f"{asked.facts.name} answers the same input twice with logits that differ by "
            f"{asked.jitter:.2g}; is dropout left on? call model.eval() first, or give an "
            "nn.Module in place of a function, which is asked in both modes"
        )
    causes = (DRAWS_RANDOM_NUMBERS, UNSTEADY)
    return measured(asked.jitter, asked.tolerance, "", *causes, **evidence)


@torch.no_grad()
def two_answers(asked: Asked, ids: Ids) -> Outcome | None:
    """The failure of a model that answers some ids in two ways; None where it does not."""
    before = _random_state(asked)
    by = largest(asked.moved(*(asked.ask(*ids) for _ in range(2))).nan_to_num())
    if by <= asked.tolerance:
        return None
    draws = not torch.equal(before, _random_state(asked))
    causes = (DRAWS_RANDOM_NUMBERS, UNSTEADY)
    evidence: dict[str, Any] = {"draws": draws, "name": asked.facts.name, "by": by}
    evidence |= _where_it_draws(asked, ids)
    failure = measured(by, asked.tolerance, "", *causes, **evidence)
    rows, places = ids.tgt_in.shape
    return replace(failure, circumstances=f" (a batch of {rows} rows, {places} places)")


DRAWS = re.compile("bernoulli|native_dropout|rand.*|normal.*|uniform|multinomial|exponential")
"""Operations that draw random numbers."""


def _where_it_draws(asked: Asked, ids: Ids) -> dict[str, str]:
    """The module that first draws random numbers, in words, and its line, as evidence."""
    with contextlib.suppress(*RAISED):  # a foreign model under a dispatch mode
        step = next((s for s in recorded(asked.model, ids) if DRAWS.fullmatch(s.name)), None)
        if step is not None:
            words = named_place(asked.model.module, step)
            return {"at": f"{words}: " if words else "", "line": step.line}
    return {"at": "", "line": ""}


def _random_state(asked: Asked) -> torch.Tensor:
    """The state of the random numbers that a model draws."""
    on_gpu = asked.model.device.type == "cuda"
    return torch.cuda.get_rng_state(asked.model.device) if on_gpu else torch.get_rng_state()


# Other calls between -------------------------------------------------------------------------

KEEPS = CALLS.cause(
    "keeps",
    when="outputs move after longer and shorter batches of other rows",
    words="the same batch after other calls gives other logits: something is kept from call to "
    "call",
    remedy="is a mask or a cache kept from another batch?",
)
CHANGES_IDS = CALLS.cause(
    "changes_ids",
    when="the ids that a model was handed are others after the call",
    words="the model changes the ids that it is handed: {sides} hold other ids after a call",
    remedy="change a copy (masked_fill for masked_fill_, clone before assigning)",
)


@CALLS.part("others between", on="both ends", may_be_another_pad=True)
def others_between(asked: Asked) -> Iterator[Change]:
    """The same batch is asked again after longer and shorter batches of other rows, and its ids
    stay as they are."""

    @contextlib.contextmanager
    def after_others() -> Iterator[None]:
        (src, longer, _), _ = asked.with_pads(1, 1)
        asked.ask(src.flip(0), longer.flip(0))
        asked.ask(asked.src[:1], asked.tgt_in[:1])
        yield

    name = "the same after other calls"
    yield Change(name, asked.ids, asked.numbers, (KEEPS,), around=after_others)
    if changed := sorted(asked.model.overwritten):
        raise Judged(fails(CHANGES_IDS, sides=" and ".join(changed)))


@CALLS.part("the same at the end", on="last", may_be_another_pad=True)
def the_same_at_the_end(asked: Asked) -> Iterator[Change]:
    """The shortest batch is asked once more after all other checks."""
    yield from others_between(asked)
