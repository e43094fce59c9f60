"""Gradients of real outputs towards the embeddings of pads and of later tokens, which are zero."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from toytrans.checks.asked import Asked, embeddings_changed
from toytrans.checks.common_causes import NAN_GRADIENTS, NO_GRADIENTS
from toytrans.checks.numbers import largest, worst
from toytrans.checks.outcome import Cause, Judged, Outcome, does_not_apply, measured, unsure

FUTURE = "the future"

MOST_PLACES = 66
"""Places up to which gradients of a longer batch are taken."""


def gradients_are_zero(asked: Asked, of_future: bool, cause: Cause) -> Outcome:
    """Gradients towards the future, or towards pads, are zero."""
    if "gradients" not in asked.shared:
        asked.shared["gradients"] = _gradients(asked)
    by, size = asked.shared["gradients"]
    mine = {name: value for name, value in by.items() if (name == FUTURE) == of_future}
    if not mine:
        return does_not_apply("the embedding of no target is met")
    if any(math.isnan(value) for value in mine.values()):
        # where fp64 gives NaN the same is asked in fp32
        return replace(unsure(NAN_GRADIENTS, towards=" and ".join(mine)), difference=math.nan)
    least = size * asked.tolerance / asked.typical_logit
    reached = [name for name, value in mine.items() if not value <= least]
    most = worst(mine.values())
    exactly = "exactly zero" if most == 0 else "zero but for rounding"
    said = f"gradients towards {', '.join(mine)} are {exactly}"
    return measured(most, least if most else 0.0, said, cause, reached=" and ".join(reached))


def _gradients(asked: Asked) -> tuple[dict[str, float], float]:
    """The largest gradients towards pads and the future, and that towards any token. Of longer
    batches those in eval mode and fp64 alone."""
    exact = asked.dtype == torch.float64 and not asked.model.training
    if not asked.is_short and not (exact and asked.tgt_in.shape[1] <= MOST_PLACES):
        why = "gradients of longer batches are taken in eval mode and fp64 alone"
        raise Judged(does_not_apply(why))
    leaves: dict[str, list[Tensor]] = {}

    def edit(side: str, embedded: Tensor) -> Tensor:
        leaf = embedded.detach().requires_grad_()
        leaves.setdefault(side, []).append(leaf)
        return leaf.clone()  # which a model may change in place

    with torch.enable_grad(), embeddings_changed(asked, edit):
        logits = asked.model.ask(*asked.ids)
    if not logits.requires_grad:
        raise Judged(unsure(NO_GRADIENTS))
    plain = logits.detach()
    counts = asked.as_infinite(plain).isfinite() | plain.isnan()
    weighed = torch.where(counts & asked.counted_ids, logits * asked.noise(logits), 0.0)
    weighed = weighed.sum(-1) * asked.real  # (B, T)
    pads = "target pads" if asked.facts.has_source else "pads"
    by: dict[str, float] = {}
    size = 0.0
    if "src" in leaves:
        gradient = _gradient(weighed.sum(), leaves["src"])
        by["source pads"] = largest(gradient[~asked.real_source])
        size = largest(gradient[asked.real_source].nan_to_num())
    width = logits.shape[1]
    step = width // 4 if width > 8 else 1
    for place in range(0, width, step) if "tgt" in leaves else ():
        gradient = _gradient(weighed[:, place].sum(), leaves["tgt"])
        seen = max(place, asked.facts.prefix - 1) if asked.facts.is_causal else width
        later = torch.arange(width) > seen
        closed_pads = gradient[asked.real[:, place]][~asked.real[asked.real[:, place]]]
        size = max(size, largest(gradient.nan_to_num()))
        by[pads] = worst((by.get(pads, 0.0), largest(closed_pads)))
        of_future = gradient.masked_fill(~asked.real, 0.0)[:, later]
        by[FUTURE] = worst((by.get(FUTURE, 0.0), largest(of_future)))
    return by, size


def _gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """Of a value with respect to leaves (B, L, ...), the largest of each place: (B, L)."""
    gradients = torch.autograd.grad(
        value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.stack([part.abs().flatten(2).amax(2) for part in gradients]).amax(0).cpu()
